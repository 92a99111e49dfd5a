package online

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// confirm records for the containers that run jobs whether the gateway still takes this host for what it was
// (wire.ConfirmedPath). Any other failure than a revoked identity changes nothing: an outage of the control plane stops
// no jobs.
func (a *Agent) confirm(confirmed bool, log *slog.Logger) {
	if !slices.Contains(host.RoleServices[a.host.Config.Role], "bench") {
		return
	}
	name := a.host.Path(wire.ConfirmedPath)
	_, err := os.Lstat(name)
	if err == nil == confirmed {
		return
	}
	if confirmed {
		err = os.MkdirAll(a.host.Path(wire.ConfirmedDir), 0o755)
		if err == nil {
			err = host.WriteFile(name, nil, 0o644)
		}
	} else if err = os.Remove(name); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		log.Error("jobs are not held or released", "confirmed", confirmed, "error", err.Error())
		return
	}
	log.Info("jobs may run", "confirmed", confirmed)
}
