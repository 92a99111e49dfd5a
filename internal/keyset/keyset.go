// Package keyset defines which keys each process of the control plane has, and hands them out. An intruder in a
// process gets its keys, so each has only the keys that it needs.
package keyset

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
)

// Set is the keys of one process.
type Set struct {
	Issue  []pki.Purpose // CAs that it issues certificates with
	Trust  []pki.Purpose // CAs whose certificates it verifies or passes on
	Sign   []token.Use   // tokens that it issues: the newest key
	Each   []token.Use   // what it signs with each key
	Verify []token.Use   // tokens that it verifies, or whose keys it passes on: the public halves
	Seal   bool          // seals keys of certificates: the public halves
	Open   bool          // opens them, to hand them to edges
	Backup bool          // seals and opens the identities of backups
}

// sets are the keys of the processes. The API calls no host and issues no token: workers do so for it
// (docs/adr/0015). The gateway passes the public halves of the exec keys on to hosts, but can't call hosts.
var sets = map[string]Set{
	"api": {
		Issue: []pki.Purpose{pki.RelayClient}, Trust: []pki.Purpose{pki.RelayServer},
	},
	"agentgw": {
		Issue: []pki.Purpose{pki.Gateway, pki.AgentClient, pki.AgentServer, pki.DockerServer, pki.ServiceServer, pki.ServiceClient},
		Trust: []pki.Purpose{pki.Gateway, pki.AgentClient, pki.ExecClient, pki.DockerClient, pki.ServiceServer, pki.ServiceClient},
		Sign:  []token.Use{token.UseAgent}, Verify: []token.Use{token.UseAgent, token.UseExec}, Each: []token.Use{token.UsePeers},
		Open: true,
	},
	"worker": {
		Issue: []pki.Purpose{pki.ExecClient, pki.DockerClient, pki.RelayServer},
		Trust: []pki.Purpose{pki.Gateway, pki.AgentServer, pki.DockerServer, pki.RelayClient},
		Sign:  []token.Use{token.UseExec},
		Seal:  true, Backup: true,
	},
}

// Processes returns the names of the processes with keys, in order.
func Processes() []string { return slices.Sorted(maps.Keys(sets)) }

// Share fills dir with the keys of a process, taken from the originals in from, and nothing else. Files have mode
// 0440 and, unless group is negative, that group. A running process sees each file either before or after the change.
func Share(from, process, dir string, group int) error {
	set, ok := sets[process]
	if !ok {
		return fmt.Errorf("process %q has no keys; there are %v", process, Processes())
	}
	want, err := set.files(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("keys of %s: %w", process, err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if err := write(filepath.Join(dir, name), want[name], group); err != nil {
			return fmt.Errorf("keys of %s: %w", process, err)
		}
	}
	return removeOthers(dir, want, group)
}

// files are a set's files, by their names below the process's directory.
func (s Set) files(from string) (map[string][]byte, error) {
	out := make(map[string][]byte)
	var failed error
	read := func(change func([]byte) ([]byte, error)) func(files []string, err error) {
		return func(files []string, err error) {
			for _, file := range files {
				if err == nil {
					err = readInto(out, from, file, change)
				}
			}
			failed = cmp.Or(failed, err)
		}
	}
	whole := func(b []byte) ([]byte, error) { return b, nil }
	for _, p := range s.Issue {
		read(whole)([]string{pki.IssuerFile(from, p)}, nil)
	}
	for _, p := range s.Trust {
		read(whole)([]string{pki.BundleFile(from, p)}, nil)
	}
	for _, use := range s.Verify {
		read(token.PublicHalf)(token.KeyFiles(from, use))
	}
	for _, use := range s.Sign {
		files, err := token.KeyFiles(from, use)
		read(whole)(files[max(0, len(files)-1):], err)
	}
	for _, use := range s.Each {
		read(whole)(token.KeyFiles(from, use))
	}
	switch {
	case s.Open:
		read(whole)(token.SealingFiles(from, token.SealCertificates))
	case s.Seal:
		read(token.SealingPublicHalf)(token.SealingFiles(from, token.SealCertificates))
	}
	if s.Backup {
		read(whole)(token.SealingFiles(from, token.SealBackups))
	}
	return out, failed
}

func readInto(out map[string][]byte, from, file string, change func([]byte) ([]byte, error)) error {
	name, err := filepath.Rel(from, file)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("original keys: %w", err)
	}
	out[name], err = change(b)
	return err
}

func write(name string, content []byte, group int) error {
	if have, err := os.ReadFile(name); err == nil && bytes.Equal(have, content) {
		return writeOwned(name, group, 0o440)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return err
	}
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(next, content, 0o440); err != nil {
		return err
	}
	if err := writeOwned(next, group, 0o440); err != nil {
		return err
	}
	return os.Rename(next, name)
}

func writeOwned(name string, group int, mode fs.FileMode) error {
	if group >= 0 {
		if err := os.Chown(name, -1, group); err != nil {
			return err
		}
	}
	return os.Chmod(name, mode)
}

// removeOthers deletes keys that a process must not have, and creates the directories.
func removeOthers(dir string, want map[string][]byte, group int) error {
	var empty []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			empty = append(empty, path)
			return writeOwned(path, group, 0o750)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if _, ok := want[name]; !ok {
			return os.Remove(path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	slices.Reverse(empty) // contents come first
	for _, d := range empty {
		if left, err := os.ReadDir(d); err == nil && len(left) == 0 {
			_ = os.Remove(d)
		}
	}
	return nil
}
