package policy

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prego/prego/agent/wire"
)

// MaxBody bounds a request, in bytes.
const MaxBody = 64 << 10

// maxAuditID bounds the length of a caller's audit id.
const maxAuditID = 256

// TenantPattern is what a site's owner file may contain.
var TenantPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Problem is a refusal of the exec endpoint.
type Problem struct {
	Status     int
	Code       string
	Field      string
	Detail     string
	RetryAfter int // in seconds; 0 is not sent
}

// Document is what a caller is sent.
func (p *Problem) Document() wire.Problem {
	return wire.Problem{Type: "about:blank", Title: http.StatusText(p.Status), Status: p.Status, Code: p.Code, Detail: p.Detail, Field: p.Field}
}

// Write answers with the refusal.
func (p *Problem) Write(w http.ResponseWriter) {
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p.Document())
}

// NotAnEndpoint refuses all paths but the two for commands.
func NotAnEndpoint(w http.ResponseWriter, r *http.Request) *Problem {
	if r.URL.Path != wire.PathExec && r.URL.Path != wire.PathExecStream {
		return &Problem{Status: http.StatusNotFound, Code: "not_found", Detail: "there is nothing at this path"}
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return &Problem{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed", Detail: "this path takes POST"}
	}
	return nil
}

// ReadBody reads a request, up to MaxBody.
func ReadBody(w http.ResponseWriter, r *http.Request) ([]byte, *Problem) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &Problem{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Detail: "a command may hold at most 64 KiB"}
	case err != nil:
		return nil, &Problem{Status: http.StatusBadRequest, Code: "invalid_json", Detail: "the body is not one exec request"}
	}
	return body, nil
}

// Parse reads the single request of a body: for the server with this id, and of a known kind.
func Parse(serverID string, body []byte) (wire.ExecRequest, *Problem) {
	var in wire.ExecRequest
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err := dec.Decode(&in)
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = errors.New("there is more than one document")
		}
	}
	switch {
	case err != nil:
		return in, &Problem{Status: http.StatusBadRequest, Code: "invalid_json", Detail: "the body is not one exec request"}
	case !in.Kind.Valid():
		return in, &Problem{Status: http.StatusBadRequest, Code: "kind_unknown", Field: "kind", Detail: "this agent knows no such kind of command"}
	case in.ServerID != serverID:
		return in, Invalid("serverId", "this is another server")
	}
	return in, nil
}

// Invalid refuses a field of a request.
func Invalid(field, detail string) *Problem {
	return &Problem{Status: http.StatusUnprocessableEntity, Code: "invalid_field", Field: field, Detail: detail}
}

// Command is a request that check has let through.
type Command struct {
	*Permit
	In     wire.ExecRequest
	Digest string
	Gives  string // the tenant to make the owner of its site; "" for none
}

// Check refuses what is not allowed, and fills in defaults. Every process calls it: none
// trusts the one before it.
func Check(in wire.ExecRequest) (*Command, *Problem) {
	next := &Command{Permit: Permitted(in.Kind, in.Args)}
	if next.Permit == nil {
		return nil, &Problem{Status: http.StatusUnprocessableEntity, Code: "command_not_allowed", Field: "args", Detail: string(in.Kind) + " may not be called like this"}
	}
	switch {
	case in.TimeoutSeconds < 0 || in.TimeoutSeconds > int(maxTimeout/time.Second):
		return nil, Invalid("timeoutSeconds", "must be at most 900")
	case len(in.AuditID) > maxAuditID:
		return nil, Invalid("auditId", "must be at most 256 bytes")
	case in.TenantID != "" && !TenantPattern.MatchString(in.TenantID):
		return nil, Invalid("tenantId", "must be a tenant's id")
	case next.Verb == "set-config" && Reserved(in.Args[3]):
		return nil, Invalid("args", in.Args[3]+" is the host's own")
	case in.Kind != wire.KindBench && in.TenantID != "":
		return nil, Invalid("tenantId", "is for bench only: nothing else knows whose data it touches")
	case in.Kind != wire.KindBench && in.Kind != KindSpool && in.WorkingDir != "":
		return nil, Invalid("workingDir", "is for bench only")
	}
	if refused := next.checkSecrets(in.Secrets); refused != nil {
		return nil, refused
	}
	if refused := checkLease(in); refused != nil {
		return nil, refused
	}
	if next.Verb == "configure" {
		settings, err := ParseSettings(in.Args[3])
		if err != nil {
			return nil, Invalid("args", err.Error())
		}
		if owner, there := settings[wire.SiteOwnerFile]; there && !TenantPattern.MatchString(settings.Text(wire.SiteOwnerFile)) {
			return nil, Invalid("args", fmt.Sprintf("%s must be a tenant's id, not %s", wire.SiteOwnerFile, owner))
		}
		next.Gives = settings.Text(wire.SiteOwnerFile)
	}
	if next.Verb == "expect-site" { // it is the tenant's before anything of it arrives
		next.Gives = in.TenantID
	}
	if in.Kind == wire.KindBench || in.Kind == KindSpool {
		if in.WorkingDir == "" {
			in.WorkingDir = wire.BenchDir
		}
		in.WorkingDir = filepath.Clean(in.WorkingDir)
		if in.WorkingDir != wire.BenchDir && !strings.HasPrefix(in.WorkingDir, wire.BenchDir+"/") {
			return nil, Invalid("workingDir", "must be inside "+wire.BenchDir)
		}
	}
	// The digest leaves out what may differ when the same command is requested again.
	b, err := json.Marshal([]any{in.Kind, in.Args, in.WorkingDir, in.TenantID})
	if err != nil {
		return nil, Invalid("args", "must be text")
	}
	next.Digest = Digest(b)
	if in.AuditID == "" {
		in.AuditID = rand.Text()
	}
	next.In = in
	return next, nil
}

// checkLease refuses a lease that the host could not end by itself.
func checkLease(in wire.ExecRequest) *Problem {
	if in.Lease == nil {
		return nil
	}
	undo := Permitted(in.Kind, in.Lease.Undo)
	switch {
	case in.Lease.Seconds < 0 || in.Lease.Seconds > int(wire.MaxLease/time.Second):
		return Invalid("lease", "seconds must be at most 86400")
	case undo == nil || undo.Needs != "" || undo.Effect == Erases:
		return Invalid("lease", "undo must be a command without secrets that erases nothing")
	}
	return nil
}

// isSecret tells whether a value has the form of a secret: it is passed on a line of its own.
func isSecret(value string) bool {
	n := utf8.RuneCountInString(value)
	return 0 < n && n <= 256 && strings.TrimSpace(value) == value && !strings.ContainsFunc(value, func(r rune) bool { return unicode.Is(unicode.C, r) })
}

// checkSecrets refuses secrets that a command doesn't take. The error never contains a
// secret.
func (r *Rule) checkSecrets(given map[string]string) *Problem {
	for name, value := range given {
		switch {
		case name == "" || name != r.Needs && name != r.Takes:
			return Invalid("secrets", "the command takes no such secret")
		case !isSecret(value):
			return Invalid("secrets", name+" must be 1 to 256 printable characters, with no space around them")
		}
	}
	if r.Needs != "" && given[r.Needs] == "" {
		return Invalid("secrets", r.Needs+" is missing")
	}
	return nil
}

// Digest is a SHA-256 in hex.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// How many commands a host runs at once. bench uses one database server and one redis,
// so more would only slow each other down.
const (
	MaxRunning = 4
	MaxQueued  = 64
)

// Limits of a command's duration.
const (
	defaultTimeout = time.Minute
	maxTimeout     = 15 * time.Minute
)

// Stopping refuses what comes while the process ends.
func Stopping() *Problem {
	return &Problem{Status: http.StatusServiceUnavailable, Code: "agent_stopping", Detail: "the agent is ending; ask again", RetryAfter: 5}
}

// Limit is how long a command may take.
func (k *Command) Limit() time.Duration {
	if k.In.TimeoutSeconds == 0 {
		return cmp.Or(k.Timeout, defaultTimeout)
	}
	return time.Duration(k.In.TimeoutSeconds) * time.Second
}

// Names of secrets that the host itself adds to a request's.
const (
	SecretRootUser     = "mariadb_root_user" // "root" when it is missing
	SecretRootPassword = "mariadb_root_password"
)

// SecretsLine is the input of a verb: the request's secrets, and the database root's
// password if the verb needs it.
func (r *Rule) SecretsLine(given map[string]string, root wire.Service) (string, error) {
	all := make(map[string]string, len(given)+2)
	maps.Copy(all, given)
	if r.Root && root.Password != "" {
		all[SecretRootUser], all[SecretRootPassword] = root.User, root.Password
	}
	line, err := json.Marshal(all)
	return string(line) + "\n", err
}
