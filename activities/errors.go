package activities

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Types of errors that workflows decide on. They are recorded in histories and must
// never change.
const (
	// ErrTypeSuperseded: the row has moved on; stop without touching anything.
	ErrTypeSuperseded = "superseded"
	// ErrTypeMoving: the tenant's site is held while it moves, or can't be held yet; try again.
	ErrTypeMoving = "tenant_moving"
	// ErrTypeCandidate: this type is out of stock in this location; try the next
	// candidate.
	ErrTypeCandidate = "candidate_unavailable"
	// ErrTypeGroup: the placement group is full; try another.
	ErrTypeGroup = "placement_group_full"
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

func permanentError(errType, message string, cause error) error {
	return temporal.NewNonRetryableApplicationError(message, errType, cause)
}

// fromStore makes the store's refusals non-retryable, and leaves errors that may pass
// (a database outage) to the retry policy.
func fromStore(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, server.ErrSuperseded):
		return permanentError(ErrTypeSuperseded, err.Error(), nil)
	case prego.CodeOf(err) == prego.CodeServerNotFound:
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
		if ie.Code == "placement_error" {
			return permanentError(ErrTypeGroup, ie.Error(), nil)
		}
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

// keepAlive heartbeats during a long call, so that the death of this process is noticed
// within the heartbeat timeout. stop ends it. Outside
// of an activity there is nothing to heartbeat.
func keepAlive(ctx context.Context) (stop func()) {
	return keepAliveWith(ctx, func() []any { return nil })
}

// keepAliveWith is keepAlive with what a repeated step goes on from.
func keepAliveWith(ctx context.Context, details func() []any) (stop func()) {
	if !activity.IsActivity(ctx) {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		t := time.NewTicker(2 * time.Second)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				activity.RecordHeartbeat(ctx, details()...)
			case <-done:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { close(done) }
}
