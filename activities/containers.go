package activities

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Containers keeps a role's containers on a host as declared, over the Docker
// Remote API. A permanent failure is a *server.ContainerError.
type Containers interface {
	StartContainers(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role) error
	// CheckContainers reports what differs from the declaration, and changes nothing.
	CheckContainers(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role) ([]server.ContainerDrift, error)
	// RepairContainers reports what differed from the declaration, and restores it.
	RepairContainers(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role) ([]server.ContainerDrift, error)
}

// fromContainers makes permanent errors non-retryable.
func fromContainers(err error) error {
	if ce, ok := errors.AsType[*server.ContainerError](err); ok {
		return permanentError(ErrTypeContainer, ce.Error(), nil)
	}
	return err
}

// ContainerReport is the result for one server.
type ContainerReport struct {
	ServerID prego.ServerID          `json:"server_id"`
	Skipped  string                  `json:"skipped,omitempty"` // why it was not checked
	Drift    []server.ContainerDrift `json:"drift,omitempty"`
}

func (r ContainerReport) summary() string {
	out := make([]string, len(r.Drift))
	for i, d := range r.Drift {
		out[i] = d.String()
	}
	return prego.Redact(strings.Join(out, "; "))
}

// CheckContainers compares an active server's containers with their declaration. A
// difference is put on the timeline, at most once an hour while it stays the same.
func (a *Servers) CheckContainers(ctx context.Context, serverID prego.ServerID) (ContainerReport, error) {
	report, st, err := a.compareContainers(ctx, serverID)
	if err != nil || len(report.Drift) == 0 {
		return report, err
	}
	for _, d := range report.Drift {
		a.Metrics.Drift.WithLabelValues(string(d.Kind)).Inc()
	}
	sum := sha256.Sum256([]byte(report.summary()))
	return report, a.Store.AddEvent(ctx, server.Event{
		ServerID: serverID, Step: server.StepContainerDrift, Attempt: st.Attempt, Actor: prego.ActorSystem, Message: report.summary(),
	}, fmt.Sprintf("%s/%s/%s", server.StepContainerDrift, hex.EncodeToString(sum[:8]), st.Now.UTC().Format("2006010215")))
}

// CompareContainers is CheckContainers without its event.
func CompareContainers(a *Servers) func(context.Context, prego.ServerID) (ContainerReport, error) {
	return func(ctx context.Context, serverID prego.ServerID) (ContainerReport, error) {
		report, _, err := a.compareContainers(ctx, serverID)
		return report, err
	}
}

func (a *Servers) compareContainers(ctx context.Context, serverID prego.ServerID) (report ContainerReport, st server.ProvisionState, err error) {
	report.ServerID = serverID
	st, err = a.Store.ProvisionState(ctx, serverID)
	switch {
	case err != nil:
		err = fromStore(err)
	case st.Status != server.Active:
		report.Skipped = "the server is " + string(st.Status)
	case st.Purpose == server.PurposeImportExisting:
		report.Skipped = "the server was imported with its own containers"
	default:
		report.Drift, err = a.Containers.CheckContainers(ctx, serverID, st.Host, st.Role)
		err = fromContainers(err)
	}
	return report, st, err
}

const (
	driftParallel = 4
	driftPerHost  = 10 * time.Second
	driftPerRun   = time.Minute
)

// Turn picks the servers whose containers a run checks: consecutive windows of n over the sorted
// ids, chosen by the run's number. Each server is checked again only after all others, on any
// worker and without state.
func Turn(ids []string, runID int64, n int) []string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	if n <= 0 || len(ids) <= n {
		return ids[:min(len(ids), max(n, 0))]
	}
	windows := (len(ids) + n - 1) / n
	from := int(runID%int64(windows)) * n
	return ids[from:min(from+n, len(ids))]
}

// checkContainers checks the containers of some active servers. Hosts that can't be
// reached are counted and left to the sweep of silent agents.
func (a *Reconciler) checkContainers(ctx context.Context, active []string, result *ReconcileResult) {
	if a.Check == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, driftPerRun)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, driftParallel)
	for _, id := range Turn(active, result.RunID, a.DriftHosts) {
		slots <- struct{}{} // before it begins, so that they begin in order
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, driftPerHost)
			defer cancel()
			report, err := a.Check(ctx, prego.ServerID(id))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				result.ContainersChecked++
				result.ContainersUnknown++
				a.Log.Warn("containers not checked", zap.String("server_id", id), zap.String("error", prego.Redact(err.Error())))
			case report.Skipped != "":
			default:
				result.ContainersChecked++
				if len(report.Drift) > 0 {
					result.Drift = append(result.Drift, report)
					a.Log.Warn("containers are not as declared", zap.String("server_id", id), zap.String("drift", report.summary()))
				}
			}
		})
	}
	wg.Wait()
	slices.SortFunc(result.Drift, func(x, y ContainerReport) int { return strings.Compare(string(x.ServerID), string(y.ServerID)) })
}
