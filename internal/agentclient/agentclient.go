// Package agentclient runs commands through the agents on hosts, over mTLS with a token
// for each command (direct-provisioning §1, path D).
package agentclient

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

const (
	// tokenTTL covers the network and clock differences: the agent checks the token when the command arrives.
	tokenTTL = 2 * time.Minute
	// queueTime is how long a command may wait on its host for others, in addition to its own time. A caller that
	// times out asks again and joins it.
	queueTime = 2 * time.Minute
	// idleTime is shorter than the agent's, so that this side closes idle connections.
	idleTime   = 45 * time.Second
	maxAnswer  = 256 << 10
	keptStderr = 1 << 10
)

// Config configures how to reach agents.
type Config struct {
	TLS    func(serverID prego.ServerID) *tls.Config // the server's id is verified, not its address
	Tokens interface {
		Issue(serverID prego.ServerID, kind wire.CommandKind, body [sha256.Size]byte, ttl time.Duration) (string, error)
	}
	Port int
	// PortOf returns the port of one server's agent; nil if all agents use Port.
	PortOf func(ctx context.Context, serverID prego.ServerID) int
	// CheckAddr rejects addresses that a provider's server can't have.
	CheckAddr func(addr string) error
	// Trace starts the span of a command and puts it into the request; the returned function ends the span. nil
	// disables traces.
	Trace func(r *http.Request, serverID prego.ServerID, kind string) (end func(error))
}

// Client calls agents.
type Client struct {
	cfg Config

	mu    sync.Mutex
	peers map[string]*http.Client // by server id
}

// New creates a Client.
func New(cfg Config) *Client { return &Client{cfg: cfg, peers: make(map[string]*http.Client)} }

// Close closes idle connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.peers {
		p.CloseIdleConnections()
	}
}

// peer returns the connections to one server. They are never shared between servers, not even with the same address,
// since a server's id is verified at the handshake.
func (c *Client) peer(serverID prego.ServerID) *http.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.peers[string(serverID)]
	if !ok {
		p = &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				TLSClientConfig: c.cfg.TLS(serverID), DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
				TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: idleTime, MaxIdleConnsPerHost: 4,
				ForceAttemptHTTP2: true,
				// A host that vanished is noticed while a command is running.
				HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
			},
		}
		c.peers[string(serverID)] = p
	}
	return p
}

// Exec runs a command of any kind on a host and returns its result, even if its exit code is not 0. Repeated with the
// same audit id, it returns the first result. A failure is a *server.CommandError, unless ctx ended.
func (c *Client) Exec(
	ctx context.Context, serverID prego.ServerID, addr string, in wire.ExecRequest,
) (wire.ExecResult, error) {
	var out wire.ExecResult
	err := c.call(ctx, serverID, addr, wire.PathExec, in, func(body io.Reader) error {
		answer, err := io.ReadAll(io.LimitReader(body, wire.MaxEvent))
		if err != nil {
			return err
		}
		return json.Unmarshal(answer, &out)
	})
	return out, err
}

// Stream is Exec with the command's lines as they are printed; stream is "stdout" or "stderr". A caller that joins a
// running command gets the lines that its host still keeps; an extra line reports missing ones. If the stream is cut
// off, the error is a *server.CommandError that is not permanent, and the command may still be running.
func (c *Client) Stream(
	ctx context.Context, serverID prego.ServerID, addr string, in wire.ExecRequest, onLine func(stream, line string),
) (wire.ExecResult, error) {
	var out wire.ExecResult
	err := c.call(ctx, serverID, addr, wire.PathExecStream, in, func(body io.Reader) error {
		events := wire.NewEventReader(body)
		for {
			name, data, err := events.Next()
			if err != nil {
				return fmt.Errorf("the stream ended before the command: %w", err)
			}
			switch name {
			case wire.EventProgress:
				var l wire.ExecProgress
				if err := json.Unmarshal(data, &l); err != nil {
					return err
				}
				if l.Missed > 0 {
					onLine(l.Stream, fmt.Sprintf("[%d lines left out]", l.Missed))
				}
				onLine(l.Stream, l.Line)
			case wire.EventResult:
				return json.Unmarshal(data, &out)
			case wire.EventError:
				var p wire.Problem
				if err := json.Unmarshal(data, &p); err != nil {
					return err
				}
				return &refused{p}
			}
		}
	})
	return out, err
}

// refused is an error inside a stream.
type refused struct{ wire.Problem }

func (r *refused) Error() string { return r.Code }

// PeersNow makes a host fetch its peers document immediately, and returns the active version, which is at least the
// given one.
func (c *Client) PeersNow(
	ctx context.Context, serverID prego.ServerID, addr string, version int64,
) (applied int64, err error) {
	var out wire.PeersNowResponse
	args := []string{strconv.FormatInt(version, 10)}
	in := wire.ExecRequest{ServerID: string(serverID), Kind: wire.KindPeers, Args: args}
	err = c.send(ctx, serverID, addr, wire.PathExec, in.Kind, in, peersTime, func(body io.Reader) error {
		return json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&out)
	})
	return out.Applied, err
}

// peersTime is how long a host may take to fetch and apply its document.
const peersTime = 30 * time.Second

// Transfer has a host move pieces of a sealed backup between its disk and object storage. The answer lists the pieces
// that the host could not move; an error means that the host could not be asked.
func (c *Client) Transfer(
	ctx context.Context, serverID prego.ServerID, addr string, in wire.TransferRequest,
) (out wire.TransferResponse, err error) {
	in.ServerID, in.Kind = string(serverID), wire.KindTransfer
	err = c.send(ctx, serverID, addr, wire.PathExec, in.Kind, in, transferTime, func(body io.Reader) error {
		return json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&out)
	})
	return out, err
}

// transferTime is how long the pieces of one request may take.
const transferTime = 15 * time.Minute

// call sends a command; read reads the body of a successful answer.
func (c *Client) call(
	ctx context.Context, serverID prego.ServerID, addr, path string, in wire.ExecRequest, read func(io.Reader) error,
) error {
	in.ServerID = string(serverID)
	limit := time.Duration(in.TimeoutSeconds) * time.Second
	limit = cmp.Or(limit, time.Minute) // the agent's default
	return c.send(ctx, serverID, addr, path, in.Kind, in, limit+queueTime, read)
}

// send sends a request with its own token; read reads the body of a successful answer.
func (c *Client) send(
	ctx context.Context, serverID prego.ServerID, addr, path string, kind wire.CommandKind, in any,
	within time.Duration, read func(io.Reader) error,
) (out error) {
	fail := func(permanent bool, code, message string) error {
		return &server.CommandError{
			Kind: string(kind), Permanent: permanent, Code: code, Message: lastOutput(prego.Redact(message)),
		}
	}
	if err := c.cfg.CheckAddr(addr); err != nil {
		return fail(true, server.CommandNotSent, err.Error())
	}
	body, err := json.Marshal(in)
	if err != nil {
		return fail(true, server.CommandNotSent, err.Error())
	}
	token, err := c.cfg.Tokens.Issue(serverID, kind, sha256.Sum256(body), tokenTTL)
	if err != nil {
		return fail(false, server.CommandNotSent, err.Error())
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	port := c.cfg.Port
	if c.cfg.PortOf != nil {
		port = c.cfg.PortOf(ctx, serverID)
	}
	url := "https://" + net.JoinHostPort(addr, strconv.Itoa(port)) + path
	req, err := http.NewRequestWithContext(limited, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fail(true, server.CommandNotSent, err.Error())
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	if c.cfg.Trace != nil {
		end := c.cfg.Trace(req, serverID, string(kind))
		defer func() { end(out) }()
	}
	var answer []byte
	resp, err := c.peer(serverID).Do(req)
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode == http.StatusOK {
			err = read(resp.Body)
		} else {
			answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		}
	}
	var no *refused
	switch {
	case errors.As(err, &no):
		return fail(!isRetryable(no.Status), codeOf(no.Problem, http.StatusOK), no.message())
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%s on %s: %w", kind, serverID, ctx.Err())
	case err != nil && isCertificateError(err):
		return fail(true, server.CommandMistrusted,
			"the host and the control plane do not accept each other's certificates")
	case err != nil:
		return fail(false, server.CommandUnreachable, err.Error())
	case resp.StatusCode != http.StatusOK:
		code, message := refusal(resp, answer)
		return fail(!isRetryable(resp.StatusCode), code, message)
	}
	return nil
}

// isRetryable reports whether the next request may succeed.
func isRetryable(status int) bool {
	return status == http.StatusTooManyRequests || status >= 500
}

func refusal(resp *http.Response, answer []byte) (code, message string) {
	var p wire.Problem
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if mediaType != "application/problem+json" || json.Unmarshal(answer, &p) != nil || p.Code == "" {
		return "http_" + strconv.Itoa(resp.StatusCode), "the agent answered " + resp.Status
	}
	return codeOf(p, resp.StatusCode), (&refused{p}).message()
}

// code is the form of the agent's codes. Other codes from a host reach no row and no metric.
var code = regexp.MustCompile(`^[a-z0-9_]{1,64}$`)

func codeOf(p wire.Problem, status int) string {
	if !code.MatchString(p.Code) {
		return "http_" + strconv.Itoa(status)
	}
	return p.Code
}

func (r *refused) message() string {
	if r.Field != "" {
		return r.Field + ": " + r.Detail
	}
	return r.Detail
}

// isCertificateError reports whether one side rejected the other's certificate: it is another host, or the host does
// not trust us. A host reports the latter after the handshake, and the closed connection may be noticed first: then
// it looks unreachable.
func isCertificateError(err error) bool {
	var cert *tls.CertificateVerificationError
	var op *net.OpError
	return errors.As(err, &cert) || (errors.As(err, &op) && op.Op == "remote error")
}

// lastOutput is the last part of a text, still valid UTF-8, that Postgres can store.
func lastOutput(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s[max(0, len(s)-keptStderr):], ""), "\x00", "")
}
