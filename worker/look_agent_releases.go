package worker

import (
	"context"

	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// AgentReleases rolls releases of the agent out. Agents fetch them: the only decision is which server is offered one.
type AgentReleases struct {
	Store  *store.Store
	Limits server.AgentReleaseLimits
}

// LookAtAgentReleases continues the release of the agent that is being rolled out.
func LookAtAgentReleases(a *AgentReleases) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		changed, err := a.Store.StepAgentRelease(ctx, a.Limits)
		return ops.LookResult{Found: changed}, err
	}
}
