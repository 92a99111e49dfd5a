package ops

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEstimatesAreMeasured(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	drain := Progress{
		Kind: "drain", Name: "app-3", State: "moving", Unit: "tenants moved", Done: 2, Total: 7, Running: true,
		Since: now.Add(-72 * time.Second), Current: []ProgressPart{{Name: "acme-eu", State: "copying"}},
	}
	require.Equal(t, "app-3 is being emptied: 2 of 7 tenants moved, acme-eu copying", drain.Message())
	require.Equal(t, now.Add(3*time.Minute), *drain.ExpectedAt(now), "36 seconds for each of five")
	for name, change := range map[string]func(*Progress){
		"nothing is done yet":    func(p *Progress) { p.Done = 0 },
		"all is done":            func(p *Progress) { p.Done = 7 },
		"it waits":               func(p *Progress) { p.Running = false },
		"steps differ in length": func(p *Progress) { p.Unit = "steps" },
		"nothing is counted":     func(p *Progress) { p.Total = 0 },
		"a clock is behind":      func(p *Progress) { p.Since = now.Add(time.Second) },
	} {
		p := drain
		change(&p)
		require.Nil(t, p.ExpectedAt(now), name)
	}
	drain.Running, drain.State = false, "waiting"
	require.Equal(t, "app-3 is being emptied: 2 of 7 tenants moved, waiting, acme-eu copying", drain.Message())
	move := Progress{Kind: "move", Name: "acme-eu", State: "copying", Unit: "steps", Done: 1, Total: 4, Running: true}
	require.Equal(t, "acme-eu is moving: copying", move.Message())
	require.Equal(t, "acme-eu is being restored", Progress{Kind: "restore", Name: "acme-eu", Running: true}.Message())
}
