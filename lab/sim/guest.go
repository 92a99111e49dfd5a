package sim

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// Guest is what a host finds that is a function of the program (Config.Guest).
type Guest struct {
	ID         int64
	Name, Addr string
	// Files are what its user_data has cloud-init write, by path; nil if it writes nothing.
	Files map[string]string
	// First is false after a reboot: cloud-init does not run again.
	First bool
	// Silent, WithoutAgent and WithoutCloudInit are the faults that the host was planned with.
	Silent, WithoutAgent, WithoutCloudInit bool
}

// Within serves the cloud without listening, for a program that has everything in one
// process: hosts are functions, questions about names are asked with Answer, and nothing is saved. Close it with CloseWithin.
func (s *Sim) Within(ctx context.Context) (http.Handler, error) {
	if s.cfg.Guest == nil {
		return nil, errors.New("sim: without sockets, hosts must be functions: Guest is required")
	}
	s.base = [2]byte{64, 0}
	s.ctx, s.stop = context.WithCancel(ctx)
	return s.routes(), s.haveZones()
}

// CloseWithin ends everything that runs in a cloud that does not listen.
func (s *Sim) CloseWithin() {
	s.stop()
	s.work.Wait()
}

// guestHost is a host that is a function of the program.
type guestHost struct {
	sim   *Sim
	guest Guest
	err   error // of its user_data

	mu    sync.Mutex
	press context.CancelCauseFunc
}

func (s *Sim) newGuestHost(srv *server, plan hostFaults) *guestHost {
	h := &guestHost{sim: s, guest: Guest{
		ID: srv.ID, Name: srv.Name, Addr: s.address(srv), First: !srv.Booted, Silent: plan.stopHeartbeats,
		WithoutAgent: plan.withoutAgent, WithoutCloudInit: plan.noCloudInit,
	}}
	h.guest.Files, h.err = filesOf(srv.UserData)
	return h
}

// filesOf are the files of a user_data.
func filesOf(userData string) (map[string]string, error) {
	doc, err := decodeUserData(userData)
	if err != nil {
		return nil, err
	}
	var cc cloudConfig
	if err := yaml.Unmarshal(doc, &cc); err != nil {
		return nil, fmt.Errorf("user_data: %w", err)
	}
	files := map[string]string{}
	for _, f := range cc.WriteFiles {
		content, err := decodeContent(f.Content, f.Encoding)
		if err != nil {
			return nil, fmt.Errorf("write_files %s: %w", f.Path, err)
		}
		files[filepath.Clean(f.Path)] = string(content)
	}
	return files, nil
}

func (h *guestHost) run(ctx context.Context) error {
	for {
		boot, end := context.WithCancelCause(ctx)
		h.mu.Lock()
		h.press = end
		h.mu.Unlock()
		if h.err == nil {
			h.sim.cfg.Guest(boot, h.guest)
		}
		<-boot.Done()
		end(nil)
		if !errors.Is(context.Cause(boot), errRestart) {
			return nil
		}
		h.guest.First = false
	}
}

func (h *guestHost) shutdown() error { return h.endBoot(nil) }
func (h *guestHost) restart() error  { return h.endBoot(errRestart) }

func (h *guestHost) endBoot(why error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.press == nil {
		return fmt.Errorf("host %d is off", h.guest.ID)
	}
	h.press(why)
	return nil
}

func (h *guestHost) signal(string, syscall.Signal) error {
	return errors.New("a host that is a function has no processes")
}
func (h *guestHost) info() HostInfo                { return HostInfo{Phase: phaseRunning} }
func (*guestHost) attach(int64, string) error      { return nil }
func (*guestHost) detach(int64) error              { return nil }
func (*guestHost) connect(privateNIC) error        { return nil }
func (*guestHost) disconnect(int64) error          { return nil }
func (*guestHost) readdress(int64, []string) error { return nil }
func (h *guestHost) consoleFile() string {
	return filepath.Join(h.sim.hostDir(h.guest.ID), consoleName)
}
func (*guestHost) erase() error          { return nil }
func (*guestHost) snapshot(string) error { return nil }
func (*guestHost) restore(string) error  { return nil }
