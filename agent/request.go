package agent

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
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prego/prego/agent/site"
	"github.com/prego/prego/agent/wire"
)

// maxExecBody bounds a request, in bytes.
const maxExecBody = 64 << 10

// maxAuditID bounds the length of a caller's audit id.
const maxAuditID = 256

// tenantPattern is what a site's owner file may contain.
var tenantPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// problem is a refusal of the exec endpoint.
type problem struct {
	status     int
	code       string
	field      string
	detail     string
	retryAfter int // in seconds; 0 is not sent
}

// document is what a caller is sent.
func (p *problem) document() wire.Problem {
	return wire.Problem{Type: "about:blank", Title: http.StatusText(p.status), Status: p.status, Code: p.code, Detail: p.detail, Field: p.field}
}

// write answers with the refusal.
func (p *problem) write(w http.ResponseWriter) {
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	if p.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(p.status)
	_ = json.NewEncoder(w).Encode(p.document())
}

// notAnEndpoint refuses all paths but the two for commands.
func notAnEndpoint(w http.ResponseWriter, r *http.Request) *problem {
	if r.URL.Path != wire.PathExec && r.URL.Path != wire.PathExecStream {
		return &problem{status: http.StatusNotFound, code: "not_found", detail: "there is nothing at this path"}
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return &problem{status: http.StatusMethodNotAllowed, code: "method_not_allowed", detail: "this path takes POST"}
	}
	return nil
}

// readBody reads a request, up to maxExecBody.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxExecBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &problem{status: http.StatusRequestEntityTooLarge, code: "body_too_large", detail: "a command may hold at most 64 KiB"}
	case err != nil:
		return nil, &problem{status: http.StatusBadRequest, code: "invalid_json", detail: "the body is not one exec request"}
	}
	return body, nil
}

// parse reads the single request of a body: for the server with this id, and of a known kind.
func parse(serverID string, body []byte) (wire.ExecRequest, *problem) {
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
		return in, &problem{status: http.StatusBadRequest, code: "invalid_json", detail: "the body is not one exec request"}
	case !in.Kind.Valid():
		return in, &problem{status: http.StatusBadRequest, code: "kind_unknown", field: "kind", detail: "this agent knows no such kind of command"}
	case in.ServerID != serverID:
		return in, invalid("serverId", "this is another server")
	}
	return in, nil
}

// invalid refuses a field of a request.
func invalid(field, detail string) *problem {
	return &problem{status: http.StatusUnprocessableEntity, code: "invalid_field", field: field, detail: detail}
}

// command is a request that check has let through.
type command struct {
	in     wire.ExecRequest
	digest string
	verb   string
	sites  []string // that its arguments name
	gives  string   // the tenant to make the owner of its site; "" for none
}

// check refuses what is not allowed, and fills in defaults. Every process calls it: none
// trusts the one before it.
func check(in wire.ExecRequest) (*command, *problem) {
	next := &command{}
	if next.verb, next.sites = permitted(in.Kind, in.Args); next.verb == "" {
		return nil, &problem{status: http.StatusUnprocessableEntity, code: "command_not_allowed", field: "args", detail: string(in.Kind) + " may not be called like this"}
	}
	switch {
	case in.TimeoutSeconds < 0 || in.TimeoutSeconds > int(maxTimeout/time.Second):
		return nil, invalid("timeoutSeconds", "must be at most 900")
	case len(in.AuditID) > maxAuditID:
		return nil, invalid("auditId", "must be at most 256 bytes")
	case in.TenantID != "" && !tenantPattern.MatchString(in.TenantID):
		return nil, invalid("tenantId", "must be a tenant's id")
	case next.verb == "set-config" && in.Args[3] == wire.SiteOwnerFile && !tenantPattern.MatchString(in.Args[4]):
		return nil, invalid("args", wire.SiteOwnerFile+" must be a tenant's id")
	case next.verb == "set-config" && site.Reserved(in.Args[3]):
		return nil, invalid("args", in.Args[3]+" is the host's own")
	case in.Kind != wire.KindBench && in.TenantID != "":
		return nil, invalid("tenantId", "is for bench only: nothing else knows whose data it touches")
	case in.Kind != wire.KindBench && in.Kind != kindSpool && in.WorkingDir != "":
		return nil, invalid("workingDir", "is for bench only")
	}
	if refused := checkSecrets(in, next.verb); refused != nil {
		return nil, refused
	}
	if next.verb == "configure" {
		settings, err := site.ParseSettings(in.Args[3])
		if err != nil {
			return nil, invalid("args", err.Error())
		}
		if owner, there := settings[wire.SiteOwnerFile]; there && !tenantPattern.MatchString(settings.Text(wire.SiteOwnerFile)) {
			return nil, invalid("args", fmt.Sprintf("%s must be a tenant's id, not %s", wire.SiteOwnerFile, owner))
		}
		next.gives = settings.Text(wire.SiteOwnerFile)
	}
	if next.verb == "set-config" && in.Args[3] == wire.SiteOwnerFile {
		next.gives = in.Args[4]
	}
	if next.verb == "expect-site" { // it is the tenant's before anything of it arrives
		next.gives = in.TenantID
	}
	if in.Kind == wire.KindBench || in.Kind == kindSpool {
		if in.WorkingDir == "" {
			in.WorkingDir = wire.BenchDir
		}
		in.WorkingDir = filepath.Clean(in.WorkingDir)
		if in.WorkingDir != wire.BenchDir && !strings.HasPrefix(in.WorkingDir, wire.BenchDir+"/") {
			return nil, invalid("workingDir", "must be inside "+wire.BenchDir)
		}
	}
	// The digest leaves out what may differ when the same command is requested again.
	b, err := json.Marshal([]any{in.Kind, in.Args, in.WorkingDir, in.TenantID})
	if err != nil {
		return nil, invalid("args", "must be text")
	}
	next.digest = digest(b)
	if in.AuditID == "" {
		in.AuditID = rand.Text()
	}
	next.in = in
	return next, nil
}

// secretsOf names the secrets that a verb takes.
var secretsOf = map[string][]string{
	"set-admin-password": {wire.SecretAdminPassword}, "add-user": {wire.SecretUserPassword}, "configure": {wire.SecretMailPassword},
	"open-backup": {wire.SecretBackupIdentity}, "open-volume": {wire.SecretBackupIdentity}, "try-volume": {wire.SecretBackupIdentity},
	"unpack-site": {wire.SecretBackupIdentity}, "settle-site": {wire.SecretDatabasePassword}, "admit-database": {wire.SecretDatabasePassword},
	"make-data":        {wire.SecretDatabasePassword},
	"load-data":        {wire.SecretBackupIdentity, wire.SecretDatabasePassword},
	"connect-database": {wire.SecretDatabasePassword}, "connect-cache": {wire.SecretCachePassword},
	"grant-database": {wire.SecretDatabasePassword, wire.SecretEarlierPassword}, "create-user": {wire.SecretCachePassword},
}

// withoutSecret are the verbs that can do without theirs.
var withoutSecret = []string{"add-user", "configure"}

// takes are the secrets that a command takes; the first is required unless its verb can do
// without.
func takes(in wire.ExecRequest, verb string) []string {
	if verb == "new-site" && len(in.Args) == newSiteElsewhere {
		return []string{wire.SecretDatabasePassword}
	}
	return secretsOf[verb]
}

// newSiteElsewhere is the length of the command that makes a site whose database is on
// another server.
const newSiteElsewhere = 6

// isSecret tells whether a value has the form of a secret: it is passed on a line of its own.
func isSecret(value string) bool {
	n := utf8.RuneCountInString(value)
	return 0 < n && n <= 256 && strings.TrimSpace(value) == value && !strings.ContainsFunc(value, func(r rune) bool { return unicode.Is(unicode.C, r) })
}

// checkSecrets refuses secrets that a command doesn't take. The error never contains a
// secret.
func checkSecrets(in wire.ExecRequest, verb string) *problem {
	known := takes(in, verb)
	for name, value := range in.Secrets {
		switch {
		case !slices.Contains(known, name):
			return invalid("secrets", "the command takes no such secret")
		case !isSecret(value):
			return invalid("secrets", name+" must be 1 to 256 printable characters, with no space around them")
		}
	}
	if len(known) > 0 && !slices.Contains(withoutSecret, verb) && in.Secrets[known[0]] == "" {
		return invalid("secrets", known[0]+" is missing")
	}
	return nil
}

// digest is a SHA-256 in hex.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// How many commands a host runs at once. bench uses one database server and one redis,
// so more would only slow each other down.
const (
	maxRunning = 4
	maxQueued  = 64
)

// Limits of a command's duration.
const (
	defaultTimeout = time.Minute
	maxTimeout     = 15 * time.Minute
)

// stopping refuses what comes while the process ends.
func stopping() *problem {
	return &problem{status: http.StatusServiceUnavailable, code: "agent_stopping", detail: "the agent is ending; ask again", retryAfter: 5}
}

// timeouts are the default timeouts of verbs that create, copy or change a whole site,
// which takes Frappe minutes.
var timeouts = map[string]time.Duration{
	"new-site": maxTimeout, "install-app": maxTimeout, "migrate": maxTimeout, "backup": maxTimeout, "restore": maxTimeout,
	"seal-volume": maxTimeout, "open-volume": maxTimeout, "try-volume": maxTimeout,
	"seal-backup": maxTimeout, "open-backup": maxTimeout, "check-restored": maxTimeout, "pack-site": maxTimeout, "unpack-site": maxTimeout, "leave-site": 5 * time.Minute, "erase-site": 5 * time.Minute, "promote-site": 2 * time.Minute, "usage": 2 * time.Minute,
	"check": 5 * time.Minute, "apply": maxTimeout,
}

// timeout is how long a command may take.
func (k *command) timeout() time.Duration {
	if k.in.TimeoutSeconds == 0 {
		return cmp.Or(timeouts[k.verb], defaultTimeout)
	}
	return time.Duration(k.in.TimeoutSeconds) * time.Second
}

// secretsLine is the input of a verb: the request's secrets, and the database root's
// password if the verb needs it.
func secretsLine(verb string, given map[string]string, root wire.Service) (string, error) {
	all := make(map[string]string, len(given)+2)
	maps.Copy(all, given)
	if slices.Contains([]string{"new-site", "restore", "erase-site", "make-data", "freeze-data", "thaw-data"}, verb) && root.Password != "" {
		all[site.SecretRootUser], all[site.SecretRootPassword] = root.User, root.Password
	}
	line, err := json.Marshal(all)
	return string(line) + "\n", err
}
