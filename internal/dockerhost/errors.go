package dockerhost

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// passing are error texts of an engine that is stopping or starting: it reports them as permanent, but they pass.
var passing = []string{
	"context canceled", "shutting down", "connection refused", "connection reset", "transport is closing",
	"transport: error", "connection error",
	"ttrpc: closed", "unexpected eof", "is already in progress", "is marked for removal", "i/o timeout", "tls handshake timeout",
	"client connection is closing", "containerd.sock", "no such file or directory: unknown: /run/containerd",
}

// lasting are error texts in a pull's stream, which carries no codes. Retrying them is pointless.
var lasting = []string{
	"not found", "manifest unknown", "pull access denied", "unauthorized", "denied:", "no basic auth credentials",
	"authentication required", "incorrect username or password", "no matching manifest", "invalid reference",
	"unsupported media type",
}

func containsAny(err error, texts []string) bool {
	s := strings.ToLower(err.Error())
	return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(s, t) })
}

// classify identifies permanent errors: a peer that is not the host, and errors of the engine itself. An unreachable
// engine may come back.
func classify(what string, err error) error {
	var done *server.ContainerError
	if err == nil || errors.As(err, &done) {
		return err
	}
	permanent := &server.ContainerError{Container: what, Message: prego.Redact(err.Error())}
	retry := fmt.Errorf("container %s: %w", what, err)
	var cert *tls.CertificateVerificationError
	var op *net.OpError
	var stream *jsonstream.Error
	switch {
	case errors.As(err, &cert), errors.As(err, &op) && op.Op == "remote error":
		permanent.Message = "the host and the control plane do not accept each other's certificates"
		return permanent
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.ErrUnexpectedEOF),
		client.IsErrConnectionFailed(err), cerrdefs.IsUnavailable(err), containsAny(err, passing):
		return retry
	case errors.As(err, &stream), errors.Is(err, errPull) && cerrdefs.IsInternal(err):
		if containsAny(err, lasting) {
			return permanent
		}
		return retry // the engine reports an unreachable registry as internal
	case cerrdefs.IsInternal(err), cerrdefs.IsInvalidArgument(err), cerrdefs.IsNotFound(err),
		cerrdefs.IsUnauthorized(err), cerrdefs.IsPermissionDenied(err):
		return permanent
	}
	return retry
}

// errPull marks failures of pulling an image.
var errPull = errors.New("pull")
