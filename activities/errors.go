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

// Types of errors that workflows decide on. They are part of histories and never
// change.
const (
	// ErrTypeSuperseded: the row has moved on; stop without touching anything.
	ErrTypeSuperseded = "superseded"
	// ErrTypeCandidate: this type and location is out of stock; try the next.
	ErrTypeCandidate = "candidate_unavailable"
	// ErrTypeGroup: the placement group can take no more; try another.
	ErrTypeGroup = "placement_group_full"
	// ErrTypeQuota: the account is full; await capacity.
	ErrTypeQuota = "account_quota"
	// ErrTypePermanent: the provider or the input will never allow it.
	ErrTypePermanent = "permanent"
	// ErrTypeProvider: the provider failed three times in a row.
	ErrTypeProvider = "provider_unavailable"
	// ErrTypeGone: the server is not there any more.
	ErrTypeGone = "server_gone"
	// ErrTypeContainer: the containers will not start.
	ErrTypeContainer = "container_failed"
)

func permanentError(errType, message string, cause error) error {
	return temporal.NewNonRetryableApplicationError(message, errType, cause)
}

// fromStore turns the store's refusals into errors that are not repeated, and
// leaves what may pass (a database that is away) to the retry policy.
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

// fromInfra sorts a provider's error for the workflow.
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

// keepAlive heartbeats while a long call is under way, so that the death of this
// process is noticed within the heartbeat timeout. stop ends it.
func keepAlive(ctx context.Context) (stop func()) {
	done := make(chan struct{})
	go func() {
		t := time.NewTicker(2 * time.Second)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				activity.RecordHeartbeat(ctx)
			case <-done:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { close(done) }
}
