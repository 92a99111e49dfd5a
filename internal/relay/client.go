package relay

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Client is the API's side: a Keyholder that asks any available worker.
type Client struct {
	url   string
	http  *http.Client
	log   *zap.Logger
	pause time.Duration // before another worker is asked
}

var _ Keyholder = (*Client)(nil)

// attempts covers workers that are being replaced: a shared name leads to another one.
const attempts = 4

// NewClient calls the workers at a URL, whose host name they may share.
func NewClient(url string, config *tls.Config, log *zap.Logger) *Client {
	return &Client{url: strings.TrimSuffix(url, "/"), log: log, pause: 500 * time.Millisecond, http: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			TLSClientConfig: config, DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second,
			// Each connection goes to one worker. They are closed soon, so that all workers are used.
			IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 8, ResponseHeaderTimeout: silentFor,
		},
	}}
}

// cutOff means that no worker answered, or that an answer was cut off.
type cutOff struct{ err error }

func (c *cutOff) Error() string { return "no worker answers: " + c.err.Error() }

func (c *cutOff) Unwrap() error { return c.err }

// call sends a request, and repeats it if no worker answers completely. begun reports whether it can no longer be
// repeated; nil means it always can.
func (c *Client) call(
	ctx context.Context, path string, in request, begun func() bool, each func(stream, line string) error,
) (message, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return message{}, fmt.Errorf("relay: %w", err)
	}
	for i := 1; ; i++ {
		end, err := c.once(ctx, path, body, each)
		var cut *cutOff
		switch {
		case err == nil:
			return end, end.Failure.err()
		case ctx.Err() != nil:
			return message{}, fmt.Errorf("relay: %w", ctx.Err())
		case !errors.As(err, &cut):
			c.log.Error("a worker can't be asked", zap.String("path", path), zap.Error(err))
			return message{}, err
		case begun != nil && begun():
			return message{}, err
		case i == attempts:
			c.log.Warn("no worker answers", zap.String("path", path), zap.Error(err))
			return message{}, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(c.pause):
		}
	}
}

// once sends a request to one worker.
func (c *Client) once(
	ctx context.Context, path string, body []byte, each func(stream, line string) error,
) (message, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return message{}, fmt.Errorf("relay: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		if isCertificateError(err) {
			return message{}, &server.CommandError{
				Code: server.CommandMistrusted, Permanent: true,
				Message: "the worker and the API do not accept each other's certificates",
			}
		}
		return message{}, &cutOff{err}
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return message{}, fmt.Errorf("relay: the worker answered %s: it may be of another version", resp.Status)
	}
	silent := time.AfterFunc(silentFor, cancel)
	defer silent.Stop()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxMessage)
	for lines.Scan() {
		silent.Reset(silentFor)
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return message{}, &cutOff{err} // half a message
		}
		if m.End {
			return m, nil
		}
		if m.Line == nil {
			continue
		}
		if err := each(m.Stream, *m.Line); err != nil {
			return message{}, err
		}
	}
	return message{}, &cutOff{errors.Join(errors.New("the answer ended early"), lines.Err())}
}

// isCertificateError reports whether one side rejected the other's certificate.
func isCertificateError(err error) bool {
	var cert *tls.CertificateVerificationError
	var op *net.OpError
	return errors.As(err, &cert) || (errors.As(err, &op) && op.Op == "remote error")
}

// Run runs a command on a host. If its worker is lost, another one joins it with the same audit id, and lines already
// seen are skipped.
func (c *Client) Run(
	ctx context.Context, addr string, cmd server.Command, timeout time.Duration, onLine func(stream, line string),
) (server.CommandOutcome, error) {
	seen, again := map[string]int{}, map[string]int{}
	in := request{ServerID: cmd.ServerID, Addr: addr, Command: &cmd, Timeout: timeout}
	end, err := c.call(ctx, pathRun, in, func() bool { clear(again); return false }, func(stream, line string) error {
		if again[stream]++; again[stream] > seen[stream] {
			seen[stream] = again[stream]
			onLine(stream, line)
		}
		return nil
	})
	if cut, ok := errors.AsType[*cutOff](err); ok {
		message := prego.Redact(cut.Error())
		err = &server.CommandError{Kind: cmd.Kind, Code: server.CommandUnreachable, Message: message}
	}
	if err != nil || end.Outcome == nil {
		return server.CommandOutcome{}, err
	}
	return *end.Outcome, nil
}

// ListContainers lists a host's containers.
func (c *Client) ListContainers(
	ctx context.Context, serverID prego.ServerID, addr string,
) ([]server.ContainerInfo, error) {
	end, err := c.call(ctx, pathList, request{ServerID: serverID, Addr: addr}, nil, ignore)
	return end.Containers, unreachable(err)
}

// ContainerLogs reads a container's log. It is restarted only before the first line.
func (c *Client) ContainerLogs(
	ctx context.Context, serverID prego.ServerID, addr string, role prego.Role, name string, tail int, follow bool,
	line func(string) error,
) error {
	begun := false
	in := request{ServerID: serverID, Addr: addr, Role: role, Name: name, Tail: tail, Follow: follow}
	_, err := c.call(ctx, pathLogs, in, func() bool { return begun }, func(_, text string) error {
		begun = true
		return line(text)
	})
	return unreachable(err)
}

// RepairContainers restores a host's containers to their declaration; it is safe to repeat.
func (c *Client) RepairContainers(
	ctx context.Context, serverID prego.ServerID, addr string, role prego.Role,
) ([]server.ContainerDrift, error) {
	end, err := c.call(ctx, pathRepair, request{ServerID: serverID, Addr: addr, Role: role}, nil, ignore)
	return end.Drift, unreachable(err)
}

// IssueImport renders the credentials for enrolling an existing server.
func (c *Client) IssueImport(ctx context.Context, s server.Server) (string, error) {
	end, err := c.call(ctx, pathImport, request{ServerID: s.ServerID, Server: &s}, nil, ignore)
	return end.Bootstrap, unreachable(err)
}

// Seal encrypts a secret, bound to what it belongs to.
func (c *Client) Seal(
	ctx context.Context, belongsTo string, secret []byte,
) (sealed []byte, keyID string, err error) {
	end, err := c.call(ctx, pathSeal, request{Box: box{BelongsTo: belongsTo, Secret: secret}}, nil, ignore)
	return end.Box.Sealed, end.Box.KeyID, unreachable(err)
}

// Reseal re-encrypts a secret with the current master key.
func (c *Client) Reseal(
	ctx context.Context, belongsTo, keyID string, sealed []byte,
) (resealed []byte, newKeyID string, err error) {
	in := request{Box: box{BelongsTo: belongsTo, KeyID: keyID, Sealed: sealed}}
	end, err := c.call(ctx, pathReseal, in, nil, ignore)
	return end.Box.Sealed, end.Box.KeyID, unreachable(err)
}

func ignore(string, string) error { return nil }

// unreachable is the callers' error if there is no worker.
func unreachable(err error) error {
	if _, ok := errors.AsType[*cutOff](err); ok {
		return prego.Errorf(prego.CodeNotReady, "no worker answers, and only workers have the keys for this; try again")
	}
	return err
}
