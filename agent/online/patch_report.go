package online

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// When an agent reports the security updates that its host lacks.
const (
	// patchLook is how often it looks whether packages changed, which costs two calls of stat.
	patchLook = 5 * time.Second
	// patchEvery is how often the lists of packages are fetched, and the report is sent although nothing changed.
	patchEvery = 24 * time.Hour
	// patchFirst bounds the wait for the first report, so that a fleet does not query its mirrors simultaneously.
	patchFirst = time.Hour
	// patchWithin bounds one report.
	patchWithin = 10 * time.Minute
)

// packageState changes whenever a package does, or asks for a reboot.
type packageState struct{ status, reboot time.Time }

func packagesOf(h *host.Host) (s packageState) {
	if info, err := os.Stat(h.Path(host.DpkgStatus)); err == nil {
		s.status = info.ModTime()
	}
	if info, err := os.Stat(h.Path(host.RebootRequired)); err == nil {
		s.reboot = info.ModTime()
	}
	return s
}

// followPatches reports the security updates that the host lacks: after changes, and once a day. A host without
// packages has nothing to report.
func (a *Agent) followPatches(ctx context.Context, log *slog.Logger) error {
	var seen, told packageState
	var last wire.PatchReport
	var sent time.Time
	fetch := time.Now().Add(time.Duration(rand.Int64N(int64(patchFirst))))
	for a.host.Pause(ctx, patchLook) == nil {
		now := packagesOf(a.host)
		settled := now == seen // packages that are being installed change all the time
		seen = now
		due := time.Now().After(fetch)
		if now.status.IsZero() || !settled || (now == told && !due) {
			continue
		}
		// The executor is the only permitted caller of the process that knows.
		var r wire.PatchReport
		err := askExecutor(ctx, a.executor, fmt.Sprintf("%s?fetch=%t", host.PathPatches, due), patchWithin, &r)
		if due {
			fetch = time.Now().Add(patchEvery)
		}
		told = now
		if err != nil {
			log.Warn("security updates are not known", "error", err.Error())
			continue
		}
		if reflect.DeepEqual(r, last) && time.Since(sent) < patchEvery {
			continue
		}
		s := a.current.Load()
		if err := s.Gateway.PostJSON(ctx, wire.PathPatches, s.ID.Token, r, nil); err != nil {
			log.Warn("security updates could not be reported", "error", err.Error())
			told = packageState{} // next time
			continue
		}
		last, sent = r, time.Now()
	}
	return nil
}
