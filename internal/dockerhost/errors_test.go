package dockerhost

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// TestWhichRefusalsAreLasting: repeating them changes nothing.
func TestWhichRefusalsAreLasting(t *testing.T) {
	t.Parallel()
	pulling := func(err error) error { return fmt.Errorf("%w web:1: %w", errPull, err) }
	for _, tc := range []struct {
		err     error
		lasting bool
	}{
		{pulling(&jsonstream.Error{Message: "manifest unknown"}), true},
		{pulling(&jsonstream.Error{Message: "pull access denied for web"}), true},
		{pulling(&jsonstream.Error{Message: "Get \"https://r.example/v2/\": dial tcp: i/o timeout"}), false},
		{pulling(cerrdefs.ErrInternal.WithMessage("dial tcp: lookup r.example: no such host")), false},
		{pulling(cerrdefs.ErrInternal.WithMessage("unauthorized: authentication required")), true},
		{pulling(cerrdefs.ErrInvalidArgument.WithMessage("specifying multiple platforms is not yet supported")), true},
		{cerrdefs.ErrInvalidArgument.WithMessage("invalid reference format"), true},
		{cerrdefs.ErrNotFound.WithMessage("No such image: web:1"), true},
		{cerrdefs.ErrInternal.WithMessage("failed to set up container networking"), true},
		{cerrdefs.ErrInternal.WithMessage("dial unix /run/containerd/containerd.sock: connection refused"), false},
		{cerrdefs.ErrUnavailable.WithMessage("starting"), false},
		{cerrdefs.ErrConflict.WithMessage("removal of container web is already in progress"), false},
		{&tls.CertificateVerificationError{Err: errors.New("unknown authority")}, true},
		{context.DeadlineExceeded, false},
		{io.ErrUnexpectedEOF, false},
	} {
		var done *server.ContainerError
		require.Equal(t, tc.lasting, errors.As(classify("web", tc.err), &done), "%v", tc.err)
	}
}

// TestImagesThatTheClientRefuses: no engine is called, and the refusal is permanent.
func TestImagesThatTheClientRefuses(t *testing.T) {
	t.Parallel()
	hosts := New(Config{
		TLS: func(prego.ServerID) *tls.Config { return &tls.Config{} }, Port: 1, CheckAddr: func(string) error { return nil },
	})
	h, err := hosts.Host("app-1", "127.0.0.1")
	require.NoError(t, err)
	defer h.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, image := range []string{
		"r.example/Acme/app:1", "https://r.example/x", "nginx:", "a//b", "library/", "nginx:latest:2", "nginx:a@b", "nginx@sha256:ABCDEF",
	} {
		var done *server.ContainerError
		require.ErrorAs(t, h.Pull(ctx, image), &done, image)
		require.Equal(t, image, done.Container)
		require.Contains(t, done.Message, "must be an image")
	}
	var done *server.ContainerError
	require.False(t, errors.As(h.Pull(ctx, "nginx:1"), &done), "the engine may come back")
}
