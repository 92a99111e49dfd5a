package activities

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

const (
	checkTime = 5 * time.Minute
	applyTime = 15 * time.Minute // the longest that a host lets a command run
)

// CheckPatches asks a host which security updates it lacks, before any tenant moves for them.
func (a *Maintenances) CheckPatches(ctx context.Context, id prego.ServerID) error {
	var now server.Patches
	refused, err := a.patch(ctx, id, "check", checkTime, &now)
	if err != nil {
		return err
	}
	if refused == "" {
		refused = now.Failed
	}
	if refused == "" {
		if err := a.Store.TellPatches(ctx, id, now); err != nil {
			return err
		}
	}
	a.hook("patch/checked")
	return a.Store.PatchChecked(ctx, id, now.ToDo(), refused)
}

// PatchServer has a host install the security updates that it lacks. Repeated, it installs the
// missing ones: a started apt always finishes on the host.
func (a *Maintenances) PatchServer(ctx context.Context, id prego.ServerID) error {
	if begins, err := a.Store.PatchBegins(ctx, id); err != nil || !begins {
		return err
	}
	a.hook("patch/begins")
	var done server.Patched
	refused, err := a.patch(ctx, id, "apply", applyTime, &done)
	switch {
	case err != nil:
		return err
	case refused != "":
		return a.Store.PatchRefused(ctx, id, refused)
	}
	a.hook("patch/applied")
	if err := a.Store.TellPatches(ctx, id, done.Now); err != nil {
		return err
	}
	return a.Store.ServerPatched(ctx, id, done)
}

// patch runs a verb on a host. What the host answers, or can't ever answer, is refused; all else
// is an error, and tried again.
func (a *Maintenances) patch(ctx context.Context, id prego.ServerID, verb string, within time.Duration, into any) (refused string, err error) {
	srv, err := a.Store.GetServer(ctx, id)
	if err != nil {
		return "", fromStore(err)
	}
	if a.Hosts == nil {
		return "no host takes commands here", nil
	}
	// A step that is repeated gets the result of the first time.
	d, err := a.Store.LastMaintenance(ctx, id)
	if err != nil {
		return "", permanentIfCoded(err)
	}
	c := server.BenchCommand{
		Kind: string(wire.KindPatch), ServerID: id, Addr: srv.Host, AuditID: fmt.Sprintf("%s-%s-%d-%s", wire.KindPatch, id, d.Number, verb), Timeout: within, Args: []string{verb},
	}
	if activity.IsActivity(ctx) {
		c.WorkflowID = activity.GetInfo(ctx).WorkflowExecution.ID
	}
	out, err := a.Hosts.Bench(ctx, c)
	var ce *server.CommandError
	if errors.As(err, &ce) && ce.Code == wire.CodeOutcomeUnknown {
		c.AuditID += "-" + rand.Text()
		out, err = a.Hosts.Bench(ctx, c)
	}
	switch {
	case errors.As(err, &ce) && ce.ExitCode > 0:
		return strings.TrimSpace(server.EndOf(ce.Stderr, wire.MaxPatchText)), nil
	case err != nil:
		return "", err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return "its host's report can't be read: " + err.Error(), nil //nolint:nilerr // it is the server's failure, and ends its patch
	}
	return "", nil
}
