package activities

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// Types of errors that workflows decide on. They are recorded in histories and must
// never change.
const (
	// ErrTypeSuperseded: the row has moved on; stop without touching anything.
	ErrTypeSuperseded = "superseded"
	// ErrTypeMoving: the tenant's site is held while it moves, or can't be held yet; try again.
	ErrTypeMoving = "tenant_moving"
	// ErrTypeCandidate: the provider does not have what was asked for now.
	ErrTypeCandidate = "candidate_unavailable"
	// ErrTypeQuota: the provider account's limit is reached; wait for capacity.
	ErrTypeQuota = "account_quota"
	// ErrTypePermanent: the provider or the input will never allow it.
	ErrTypePermanent = "permanent"
	// ErrTypeProvider: the provider failed three times in a row.
	ErrTypeProvider = "provider_unavailable"
	// ErrTypeGone: the server no longer exists.
	ErrTypeGone = "server_gone"
	// ErrTypeContainer: the containers will not start.
	ErrTypeContainer = "container_failed"
)

// Error types of tenants' steps, in addition to the servers' types.
const (
	// ErrTypePlacement: no placement can ever satisfy the request.
	ErrTypePlacement = "placement_impossible"
	// ErrTypeCommand: a command on a host failed permanently.
	ErrTypeCommand = "command_failed"
	// ErrTypeSiteUpdating: a release has the site offline.
	ErrTypeSiteUpdating = "site_updating"
	// ErrTypeFleetFull: no fleet has room for the server that is needed.
	ErrTypeFleetFull = "fleet_full"
)

func permanentError(errType, message string, cause error) error {
	return temporal.NewNonRetryableApplicationError(message, errType, cause)
}

// fromStore makes the store's refusals non-retryable, and leaves errors that may pass
// (a database outage) to the retry policy.
func fromStore(err error) error {
	if errors.Is(err, server.ErrSuperseded) {
		return permanentError(ErrTypeSuperseded, err.Error(), nil)
	}
	switch prego.CodeOf(err) {
	case prego.CodeServerNotFound, prego.CodeTenantNotFound, prego.CodeGoldenImageNotFound:
		return permanentError(ErrTypePermanent, err.Error(), nil)
	}
	return err
}

// fromInfra maps a provider's error to an error type.
func fromInfra(err error) error {
	var ie *server.InfraError
	if err == nil || !errors.As(err, &ie) {
		return err
	}
	switch ie.Class {
	case server.InfraNext:
		return permanentError(ErrTypeCandidate, ie.Error(), nil)
	case server.InfraQuota:
		return permanentError(ErrTypeQuota, ie.Error(), nil)
	case server.InfraNotFound:
		return permanentError(ErrTypeGone, ie.Error(), nil)
	case server.InfraForeign, server.InfraPermanent:
		return permanentError(ErrTypePermanent, ie.Error(), nil)
	case server.InfraAttempt:
		return permanentError(ErrTypeSuperseded, ie.Error(), nil)
	case server.InfraThrottled, server.InfraRetry, server.InfraAmbiguous:
		return temporal.NewApplicationErrorWithOptions(ie.Error(), ErrTypeProvider, temporal.ApplicationErrorOptions{NextRetryDelay: ie.RetryAfter})
	}
	return err
}

// isRefusal reports whether an error is a refusal that repeating alone does not end: the provider's, or that of a
// resource which holds data. A freeze ends all deletions, and is reported once.
func isRefusal(err error) bool {
	if held, ok := errors.AsType[*store.Held](err); ok {
		return held.Code != prego.CodeFrozen
	}
	if ie, ok := errors.AsType[*server.InfraError](err); ok {
		return isDefinite(ie.Class)
	}
	app, ok := errors.AsType[*temporal.ApplicationError](err)
	return ok && slices.Contains([]string{ErrTypePermanent, ErrTypeQuota, ErrTypeCandidate}, app.Type())
}

// noteRefusal records a refusal on the row of what it concerns.
func noteRefusal(ctx context.Context, log *zap.Logger, err error, note func(ctx context.Context, why string) error) {
	if isRefusal(err) {
		noteWhy(ctx, log, err, note)
	}
}

// noteWhy records a step's error on the row that waits while the step is repeated. The end of its time does not prevent
// that; the error of a step that was cancelled or is void is not recorded.
func noteWhy(ctx context.Context, log *zap.Logger, err error, note func(ctx context.Context, why string) error) {
	var app *temporal.ApplicationError
	switch {
	case err == nil, errors.Is(ctx.Err(), context.Canceled):
		return
	case errors.As(err, &app):
		if app.Type() == ErrTypeSuperseded {
			return
		}
		err = errors.New(app.Message())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteFor)
	defer cancel()
	if failed := note(ctx, err.Error()); failed != nil { // the next repetition does it
		log.Warn("the error of a repeated step is not on its row",
			zap.String("error", prego.Redact(err.Error())), zap.Error(failed))
	}
}

// noteFor bounds how long recording an error may take.
const noteFor = 5 * time.Second

// Attempts collects the errors of steps that don't depend on each other.
type Attempts []error

// OK reports whether a step succeeded, and keeps its error.
func (t *Attempts) OK(err error) bool {
	if err != nil {
		*t = append(*t, err)
	}
	return err == nil
}

// TooMany reports that so many have failed that no single thing is the reason, such as while Temporal is away: the
// next look tries the rest.
func (t Attempts) TooMany() bool { return len(t) >= MostFailed }

// Each yields the items of a list until too many have failed.
func Each[T any](t *Attempts, of []T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, x := range of {
			if t.TooMany() || !yield(x) {
				return
			}
		}
	}
}

// waitOutside limits how long one look waits for hosts and authorities in turn; the next one continues.
const waitOutside = 20 * time.Second

// MostFailed is how many failures in one look are of the things themselves.
const MostFailed = 10

// Err is their error: a single one as it is, since its type decides whether Temporal repeats the step.
func (t Attempts) Err() error {
	if len(t) == 1 {
		return t[0]
	}
	return errors.Join(t...)
}

// permanentIfCoded makes the store's refusals non-retryable.
func permanentIfCoded(err error) error {
	if prego.CodeOf(err) != prego.CodeInternal {
		return permanentError(ErrTypePermanent, err.Error(), nil)
	}
	return err
}

// because is an error whose type is the reason that the backup's row then gives.
func because(permanent bool, reason prego.Reason, message string) error {
	return temporal.NewApplicationErrorWithOptions(message, string(reason), temporal.ApplicationErrorOptions{NonRetryable: permanent})
}

// verbFailed matches the code that a verb of the host's ends with.
var verbFailed = regexp.MustCompile(`(?:site|volume): (disk_full|backup_missing|backup_unreadable|digest_mismatch|restore_incomplete|site_missing|too_many_files|freeze_too_long|volume_missing|interrupted|data_unsupported|data_differs): [^\n]*`)

// verbReason gives a command's failure the reason that the host named.
func verbReason(err error) error {
	var app *temporal.ApplicationError
	if m := verbFailed.FindStringSubmatch(fmt.Sprint(err)); m != nil && errors.As(err, &app) {
		return because(app.NonRetryable(), prego.Reason(m[1]), m[0])
	}
	return err
}

// ofStorage gives an error of the storage its reason.
func ofStorage(err error) error {
	switch tenant.StorageClassOf(err) {
	case "":
		return err
	case tenant.StorageRefused, tenant.StorageGone:
		return because(false, tenant.ReasonStorageRefused, err.Error())
	case tenant.StorageExpired:
		return because(false, tenant.ReasonURLExpired, err.Error())
	case tenant.StorageThrottled, tenant.StorageUnreachable:
	}
	return because(false, tenant.ReasonStorageAway, err.Error())
}

// fromCommand makes a host's refusals that it would repeat non-retryable.
func fromCommand(err error) error {
	var ce *server.CommandError
	if !errors.As(err, &ce) {
		return err
	}
	if ce.Permanent {
		return permanentError(ErrTypeCommand, ce.Error(), nil)
	}
	return temporal.NewApplicationError(ce.Error(), ErrTypeCommand)
}
