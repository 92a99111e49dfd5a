// Package relay is how the API reaches hosts and everything else that needs keys: it asks a worker, which has them.
// The worker accepts only a few kinds of requests, so an intruder in the API can request what hosts allow, but can't
// become root on them (docs/adr/0015).
//
// A request is one POST with JSON over mTLS; its answer is a stream of messages, one JSON document per line. The last
// message is the outcome. Nothing of it is stored or logged.
package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Keyholder is what the API asks for: the relay's Client, and the worker itself behind its Server. Errors keep their
// types on the way: *server.CommandError, *server.ContainerError and *prego.Error arrive as such.
type Keyholder interface {
	Run(
		ctx context.Context, addr string, c server.Command, timeout time.Duration, onLine func(stream, line string),
	) (server.CommandOutcome, error)
	ListContainers(ctx context.Context, serverID prego.ServerID, addr string) ([]server.ContainerInfo, error)
	ContainerLogs(
		ctx context.Context, serverID prego.ServerID, addr string, role prego.Role, name string, tail int, follow bool,
		line func(string) error,
	) error
	RepairContainers(
		ctx context.Context, serverID prego.ServerID, addr string, role prego.Role,
	) ([]server.ContainerDrift, error)
	// IssueImport renders the credentials for enrolling an existing server: a secret.
	IssueImport(ctx context.Context, s server.Server) (string, error)
	// Seal and Reseal encrypt secrets. The API can't have one decrypted.
	Seal(ctx context.Context, belongsTo string, secret []byte) (sealed []byte, keyID string, err error)
	Reseal(ctx context.Context, belongsTo, keyID string, sealed []byte) (resealed []byte, newKeyID string, err error)
}

// Paths of the relay.
const (
	pathRun    = "/relay/v1/run"
	pathList   = "/relay/v1/containers"
	pathLogs   = "/relay/v1/logs"
	pathRepair = "/relay/v1/repair"
	pathImport = "/relay/v1/import"
	pathSeal   = "/relay/v1/seal"
	pathReseal = "/relay/v1/reseal"
)

const (
	maxRequest = 256 << 10
	// maxMessage is longer than the longest line of a log and the longest outcome.
	maxMessage = 1 << 20
	// keepAlive is how often something is sent on a quiet stream; after silentFor without a message, a worker counts
	// as gone.
	keepAlive = 5 * time.Second
	silentFor = 4 * keepAlive
)

// request is the body of any request.
type request struct {
	ServerID prego.ServerID  `json:"server_id,omitempty"`
	Addr     string          `json:"addr"`
	Command  *server.Command `json:"command,omitempty"`
	Timeout  time.Duration   `json:"timeout,omitempty"`
	Role     prego.Role      `json:"role,omitempty"`
	Name     string          `json:"name,omitempty"`
	Tail     int             `json:"tail,omitempty"`
	Follow   bool            `json:"follow,omitempty"`
	Server   *server.Server  `json:"server,omitempty"`
	Box      box             `json:"box,omitzero"`
}

// box is a secret, in clear on its way to be encrypted.
type box struct {
	BelongsTo string `json:"belongs_to,omitempty"`
	KeyID     string `json:"key_id,omitempty"`
	Secret    []byte `json:"secret,omitempty"`
	Sealed    []byte `json:"sealed,omitempty"`
}

// message is one message of an answer: a line, a keep-alive, or the end.
type message struct {
	Stream string  `json:"stream,omitempty"`
	Line   *string `json:"line,omitempty"`

	End        bool                    `json:"end,omitempty"`
	Outcome    *server.CommandOutcome  `json:"outcome,omitempty"`
	Containers []server.ContainerInfo  `json:"containers,omitempty"`
	Drift      []server.ContainerDrift `json:"drift,omitempty"`
	Bootstrap  string                  `json:"bootstrap,omitempty"`
	Box        box                     `json:"box,omitzero"`
	Failure    *failure                `json:"failure,omitempty"`
}

// failure is an error. It keeps the types that callers distinguish.
type failure struct {
	Command   *server.CommandError   `json:"command,omitempty"`
	Container *server.ContainerError `json:"container,omitempty"`
	Coded     *prego.Error           `json:"coded,omitempty"`
	Text      string                 `json:"text,omitempty"` // of any other type
}

func failureOf(err error) *failure {
	f := &failure{Text: prego.Redact(fmt.Sprint(err))}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f.Command), errors.As(err, &f.Container), errors.As(err, &f.Coded):
	}
	return f
}

func (f *failure) err() error {
	switch {
	case f == nil:
		return nil
	case f.Command != nil:
		return f.Command
	case f.Container != nil:
		return f.Container
	case f.Coded != nil:
		return f.Coded
	}
	return errors.New(f.Text)
}
