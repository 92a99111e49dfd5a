package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

func TestPatchWindow(t *testing.T) {
	t.Parallel()
	w, err := NewPatchWindow("0 2 * * 2", 3*time.Hour) // Tuesdays at two
	require.NoError(t, err)
	tuesday := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	for after, open := range map[time.Duration]bool{-time.Second: false, 0: true, time.Hour: true, 3*time.Hour - time.Second: true, 3 * time.Hour: false, 24 * time.Hour: false, 7 * 24 * time.Hour: true} {
		since, is := w.OpenSince(tuesday.Add(after).In(time.FixedZone("", 7200)))
		require.Equal(t, open, is, after)
		if open && after < 24*time.Hour {
			require.Equal(t, tuesday, since)
		}
	}
	never, err := NewPatchWindow("", 0)
	require.NoError(t, err)
	_, is := never.OpenSince(tuesday)
	require.False(t, is)
	for expression, open := range map[string]time.Duration{"0 2 * *": time.Hour, "0 2 * * 2": time.Second, "0 25 * * 2": time.Hour, "@daily": time.Hour, "0 3 * * *": 25 * time.Hour} {
		_, err := NewPatchWindow(expression, open)
		require.Error(t, err, expression)
	}
}

func TestAFleetsPatchWindow(t *testing.T) {
	t.Parallel()
	for schedule, want := range map[string]map[int]int{ // seconds asked for and kept; -1 is refused
		"":            {0: 0, 60: -1},
		PatchNever:    {0: 0, 60: -1},
		"0 2 * * 2":   {0: 14400, 60: 60, 59: -1, 86400: 86400, 86401: -1, -5: -1},
		"0 2 * *":     {0: -1},
		"@daily":      {0: -1},
		"0 2 30 2 *":  {0: 14400},
		"sometimes":   {3600: -1},
		"* * * * * *": {0: -1},
	} {
		for seconds, kept := range want {
			w := FleetPatchWindow{Schedule: schedule, Seconds: seconds}
			if err := w.Validate(); kept == -1 {
				require.Error(t, err, "%q %d", schedule, seconds)
				require.Equal(t, prego.CodeInvalidField, prego.CodeOf(err))
			} else {
				require.NoError(t, err, "%q %d", schedule, seconds)
				require.Equal(t, kept, w.Seconds)
			}
		}
	}
}

func TestWhichPatchWindowsAreOpen(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 24, 2, 30, 0, 0, time.UTC) // a Tuesday
	environment, err := NewPatchWindow("0 2 * * 2", time.Hour)
	require.NoError(t, err)
	fleets := []FleetWindow{
		{"open", FleetPatchWindow{"15 2 * * *", 3600}}, {"closed", FleetPatchWindow{"15 2 * * *", 600}}, {"never", FleetPatchWindow{PatchNever, 0}}, {"broken", FleetPatchWindow{"what", 600}},
	}
	o := PatchWindowsOpen(at, environment, fleets)
	require.Equal(t, at.Add(-30*time.Minute), *o.Since)
	require.Equal(t, map[prego.FleetID]time.Time{"open": at.Add(-15 * time.Minute)}, o.Fleets)
	require.False(t, o.None())
	o = PatchWindowsOpen(at.Add(45*time.Minute-time.Second), environment, fleets)
	require.Nil(t, o.Since)
	require.False(t, o.None(), "a fleet's own outlasts the environment's")
	require.True(t, PatchWindowsOpen(at.Add(45*time.Minute), environment, fleets).None())
	require.True(t, PatchWindowsOpen(at, PatchWindow{}, nil).None())
	require.Equal(t, prego.PatchWaveID("web-20261124-0215"), ToPatch{Unit: "web", Since: at.Add(-15 * time.Minute).In(time.FixedZone("", 3600))}.Wave())
}
