package rooted

import (
	"context"
	_ "embed"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// aptStandIn stands for apt-get, see there.
//
//go:embed testdata/apt-get
var aptStandIn string

const pendingLines = "Inst openssl [3.0.15-1~deb12u1] (3.0.16-1~deb12u1 Debian-Security:12/stable-security [amd64]) []\n" +
	"Inst linux-image-6.1.0-30-amd64 (6.1.124-1 Debian-Security:12/stable-security [amd64])\n"

func patchHost(t *testing.T) *Machine {
	t.Helper()
	h := Here(&host.Host{Root: t.TempDir(), Config: wire.HostConfig{ServerID: agenttest.Server, Role: "app"}})
	for name, text := range map[string]string{aptBinary: aptStandIn, dpkgBinary: "#!/bin/sh\nexit 0\n", host.DpkgStatus: "", "/pending": pendingLines} {
		require.NoError(t, os.MkdirAll(filepath.Dir(h.Path(name)), 0o755))
		require.NoError(t, os.WriteFile(h.Path(name), []byte(text), 0o755))
	}
	return h
}

func touch(t *testing.T, h *Machine, name string) {
	require.NoError(t, os.WriteFile(h.Path(name), nil, 0o600))
}

func verb[T any](t *testing.T, h *Machine, name string) (out T, err error) {
	t.Helper()
	var text strings.Builder
	if err = h.Patch(t.Context(), []string{name}, &text); err == nil {
		require.NoError(t, json.Unmarshal([]byte(text.String()), &out))
	}
	return out, err
}

// TestPatches: missing updates are reported without a change, and installed once.
func TestPatches(t *testing.T) {
	t.Parallel()
	h := patchHost(t)
	touch(t, h, "/kernel")
	r, err := verb[wire.PatchReport](t, h, "report")
	require.NoError(t, err)
	require.Equal(t, 2, r.Pending)
	require.Equal(t, []wire.PackageUpdate{{Name: "linux-image-6.1.0-30-amd64", To: "6.1.124-1"}, {Name: "openssl", From: "3.0.15-1~deb12u1", To: "3.0.16-1~deb12u1"}}, r.Packages)
	require.True(t, r.CheckedAt.IsZero(), "the lists were never fetched")
	require.True(t, r.RebootSince.IsZero())
	asked, err := os.ReadFile(h.Path("/asked"))
	require.NoError(t, err)
	require.NotContains(t, string(asked), " update\n")
	require.Contains(t, string(asked), "--with-new-pkgs --no-remove --no-install-recommends upgrade")
	pins, err := os.ReadFile(h.Path(aptPinsFile))
	require.NoError(t, err)
	require.Equal(t, aptPins, string(pins))

	r, err = verb[wire.PatchReport](t, h, "check")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), r.CheckedAt, time.Minute)
	config, err := os.ReadFile(h.Path(aptConfigFile))
	require.NoError(t, err)
	require.Contains(t, string(config), `Unattended-Upgrade::Automatic-Reboot "false";`)

	done, err := verb[wire.PatchResult](t, h, "apply")
	require.NoError(t, err)
	require.Equal(t, 2, done.Installed)
	require.Zero(t, done.Now.Pending)
	require.False(t, done.Now.RebootSince.IsZero())
	require.Equal(t, "linux-image-amd64", done.Now.RebootFor)
	again, err := verb[wire.PatchResult](t, h, "apply")
	require.NoError(t, err)
	require.Zero(t, again.Installed, "installed packages are not installed again")
	require.False(t, again.Now.RebootSince.IsZero())
	installed, err := os.ReadFile(h.Path("/installed"))
	require.NoError(t, err)
	require.Equal(t, pendingLines, string(installed))
}

// TestPatchesThatFail report the reason, and the rest of the report.
func TestPatchesThatFail(t *testing.T) {
	t.Parallel()
	h := patchHost(t)
	touch(t, h, "/mirror-down")
	r, err := verb[wire.PatchReport](t, h, "check")
	require.NoError(t, err)
	require.Contains(t, r.Failed, "Failed to fetch http://security/InRelease")
	require.Equal(t, 2, r.Pending, "as of before")
	require.True(t, r.CheckedAt.IsZero())
	_, err = verb[wire.PatchResult](t, h, "apply")
	require.ErrorContains(t, err, "Failed to fetch")
	require.NoError(t, os.Remove(h.Path("/mirror-down")))
	touch(t, h, "/broken")
	_, err = verb[wire.PatchResult](t, h, "apply")
	require.ErrorContains(t, err, "returned an error code")
	require.NoError(t, os.Remove(h.Path("/broken")))
	_, err = verb[wire.PatchResult](t, h, "apply")
	require.NoError(t, err, "it can be repeated")

	for _, args := range [][]string{{}, {"apply", "--force"}, {"install"}, {"apply", "openssl"}, {"dist-upgrade"}} {
		require.ErrorContains(t, h.Patch(t.Context(), args, &strings.Builder{}), "may not be called like this", "%v", args)
	}
	require.NoError(t, os.Remove(h.Path(aptBinary)))
	_, err = verb[wire.PatchReport](t, h, "report")
	require.ErrorIs(t, err, host.ErrUnavailable)
}

// TestThePatcherEndsWhatItBegan in spite of SIGTERM, and serves one user only.
func TestThePatcherEndsWhatItBegan(t *testing.T) {
	t.Parallel()
	h := patchHost(t)
	slow := strings.Replace(aptStandIn, "cat pending >>installed", "sleep 0.5; cat pending >>installed", 1)
	require.NoError(t, os.WriteFile(h.Path(aptBinary), []byte(slow), 0o755))
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- NewPatcher(h.Host, slog.New(slog.DiscardHandler)).Run("")(ctx, l) }()
	conn, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, json.NewEncoder(conn).Encode(host.DeviceRequest{Kind: wire.KindPatch, Args: []string{"apply"}}))
	require.Eventually(t, func() bool {
		b, _ := os.ReadFile(h.Path("/asked"))
		return strings.Contains(string(b), "--assume-yes")
	}, 10*time.Second, 5*time.Millisecond)
	stop()
	var answer host.DeviceAnswer
	var result wire.PatchResult
	dec := json.NewDecoder(conn)
	require.NoError(t, dec.Decode(&answer))
	require.Empty(t, answer.Failed)
	require.NoError(t, dec.Decode(&result))
	require.Equal(t, 2, result.Installed)
	require.NoError(t, <-ended)
	require.NoError(t, conn.Close())
}
