package online

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	agentexec "github.com/prego/prego/agent/exec"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

func (a *Agent) url(path string) string {
	return "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(a.host.Config.AgentPort)) + path
}

// answered is an answer whose body was read.
type answered struct {
	*http.Response
	problem wire.Problem
	result  wire.ExecResult
}

func (a *Agent) send(c *http.Client, method, path, authorization, body string) (answered, error) {
	req, err := http.NewRequest(method, a.url(path), strings.NewReader(body))
	if err != nil {
		return answered{}, err
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	var resp *http.Response
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) { // until it listens
		if resp, err = c.Do(req); err == nil || !strings.Contains(err.Error(), "connection refused") || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return answered{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	out := answered{Response: resp}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return out, err
	}
	if resp.StatusCode == http.StatusOK {
		return out, json.Unmarshal(b, &out.result)
	}
	return out, json.Unmarshal(b, &out.problem)
}

func (a *Agent) try(c *http.Client, token, body string) (answered, error) {
	return a.send(c, http.MethodPost, wire.PathExec, "Bearer "+token, body)
}

func (a *Agent) call(t testing.TB, c *http.Client, token, body string) (int, string) {
	resp, err := a.try(c, token, body)
	if err != nil {
		t.Errorf("the agent does not answer: %v", err)
		return 0, ""
	}
	return resp.StatusCode, resp.problem.Code
}

func serving(t testing.TB) (*agenttest.Gateway, *Agent) {
	t.Helper()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	executing(t, a.host)
	agenttest.Loop(t, func(ctx context.Context) error { return a.serve(ctx, agenttest.Quiet()) })
	return g, a
}

// executing runs the process beside the agent that runs commands, until the test
// ends or stop is called.
func executing(t testing.TB, h *host.Host) (e *agentexec.Executor, stop func()) {
	t.Helper()
	e, err := agentexec.New(h, "", nil, agenttest.Quiet())
	require.NoError(t, err)
	l, err := h.Listen(wire.ExecSocket)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, l) }()
	stop = sync.OnceFunc(func() { cancel(); require.NoError(t, <-done) })
	t.Cleanup(stop)
	return e, stop
}

func TestExecTakesOnlyTheControlPlanesCertificate(t *testing.T) {
	t.Parallel()
	g, a := serving(t)
	own := *a.current.Load().Client
	for name, cert := range map[string]*tls.Certificate{
		"none":                    nil,
		"another CA":              agenttest.ControlPlane(t, agenttest.NewAuthority(t, "exec-client")),
		"the agent CA":            agenttest.ControlPlane(t, g.ClientCA),
		"the Docker client CA":    agenttest.ControlPlane(t, g.DockerCA),
		"the gateway CA":          agenttest.ControlPlane(t, g.GatewayCA),
		"its own":                 &own,
		"of another environment":  new(g.ExecCA.Pair(t, agenttest.Leaf{URI: "prego://prod/control-plane", Usage: x509.ExtKeyUsageClientAuth})),
		"of a server":             new(g.ExecCA.Pair(t, agenttest.Leaf{URI: "prego://test/server/app-1", Usage: x509.ExtKeyUsageClientAuth})),
		"without a name":          new(g.ExecCA.Pair(t, agenttest.Leaf{Usage: x509.ExtKeyUsageClientAuth})),
		"with the name elsewhere": new(g.ExecCA.Pair(t, agenttest.Leaf{DNS: []string{agenttest.PlaneURI}, Usage: x509.ExtKeyUsageClientAuth})),
		"for servers":             new(g.ExecCA.Pair(t, agenttest.Leaf{URI: agenttest.PlaneURI, Usage: x509.ExtKeyUsageServerAuth})),
		"expired": new(g.ExecCA.Pair(t, agenttest.Leaf{
			URI: agenttest.PlaneURI, Usage: x509.ExtKeyUsageClientAuth, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute),
		})),
		"of the future": new(g.ExecCA.Pair(t, agenttest.Leaf{URI: agenttest.PlaneURI, Usage: x509.ExtKeyUsageClientAuth, NotBefore: time.Now().Add(time.Hour), NotAfter: time.Now().Add(2 * time.Hour)})),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := a.try(g.Caller(t, cert), g.Token(t, nil), agenttest.Body)
			require.ErrorContains(t, err, "remote error: tls")
		})
	}
	t.Run("TLS 1.2", func(t *testing.T) {
		t.Parallel()
		c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
		cfg := c.Transport.(*http.Transport).TLSClientConfig
		cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		_, err := a.try(c, g.Token(t, nil), agenttest.Body)
		require.ErrorContains(t, err, "protocol version")
	})
	status, code := a.call(t, g.Caller(t, agenttest.ControlPlane(t, g.ExecCA)), g.Token(t, nil), agenttest.Body)
	require.Equal(t, http.StatusUnprocessableEntity, status, "the right one gets through")
	require.Equal(t, "command_not_allowed", code)
}

func TestExecTakesOnlyTokensForThisCommand(t *testing.T) {
	t.Parallel()
	g, a := serving(t)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	_, otherKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	set := func(claim string, v any) string {
		return g.Token(t, func(c jwt.MapClaims) {
			if v == nil {
				delete(c, claim)
				return
			}
			c[claim] = v
		})
	}
	in := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	public := g.ExecKey.Public().(ed25519.PublicKey)
	good := g.Token(t, nil)
	head, rest, _ := strings.Cut(good, ".")
	payload, sig, _ := strings.Cut(rest, ".")
	forged := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA","kid":"k1","jwk":{"kty":"OKP","crv":"Ed25519","x":"` + base64.RawURLEncoding.EncodeToString(otherKey.Public().(ed25519.PublicKey)) + `"}}`))
	for name, authorization := range map[string]string{
		"none":                     "",
		"another scheme":           "Basic " + good,
		"no scheme":                good,
		"empty":                    "Bearer ",
		"not a JWT":                "Bearer abc",
		"without a signature":      "Bearer " + head + "." + payload + ".",
		"another's signature":      "Bearer " + head + "." + payload + "." + strings.Repeat("A", len(sig)),
		"an embedded key":          "Bearer " + forged + "." + payload + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(otherKey, []byte(forged+"."+payload))),
		"alg none":                 "Bearer " + g.Signed(t, jwt.SigningMethodNone, "k1", jwt.UnsafeAllowNoneSignatureType, nil),
		"HS256 of the public key":  "Bearer " + g.Signed(t, jwt.SigningMethodHS256, "k1", []byte(public), nil),
		"HS256 of its PEM":         "Bearer " + g.Signed(t, jwt.SigningMethodHS256, "k1", []byte(g.Bundles.ExecKeys["k1"]), nil),
		"another key":              "Bearer " + g.Signed(t, jwt.SigningMethodEdDSA, "k1", otherKey, nil),
		"an unknown key":           "Bearer " + g.Signed(t, jwt.SigningMethodEdDSA, "k2", g.ExecKey, nil),
		"no key id":                "Bearer " + g.Signed(t, jwt.SigningMethodEdDSA, nil, g.ExecKey, nil),
		"a key id of another type": "Bearer " + g.Signed(t, jwt.SigningMethodEdDSA, 1, g.ExecKey, nil),
		"the gateway's token":      "Bearer " + a.current.Load().ID.Token,
		"expired": "Bearer " + g.Token(t, func(c jwt.MapClaims) {
			c["iat"], c["nbf"], c["exp"] = in(-5*time.Minute), in(-5*time.Minute), in(-31*time.Second)
		}),
		"another body":             "Bearer " + set("body", policy.Digest([]byte(agenttest.Body+" "))),
		"no body":                  "Bearer " + set("body", nil),
		"not yet":                  "Bearer " + set("nbf", in(2*time.Minute)),
		"of the future":            "Bearer " + g.Token(t, func(c jwt.MapClaims) { c["iat"], c["exp"] = in(2*time.Minute), in(3*time.Minute) }),
		"longer than five minutes": "Bearer " + set("exp", in(5*time.Minute+2*time.Second)),
		"a year":                   "Bearer " + set("exp", in(365*24*time.Hour)),
		"no expiry":                "Bearer " + set("exp", nil),
		"no issue time":            "Bearer " + set("iat", nil),
		"no id":                    "Bearer " + set("jti", nil),
		"an empty id":              "Bearer " + set("jti", ""),
		"no issuer":                "Bearer " + set("iss", nil),
		"another issuer":           "Bearer " + set("iss", "another"),
		"no audience":              "Bearer " + set("aud", nil),
		"another server":           "Bearer " + set("aud", "app-2"),
		"the gateway":              "Bearer " + set("aud", "prego-agentgw"),
		"several servers":          "Bearer " + set("aud", []string{agenttest.Server, "app-2"}),
	} {
		t.Run(name, func(t *testing.T) { // in parallel, before a future token becomes valid
			resp, err := a.send(c, http.MethodPost, wire.PathExec, authorization, agenttest.Body)
			require.NoError(t, err)
			require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
			require.Equal(t, "unauthenticated", resp.problem.Code)
			require.Equal(t, "Bearer", resp.Header.Get("WWW-Authenticate"))
			require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
		})
	}
	for name, scope := range map[string]any{
		"another kind": "exec.mariadb", "two kinds": "exec.bench exec.mariadb", "every kind": "exec.*", "a part": "exec.ben", "none": nil, "of the gateway": "heartbeat",
	} {
		t.Run("scope of "+name, func(t *testing.T) {
			t.Parallel()
			status, code := a.call(t, c, set("scope", scope), agenttest.Body)
			require.Equal(t, http.StatusForbidden, status)
			require.Equal(t, "scope_missing", code)
		})
	}
}

func TestExecTakesATokenOnce(t *testing.T) {
	t.Parallel()
	g, a := serving(t)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	token := g.Token(t, nil)
	statuses := make(chan int, 16)
	for range cap(statuses) {
		go func() {
			status, _ := a.call(t, c, token, agenttest.Body)
			statuses <- status
		}()
	}
	got := map[int]int{}
	for range cap(statuses) {
		got[<-statuses]++
	}
	require.Equal(t, map[int]int{http.StatusUnprocessableEntity: 1, http.StatusUnauthorized: cap(statuses) - 1}, got)
	status, _ := a.call(t, c, token, strings.Replace(agenttest.Body, "bench", "sh", 1))
	require.Equal(t, http.StatusUnauthorized, status, "nor for another request")
}

func TestExecRefusesALowerEpoch(t *testing.T) {
	t.Parallel()
	g, a := serving(t)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	call := func(epoch int64) (int, string) {
		token := g.Token(t, func(c jwt.MapClaims) { c["epoch"] = epoch })
		return a.call(t, c, token, agenttest.Body)
	}
	status, code := call(7)
	require.Equal(t, http.StatusUnprocessableEntity, status, code)
	status, code = call(6)
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Equal(t, "epoch_passed", code)
	again, err := openEpoch(a.host.Path(wire.EpochPath))
	require.NoError(t, err)
	highest, err := again.raise(3)
	require.NoError(t, err)
	require.EqualValues(t, 7, highest, "the next agent also knows it")
	status, code = call(7)
	require.Equal(t, http.StatusUnprocessableEntity, status, code)
	status, code = a.call(t, c, g.Token(t, nil), agenttest.Body)
	require.Equal(t, http.StatusServiceUnavailable, status, "without an epoch it is the lowest")
	require.Equal(t, "epoch_passed", code)
}

// TestUsedTokensThatCannotBeKept has no place for the file; machines with a full disk are
// in internal/machines.
func TestUsedTokensThatCannotBeKept(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "later")
	s, err := openSeen(filepath.Join(dir, "used"))
	require.NoError(t, err, "an agent must not end because of it")
	_, err = s.use("one", time.Now().Add(time.Minute))
	require.ErrorIs(t, err, fs.ErrNotExist, "and takes no token that it can't remember")
	require.NoError(t, os.Mkdir(dir, 0o700))
	ok, err := s.use("two", time.Now().Add(time.Minute))
	require.NoError(t, err)
	require.True(t, ok)
	next, err := openSeen(filepath.Join(dir, "used"))
	require.NoError(t, err)
	for _, id := range []string{"one", "two"} {
		ok, err := next.use(id, time.Now().Add(time.Minute))
		require.NoError(t, err)
		require.False(t, ok, "%s: a refused token is not accepted later either", id)
	}

	dir = filepath.Join(t.TempDir(), "later")
	s, err = openSeen(filepath.Join(dir, "used"))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(dir, 0o700))
	ok, err = s.use("one", time.Now().Add(time.Minute))
	require.NoError(t, err)
	require.True(t, ok, "there is a place again")

	_, err = openSeen(dir)
	require.ErrorContains(t, err, "used tokens", "the used tokens are unknown")
}

func TestUsedTokensAreForgottenWhenTheyHaveExpired(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "used")
	s, err := openSeen(name)
	require.NoError(t, err)
	use := func(id string, expires time.Time) bool {
		ok, err := s.use(id, expires)
		require.NoError(t, err)
		return ok
	}
	require.True(t, use("old", time.Now().Add(-2*time.Minute)))
	require.True(t, use("within the leeway", time.Now().Add(-31*time.Second)))
	require.True(t, use("new\n", time.Now().Add(time.Minute)))
	require.Len(t, s.ids, 2, "only valid tokens take memory")
	for range 2 {
		require.False(t, use("within the leeway", time.Now()))
		require.False(t, use("new\n", time.Now()))
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(name, append(b, "half a li"...), 0o600))
		s, err = openSeen(name) // the next agent also knows them
		require.NoError(t, err)
		require.Len(t, s.ids, 2)
	}
	first := s.file
	for i := range 1500 {
		require.True(t, use(fmt.Sprint(i), time.Now().Add(-2*time.Minute)))
	}
	require.Less(t, agenttest.Lines(t, name), 1100, "and so is the file")
	require.ErrorIs(t, first.Close(), os.ErrClosed, "the previous file is closed")
	require.False(t, use("new\n", time.Now()))

	require.NoError(t, s.file.Close())
	_, err = s.use("not kept", time.Now().Add(time.Minute))
	require.ErrorIs(t, err, os.ErrClosed, "a token that can't be recorded is refused")
	require.True(t, use("next", time.Now().Add(time.Minute)), "the file is created again")
	require.False(t, use("not kept", time.Now()))
	require.Equal(t, 4, agenttest.Lines(t, name))
}

func TestExecTakesOnlyItsOwnRequests(t *testing.T) {
	t.Parallel()
	g, a := serving(t)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	for name, tc := range map[string]struct {
		body   string
		status int
		code   string
		field  string
	}{
		"no body":               {"", 400, "invalid_json", ""},
		"not JSON":              {"kind=bench", 400, "invalid_json", ""},
		"not an object":         {"[]", 400, "invalid_json", ""},
		"unknown field":         {`{"serverId":"app-1","kind":"bench","shell":"id"}`, 400, "invalid_json", ""},
		"a wrong type":          {`{"serverId":"app-1","kind":"bench","args":"version"}`, 400, "invalid_json", ""},
		"two documents":         {agenttest.Body + agenttest.Body, 400, "invalid_json", ""},
		"a trailing brace":      {agenttest.Body + "}", 400, "invalid_json", ""},
		"no kind":               {`{"serverId":"app-1"}`, 400, "kind_unknown", "kind"},
		"a shell":               {strings.Replace(agenttest.Body, "bench", "shell", 1), 400, "kind_unknown", "kind"},
		"another case":          {strings.Replace(agenttest.Body, "bench", "Bench", 1), 400, "kind_unknown", "kind"},
		"the audit's kind":      {strings.Replace(agenttest.Body, "bench", "bootstrap", 1), 400, "kind_unknown", "kind"},
		"another server":        {strings.Replace(agenttest.Body, "app-1", "app-2", 1), 422, "invalid_field", "serverId"},
		"no server":             {`{"kind":"bench"}`, 422, "invalid_field", "serverId"},
		"too large":             {`{"workflowId":"` + strings.Repeat("x", 64<<10) + `"}`, 413, "body_too_large", ""},
		"too large after all":   {agenttest.Body + strings.Repeat(" ", 64<<10), 413, "body_too_large", ""},
		"as large as it may be": {agenttest.Body + strings.Repeat(" ", 64<<10-len(agenttest.Body)), 422, "command_not_allowed", "args"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp, err := a.try(c, g.TokenFor(t, tc.body), tc.body)
			require.NoError(t, err)
			require.Equal(t, tc.status, resp.StatusCode)
			require.Equal(t, wire.Problem{Type: "about:blank", Title: http.StatusText(tc.status), Status: tc.status, Code: tc.code, Field: tc.field, Detail: resp.problem.Detail}, resp.problem)
			require.NotEmpty(t, resp.problem.Detail)
		})
	}
}

func TestThereIsNothingButTheExecEndpoint(t *testing.T) {
	t.Parallel()
	g, a := serving(t)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	v1 := strings.TrimSuffix(wire.PathExec, "exec")
	for _, path := range []string{"/", "/healthz", "/metrics", "/debug/pprof/", v1, v1 + "shell", v1 + "docker/run", wire.PathExec + "/", "/" + wire.PathExec, wire.PathExec + "/../exec", wire.PathHandshake} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			resp, err := a.send(c, method, path, "Bearer "+g.Token(t, nil), agenttest.Body)
			require.NoError(t, err)
			require.Equal(t, http.StatusNotFound, resp.StatusCode, path)
			require.Equal(t, "not_found", resp.problem.Code)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
		resp, err := a.send(c, method, wire.PathExecStream, "Bearer "+g.Token(t, nil), "")
		require.NoError(t, err)
		require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode, method)
		require.Equal(t, "method_not_allowed", resp.problem.Code)
		require.Equal(t, http.MethodPost, resp.Header.Get("Allow"))
	}
}

// TestACommandUnderWayIsAnsweredBeforeTheEnd stops the agent while half of a
// request is there.
func TestACommandUnderWayIsAnsweredBeforeTheEnd(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.serve(ctx, agenttest.Quiet()) }()
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	status, _ := a.call(t, c, g.Token(t, nil), agenttest.Body) // it listens
	require.Equal(t, http.StatusUnprocessableEntity, status)

	conn, err := (&tls.Dialer{Config: c.Transport.(*http.Transport).TLSClientConfig}).DialContext(t.Context(), "tcp", strings.TrimPrefix(a.url(""), "https://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", wire.PathExec, g.Token(t, nil), len(agenttest.Body))
	require.NoError(t, err)
	answers := bufio.NewReader(conn)
	line, err := answers.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "100 Continue", "the agent waits for the body")
	_, err = answers.ReadString('\n')
	require.NoError(t, err)
	_, err = io.WriteString(conn, agenttest.Body[:10])
	require.NoError(t, err)
	cancel()
	agenttest.Eventually(t, "no new connection is taken", func() bool {
		probe, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(a.url(""), "https://"))
		if err == nil {
			_ = probe.Close()
		}
		return err != nil
	})
	select {
	case <-done:
		require.Fail(t, "the server ended while a request was under way")
	default:
	}
	_, err = io.WriteString(conn, agenttest.Body[10:])
	require.NoError(t, err)
	resp, err := http.ReadResponse(answers, nil)
	require.NoError(t, err)
	_ = resp.Body.Close()
	require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode)
	require.NoError(t, <-done)
}

// TestRefusalsOfTheExecutorAreRelayed with all that a caller needs of them.
func TestRefusalsOfTheExecutorAreRelayed(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	l, err := a.host.Listen(wire.ExecSocket)
	require.NoError(t, err)
	executor := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "5")
		agenttest.Refuse(w, http.StatusTooManyRequests, "busy")
	}))
	executor.Listener = l
	executor.Start()
	t.Cleanup(executor.Close)
	agenttest.Loop(t, func(ctx context.Context) error { return a.serve(ctx, agenttest.Quiet()) })
	body := strings.Replace(agenttest.Body, "version", "list-sites", 1)
	out, err := a.try(g.Caller(t, agenttest.ControlPlane(t, g.ExecCA)), g.TokenFor(t, body), body)
	require.NoError(t, err)
	require.Equal(t, []any{http.StatusTooManyRequests, "busy", "5"}, []any{out.StatusCode, out.problem.Code, out.Header.Get("Retry-After")})
}
