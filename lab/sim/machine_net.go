package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// network is the bridge of one cloud's machines. Its number n is in the names of everything created for them: bridge,
// interfaces, namespaces, control groups. The lock of a number owns all of them; resources with an unlocked number were
// left behind by a simulator that died.
type network struct {
	n       int
	lock    *os.File
	routers routers // of private networks
}

const (
	networksDir = "/run/prego-machines"
	networks    = 64
	// metadataAddr is where every provider answers a server about itself.
	metadataAddr = "169.254.169.254"
)

func (w *network) host(k int) string    { return fmt.Sprintf("10.99.%d.%d", w.n, k) }
func (w *network) gateway() string      { return w.host(1) }
func (w *network) bridge() string       { return fmt.Sprintf("prego%d", w.n) }
func (w *network) prefix() string       { return fmt.Sprintf("prego-%d-", w.n) }
func (w *network) dir() string          { return filepath.Join(networksDir, strconv.Itoa(w.n)) }
func (w *network) ownerFile() string    { return filepath.Join(w.dir(), "state-dir") }
func numberFile(stateDir string) string { return filepath.Join(stateDir, "network") }

// openNetwork takes a number, after cleaning away what dead simulators left. A cloud
// that had servers before gets its number again, since they keep their addresses.
func openNetwork(stateDir string) (*network, error) {
	if err := SweepMachines(); err != nil {
		return nil, err
	}
	first, last := 0, networks-1
	if b, err := os.ReadFile(numberFile(stateDir)); err == nil {
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", numberFile(stateDir), err)
		}
		first, last = n, n
	}
	for n := first; n <= last; n++ {
		w, err := claimNetwork(n)
		if err != nil {
			return nil, err
		}
		if w == nil {
			continue
		}
		if err := errors.Join(os.WriteFile(w.ownerFile(), []byte(stateDir), 0o600),
			os.WriteFile(numberFile(stateDir), []byte(strconv.Itoa(n)), 0o600), w.up()); err != nil {
			return nil, errors.Join(err, w.close())
		}
		return w, nil
	}
	if first == last {
		return nil, fmt.Errorf("network %s.0/24 of the machines in %s is in use by another simulator",
			strings.TrimSuffix((&network{n: first}).host(0), ".0"), stateDir)
	}
	return nil, fmt.Errorf("all %d networks for machines are in use", networks)
}

// claimNetwork locks a number; it returns nil when another process holds it.
func claimNetwork(n int) (*network, error) {
	w := &network{n: n}
	if err := os.MkdirAll(w.dir(), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(w.dir(), "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, fmt.Errorf("lock network %d: %w", n, err)
	}
	w.lock = f
	return w, nil
}

// SweepMachines removes what simulators left behind that were killed: machines that
// still run, their mounts, loop devices, networks and control groups.
func SweepMachines() error {
	entries, err := os.ReadDir(networksDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var all error
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		w, err := claimNetwork(n)
		if err != nil || w == nil {
			all = errors.Join(all, err)
			continue
		}
		all = errors.Join(all, w.close())
	}
	return all
}

func (w *network) up() error {
	for _, args := range [][]string{
		// Without its own address it takes one of its ports, and another when that goes: machines would look for the
		// old one for half a minute.
		{"link", "add", w.bridge(), "address", w.mac(1), "type", "bridge", "forward_delay", "0"},
		{"address", "add", w.gateway() + "/24", "dev", w.bridge()},
		{"address", "add", metadataAddr + "/32", "dev", w.bridge()},
		{"link", "set", w.bridge(), "up"},
	} {
		if err := run("ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// close cleans away all that has the number, and gives it back.
func (w *network) close() error {
	var stateDir string
	if b, err := os.ReadFile(w.ownerFile()); err == nil {
		stateDir = string(b)
	}
	err := w.clean(stateDir)
	if err == nil {
		err = os.Remove(w.ownerFile())
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(err, w.lock.Close())
}

func (w *network) clean(stateDir string) error {
	err := removeGroups(w.prefix() + "*")
	if stateDir != "" {
		err = errors.Join(err, unmountBelow(stateDir), detachLoopsBelow(stateDir))
	}
	spaces, lerr := os.ReadDir("/run/netns")
	if lerr != nil && !errors.Is(lerr, os.ErrNotExist) {
		err = errors.Join(err, lerr)
	}
	for _, s := range spaces {
		if strings.HasPrefix(s.Name(), w.prefix()) {
			err = errors.Join(err, run("ip", "netns", "delete", s.Name()))
		}
	}
	if _, serr := os.Stat("/sys/class/net/" + w.bridge()); serr == nil {
		err = errors.Join(err, run("ip", "link", "delete", w.bridge()))
	}
	return err
}

// plug gives a machine a network interface with a cable to the bridge, unconfigured, in a separate namespace, and
// returns the namespace's name.
func (w *network) plug(k int) (string, error) {
	space, here := fmt.Sprintf("%s%d", w.prefix(), k), fmt.Sprintf("pg%d-%d", w.n, k)
	w.unplug(k)
	for _, args := range [][]string{
		{"netns", "add", space},
		{"link", "add", here, "type", "veth", "peer", "name", "eth0", "address", w.mac(k), "netns", space},
		{"link", "set", here, "master", w.bridge(), "up"},
	} {
		if err := run("ip", args...); err != nil {
			w.unplug(k)
			return "", err
		}
	}
	return space, nil
}

func (w *network) unplug(k int) {
	space := fmt.Sprintf("%s%d", w.prefix(), k)
	if _, err := os.Stat("/run/netns/" + space); err == nil {
		_ = run("ip", "netns", "delete", space)
	}
	// The kernel removes the cable's end some time after the namespace.
	_ = run("ip", "link", "delete", fmt.Sprintf("pg%d-%d", w.n, k))
}

// mac is the hardware address of machine k, as the provider's look.
func (w *network) mac(k int) string { return fmt.Sprintf("96:00:00:63:%02x:%02x", w.n, k) }

// networkIndex is the inverse of host and mac: the machine's number on its network.
func networkIndex(addr string) (int, error) {
	i := strings.LastIndexByte(addr, '.')
	return strconv.Atoi(addr[i+1:])
}

// run runs a program of this machine to its end; its output is its error.
func run(name string, args ...string) error {
	_, err := runOutput(name, args...)
	return err
}

func runOutput(name string, args ...string) (string, error) {
	out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}
