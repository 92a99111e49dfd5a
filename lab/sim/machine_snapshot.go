package sim

import (
	"errors"
	"os"
	"path/filepath"
)

// rootFile names the root that a machine's disk lies over, where that is a snapshot's.
func (m *machineHost) rootFile() string { return filepath.Join(m.dir, "root.name") }

// snapshot copies the disk, which holds all that differs from the root, and notes which
// root that is.
func (m *machineHost) snapshot(dir string) error {
	return errors.Join(
		run("cp", "--sparse=always", m.image(), filepath.Join(dir, "disk.img")),
		os.WriteFile(filepath.Join(dir, "root.name"), []byte(filepath.Base(m.root)), 0o600),
	)
}

func (m *machineHost) restore(dir string) error {
	name, err := os.ReadFile(filepath.Join(dir, "root.name"))
	if err != nil {
		return err
	}
	m.root = filepath.Join(m.sim.cfg.Machines, string(name))
	return errors.Join(os.WriteFile(m.rootFile(), name, 0o600),
		run("cp", "--sparse=always", filepath.Join(dir, "disk.img"), m.image()))
}
