package rooted

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// agentSaying is a program that prints its version, as an agent does, and its name.
func agentSaying(version string) []byte { return []byte("#!/bin/echo " + version + "\n") }

type updaterBundle struct {
	*Updater
	t   *testing.T
	key ed25519.PrivateKey
}

func updaterSetup(t *testing.T, trial time.Duration) updaterBundle {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	h := &host.Host{Root: t.TempDir(), Config: wire.HostConfig{}}
	require.NoError(t, os.MkdirAll(filepath.Dir(h.Path(wire.AgentBinary)), 0o755))
	require.NoError(t, os.WriteFile(h.Path(wire.AgentBinary), agentSaying("v1"), 0o755))
	u, err := NewUpdater(h, []string{base64.StdEncoding.EncodeToString(public)}, trial, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return updaterBundle{u, t, key}
}

// offer hands a release over, with a program.
func (b updaterBundle) offer(version string, serial int64, change func(*wire.AgentUpdate), key ed25519.PrivateKey, body []byte) host.UpdateAnswer {
	b.t.Helper()
	sum := sha256.Sum256(agentSaying(version))
	u := wire.AgentUpdate{Version: version, Serial: serial, SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(agentSaying(version))), Arch: runtime.GOARCH}
	if change != nil {
		change(&u)
	}
	signed, err := wire.SignAgentUpdate(u, key)
	require.NoError(b.t, err)
	return b.answer(b.t.Context(), host.UpdateRequest{Offer: &signed}, bytes.NewReader(body))
}

// TestReleasesThatAreRefused: the program that is there stays.
func TestReleasesThatAreRefused(t *testing.T) {
	t.Parallel()
	b := updaterSetup(t, time.Minute)
	_, stranger, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		answer host.UpdateAnswer
		reason string
	}{
		"a stranger's":         {b.offer("v2", 5, nil, stranger, agentSaying("v2")), "no key that is trusted here"},
		"another architecture": {b.offer("v2", 5, func(u *wire.AgentUpdate) { u.Arch = "pdp11" }, b.key, agentSaying("v2")), "it is for pdp11"},
		"another program":      {b.offer("v2", 5, nil, b.key, agentSaying("v3")), "differs from the signed one"},
		"half of it":           {b.offer("v2", 5, nil, b.key, agentSaying("v2")[:4]), "only 4 of"},
		"another version":      {b.offer("v2", 5, nil, b.key, agentSaying("v2")), "it reports version"},
	} {
		require.Equal(t, wire.UpdateRefused, c.answer.Status, name)
		require.Contains(t, c.answer.Reason, c.reason, name)
		require.False(t, c.answer.Swapped, name)
	}
	text, err := os.ReadFile(b.host.Path(wire.AgentBinary))
	require.NoError(t, err)
	require.Equal(t, agentSaying("v1"), text)
	require.NoFileExists(t, b.host.Path(wire.AgentBinary+".new"))
	old := b.offer("v2", 4, nil, b.key, agentSaying("v2"))
	require.Contains(t, old.Reason, "it was signed before 5")
	_, err = NewUpdater(b.host, []string{"no key"}, time.Minute, slog.New(slog.DiscardHandler))
	require.Error(t, err)
}

// TestATrialOutlivesItsProcess: the next process after a crash or a reboot continues the trial.
func TestATrialOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	b := updaterSetup(t, time.Minute)
	now, old := b.host.Path(wire.AgentBinary), b.host.Path(oldAgent)
	begin := func() {
		t.Helper()
		require.NoError(t, os.Link(now, old))
		require.NoError(t, os.WriteFile(now+".new", agentSaying("v2"), 0o755))
		require.NoError(t, os.Rename(now+".new", now))
		b.keep(updateState{UpdateReport: wire.UpdateReport{Serial: 7, Status: wire.UpdateTrying}, Version: "v2", Until: time.Now().Add(-time.Second)})
	}
	begin()
	next, err := NewUpdater(b.host, nil, time.Minute, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Equal(t, wire.UpdateTrying, next.answer(t.Context(), host.UpdateRequest{Heard: "v1"}, nil).Status, "another one is heard of")
	require.Contains(t, b.offer("v3", 8, nil, b.key, agentSaying("v3")).Reason, "version v2 is being tried")
	next.Undo()
	text, err := os.ReadFile(now)
	require.NoError(t, err)
	require.Equal(t, agentSaying("v1"), text)
	said := next.answer(t.Context(), host.UpdateRequest{Heard: "v1"}, nil)
	require.Equal(t, wire.UpdateReport{Serial: 7, Status: wire.UpdateBack, Reason: "the host was started again while version v2 was tried"}, said.UpdateReport)
	again, err := NewUpdater(b.host, nil, time.Minute, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Equal(t, said, again.answer(t.Context(), host.UpdateRequest{}, nil), "it is written down")
}
