package edge

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/need"
)

const noName = "xn--e1afmkfd-385f3.example.com" // its label is no punycode

// asked is the status of a request for a host over HTTP.
func (e *testEdge) asked(host string) int {
	e.tb.Helper()
	status, _, _ := e.get("http://" + host + "/")
	return status
}

// TestEdgeLeavesRefusedNamesOut: a document with bad names of each kind is served without them. They are reported
// with their owner, again after a restart, and no longer when they are gone.
func TestEdgeLeavesRefusedNamesOut(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	place := upstream(t, "here")
	route := func(name, id string) wire.EdgeHost {
		return wire.EdgeHost{Name: name, Route: id, Port: 80, State: wire.EdgeServing, Upstreams: []wire.EdgeUpstream{{Address: place}}}
	}
	good := []wire.EdgeHost{serving("acme.example.com", "t-1", place), route("shop.example.org", "rte-1")}
	require.NoError(t, e.Apply(context.Background(), wire.EdgeDocument{Version: 1, Hosts: good[:1]}, nil))

	slug := serving(noName, "t-2", place)
	domain := serving("acme.example.com", "t-3", place)
	domain.Name = "www." + noName
	placeholder := serving("{env.HOME}.example.com", "t-4", place)
	placeholder.Site = "d.example.com"
	wildcard := serving("*.example.com", "t-5", place)
	wildcard.Site = "e.example.com"
	nowhere := serving("f.example.com", "t-6", "10.0.0.1:80\n")
	d := wire.EdgeDocument{
		Version: 2, Hosts: append([]wire.EdgeHost{slug, domain, placeholder, wildcard, nowhere, route("shop."+noName, "rte-2"), route("ok.example.org", "rte 3")}, good...),
		Challenges: []wire.EdgeChallenge{
			{Host: noName, Token: "t0", KeyAuthorization: "t0.thumb"},
			{Host: "new.example.net", Token: "t1", KeyAuthorization: "t1.thumb"},
			{Host: "other.example.net", Token: "*", KeyAuthorization: "t2.thumb"},
		},
		TCP:     []wire.EdgeTCP{{Route: "rte-4", Address: "fe80::1%x", Port: 5432, Upstreams: []wire.EdgeUpstream{{Address: place}}}},
		Passing: []string{"192.0.2.1", "nonsense"},
	}
	require.NoError(t, e.Apply(context.Background(), d, nil))
	require.Equal(t, int64(2), e.Document().Version)
	for _, h := range good {
		require.Equal(t, 200, e.asked(h.Name))
	}
	_, answer, _ := e.get("http://new.example.net/.well-known/acme-challenge/t1")
	require.Equal(t, "t1.thumb", answer)
	require.Equal(t, 404, e.asked("f.example.com"))

	reported := map[string]string{}
	for _, p := range e.LeftOut() {
		require.NotEmpty(t, p.Reason, p)
		reported[string(p.Kind)+" "+p.Name] = p.Tenant + p.Route
	}
	require.Equal(t, map[string]string{
		"host " + noName: "t-2", "host www." + noName: "t-3", "host {env.HOME}.example.com": "t-4", "host *.example.com": "t-5", "host f.example.com": "t-6",
		"host shop." + noName: "rte-2", "host ok.example.org": "rte 3", "challenge " + noName: "", "challenge other.example.net": "", "tcp [fe80::1%x]:5432": "rte-4", "passing nonsense": "",
	}, reported)
	i := slices.IndexFunc(e.LeftOut(), func(p wire.EdgeLeftOut) bool { return p.Name == noName && p.Kind == wire.EdgeHostPart })
	require.Contains(t, e.LeftOut()[i].Reason, "idna: invalid label")

	again, err := Open(e.Edge.dir, e.proxy.settings)
	require.NoError(t, err)
	require.Equal(t, e.LeftOut(), again.LeftOut())
	require.NoError(t, again.Apply(context.Background(), again.Document(), nil))
	require.Equal(t, e.LeftOut(), again.LeftOut())
	require.NoError(t, again.Apply(context.Background(), wire.EdgeDocument{Version: 3, Hosts: good}, nil))
	require.Empty(t, again.LeftOut())
}

// taken is a port that another program has.
func taken(t *testing.T) (port int, release func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().(*net.TCPAddr).Port, func() { _ = l.Close() }
}

// on is a route of names and a route of a port.
func on(http, tcp int, place string) (wire.EdgeHost, wire.EdgeTCP) {
	to := []wire.EdgeUpstream{{Address: place}}
	return wire.EdgeHost{Name: "busy.example.org", Route: "rte-1", Port: http, State: wire.EdgeServing, Upstreams: to}, wire.EdgeTCP{Route: "rte-2", Port: tcp, Upstreams: to}
}

// leftOut are the parts that are left out.
func (e *testEdge) leftOut() (names []string) {
	for _, p := range e.LeftOut() {
		names = append(names, string(p.Kind)+" "+p.Name)
	}
	return names
}

// TestEdgeLeavesBusyPortsOut until the program that has them is gone. Of a certificate without its key, the previous one is served.
func TestEdgeLeavesBusyPortsOut(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	place := upstream(t, "here")
	pool, refs, certs := certified(t, "acme.example.com")
	acme := serving("acme.example.com", "t-0", place)
	require.NoError(t, e.Apply(context.Background(), wire.EdgeDocument{Version: 1, Hosts: []wire.EdgeHost{acme}, Certificates: refs}, []wire.EdgeCertificate{certs["crt-0"]}))
	e.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}

	one, release := taken(t)
	two, releaseTwo := taken(t)
	host, tcp := on(one, two, place)
	broken := certs["crt-0"]
	broken.SHA256, broken.Key = strings.Repeat("0", 64), "no key"
	d := wire.EdgeDocument{
		Version: 2, Hosts: []wire.EdgeHost{acme, host, serving("new.example.com", "t-1", place)}, TCP: []wire.EdgeTCP{tcp},
		Certificates: []wire.EdgeCertificateRef{broken.EdgeCertificateRef},
	}
	require.NoError(t, e.Apply(context.Background(), d, []wire.EdgeCertificate{broken}))
	require.Equal(t, []string{"certificate crt-0", "host busy.example.org", "tcp :" + strconv.Itoa(two)}, e.leftOut())
	for _, p := range e.LeftOut()[1:] {
		require.Contains(t, p.Reason, "another program of the edge has port ")
	}
	require.Equal(t, 200, e.asked("new.example.com"))
	status, _, _ := e.get("https://acme.example.com/")
	require.Equal(t, 200, status)

	release()
	releaseTwo()
	require.NoError(t, e.Apply(context.Background(), e.Document(), nil))
	require.Equal(t, []string{"certificate crt-0"}, e.leftOut())
	for _, port := range []int{one, two} {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		require.NoError(t, err)
		_ = c.Close()
	}
}

// TestAKeyThatNoGatewayOpensCostsItsName: the previous certificate is served, or none, and everything else is as the
// document has it. Once there is a key, it is not waited for.
func TestAKeyThatNoGatewayOpensCostsItsName(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	names := []string{"acme.example.com", "new.example.com", "other.example.com"}
	oldPool, oldRefs, old := certified(t, names...)
	pool, refs, certs := certified(t, names...)
	d := wire.EdgeDocument{Version: 1, Certificates: oldRefs[:1]}
	for _, name := range names {
		d.Hosts = append(d.Hosts, serving(name, "t-"+name, "127.0.0.1:1"))
	}
	require.NoError(t, e.Apply(context.Background(), d, []wire.EdgeCertificate{old["crt-0"]}))
	without := func(id string) wire.EdgeCertificate {
		ref := certs[id].EdgeCertificateRef
		return wire.EdgeCertificate{EdgeCertificateRef: ref, Refused: "no gateway can open its key"}
	}
	d.Version, d.Certificates = 2, refs
	fetched := []wire.EdgeCertificate{without("crt-0"), without("crt-1"), certs["crt-2"]}
	for range 2 { // and once more without a change
		require.Equal(t, []string{"crt-0", "crt-1"}, e.Missing(d)[:2])
		require.NoError(t, e.Apply(context.Background(), d, fetched))
		require.EqualValues(t, 2, e.Document().Version)
		require.Equal(t, []string{"certificate crt-0", "certificate crt-1"}, e.leftOut())
		require.Equal(t, "no gateway can open its key", e.LeftOut()[0].Reason)
		_, err := e.shake(names[0], oldPool)
		require.NoError(t, err, "the previous certificate")
		_, err = e.shake(names[1], pool)
		require.Error(t, err)
		_, err = e.shake(names[2], pool)
		require.NoError(t, err)
		fetched = fetched[:2]
	}
	require.NoError(t, e.Apply(context.Background(), d, []wire.EdgeCertificate{certs["crt-0"], certs["crt-1"]}))
	require.Empty(t, e.LeftOut())
	require.Empty(t, e.Missing(d))
	for _, name := range names {
		_, err := e.shake(name, pool)
		require.NoError(t, err)
	}
}

// TestEdgeFindsWhatItsServersRefuse: parts may look valid, such as a port that another program takes at that moment.
// Sites are served during the search, and findings are not searched for again with each document.
func TestEdgeFindsWhatItsServersRefuse(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.tryPort = func(string, int) error { return nil }
	place := upstream(t, "here")
	acme := serving("acme.example.com", "t-0", place)
	require.NoError(t, e.Apply(context.Background(), wire.EdgeDocument{Version: 1, Hosts: []wire.EdgeHost{acme}}, nil))
	one, release := taken(t)
	two, _ := taken(t)
	host, tcp := on(one, two, place)
	d := wire.EdgeDocument{Version: 2, Hosts: []wire.EdgeHost{acme}, TCP: []wire.EdgeTCP{tcp, {Route: "rte-3", Port: need.Port(t), Upstreams: tcp.Upstreams}}}
	for i := range 40 {
		d.Hosts = append(d.Hosts, serving(fmt.Sprintf("s%02d.example.com", i), fmt.Sprintf("t-%d", i+1), place))
	}
	d.Hosts = slices.Insert(d.Hosts, 17, host)

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	statuses, client := make(chan map[int]int, 1), e.newClient()
	go func() {
		got := map[int]int{}
		for tick := time.Tick(2 * time.Millisecond); ctx.Err() == nil; <-tick { // the servers need the processors
			if resp, err := client.Get("http://acme.example.com/"); err == nil {
				_ = resp.Body.Close()
				got[resp.StatusCode]++
			}
		}
		statuses <- got
	}()
	require.NoError(t, e.Apply(context.Background(), d, nil))
	stop()
	got := <-statuses
	require.Len(t, got, 1, "%v", got)
	require.Positive(t, got[200])
	require.Equal(t, int64(2), e.Document().Version)
	require.Equal(t, []string{"host busy.example.org", "tcp :" + strconv.Itoa(two)}, e.leftOut())
	require.Contains(t, e.LeftOut()[0].Reason, "address already in use")
	for _, h := range d.Hosts {
		if h.Route == "" {
			require.Equal(t, 200, e.asked(h.Name), h.Name)
		}
	}
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(d.TCP[1].Port)))
	require.NoError(t, err)
	_ = c.Close()

	found := slices.Clone(e.Edge.leftOut)
	d.Version, d.Hosts = 3, append(slices.Clone(d.Hosts), serving("new.example.com", "t-99", place))
	require.NoError(t, e.Apply(context.Background(), d, nil))
	require.Equal(t, 200, e.asked("new.example.com"))
	require.Equal(t, found, e.Edge.leftOut, "they have not been tried again")
	release()
	for i := range e.Edge.leftOut {
		e.Edge.leftOut[i].Tried = e.Edge.leftOut[i].Tried.Add(-retryRefused)
	}
	require.NoError(t, e.Apply(context.Background(), e.Document(), nil))
	require.Equal(t, []string{"tcp :" + strconv.Itoa(two)}, e.leftOut())
	c, err = net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(one)))
	require.NoError(t, err)
	_ = c.Close()
}

// TestEdgeAnswersForANameOfTwoHosts: one is for port 80, and the other would be served there until it has a certificate.
func TestEdgeAnswersForANameOfTwoHosts(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	both := func(route string, port int) wire.EdgeHost {
		return wire.EdgeHost{Name: "shop.example.org", Route: route, Port: port, TLS: port == 0, State: wire.EdgeServing, Upstreams: []wire.EdgeUpstream{{Address: upstream(t, route)}}}
	}
	d := wire.EdgeDocument{Version: 1, Hosts: []wire.EdgeHost{both("rte-1", 0), both("rte-2", 80)}}
	require.NoError(t, e.Apply(context.Background(), d, nil))
	require.Empty(t, e.LeftOut())
	_, body, _ := e.get("http://shop.example.org/")
	require.Contains(t, body, "rte-2 ")
}

func TestNamesAreChecked(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"acme.example.com", "xn--bcher-kva.example", "ab--cd.example", "xn--u-ccb.example", strings.Repeat("a", 253),
	} {
		require.NoError(t, checkName(name))
	}
	for _, name := range []string{
		"xn--e1afmkfd-385f3.example", "www.xn--e1afmkfd-385f3.example", "xn--0.pt", "xn--a-.b",
		"", "..", ".example.com", "a/b.example.com", "Acme.example.com", "a b.example.com", strings.Repeat("a", 254),
	} {
		require.Error(t, checkName(name), name)
	}
}

// TestWhatTheAPITakesEdgesTake: no name that a customer can have is refused by an edge.
func TestWhatTheAPITakesEdgesTake(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		label := rapid.OneOf(rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?`), rapid.StringMatching(`xn--[a-z0-9-]{0,12}[a-z0-9]`))
		name := label.Draw(t, "first") + "." + label.Draw(t, "second") + ".example"
		got, err := prego.NormalizeHostname(name)
		if err != nil {
			require.Equal(t, prego.CodeInvalidField, prego.CodeOf(err))
			return
		}
		require.NoError(t, checkName(got))
	})
}

// TestRefusalsSurviveARestart: a refusal is what it was once it has been to a file and back.
func TestRefusalsSurviveARestart(t *testing.T) {
	t.Parallel()
	want := saved{EdgeDocument: wire.EdgeDocument{Version: 7}, LeftOut: []refusal{{
		part: part{wire.EdgeTCPPart, "", "192.0.2.1", 25}, Route: "rte-1", Reason: "no", Tried: time.Unix(1, 0).UTC(),
	}}}
	b, err := json.Marshal(want)
	require.NoError(t, err)
	var got saved
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, want, got)
}
