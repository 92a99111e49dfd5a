package edge

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/prego/prego/agent/wire"
)

// TestNamesComeAndGoWithoutALoad: sites, domains and routes come, go, and change their state, while other names get
// requests over new and over kept connections. None is lost, and Caddy gets no new configuration.
func TestNamesComeAndGoWithoutALoad(t *testing.T) {
	t.Parallel()
	if !inOwnNetwork(t) {
		return
	}
	const rounds = 20
	e := newEdge(t)
	all := []string{"*.eu.example.com"}
	for i := range rounds {
		all = append(all, fmt.Sprintf("www.shop-%d.org", i))
	}
	pool, refs, certs := certified(t, all...)
	keys := slices.Collect(maps.Values(certs))
	at := upstream(t, "here")
	route := func(name, id string) wire.EdgeHost {
		to := []wire.EdgeUpstream{{Address: at}}
		return wire.EdgeHost{Name: name, Route: id, Port: 80, State: wire.EdgeServing, Upstreams: to}
	}
	steady := []wire.EdgeHost{serving("acme.eu.example.com", "t-0", at), route("shop.example.org", "rte-0")}
	d := wire.EdgeDocument{Hosts: steady, Certificates: refs[:1]}
	apply := func(hosts []wire.EdgeHost, certificates ...wire.EdgeCertificateRef) {
		d.Version++
		d.Hosts, d.Certificates = slices.Concat(steady, hosts), slices.Concat(refs[:1], certificates)
		require.NoError(t, e.Apply(context.Background(), d, keys))
	}
	apply(nil)
	loads := e.countLoads()
	e.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}

	ctx, stop := context.WithCancel(context.Background())
	var load sync.WaitGroup
	t.Cleanup(func() { stop(); load.Wait() })
	var sent, failed, closed atomic.Int64
	var first atomic.Value
	send := func(ask func() error) bool {
		sent.Add(1)
		err := ask()
		if err != nil {
			first.CompareAndSwap(nil, err.Error())
		}
		return err == nil
	}
	for i := range 6 {
		c := e.newClient()
		transport := c.Transport.(*http.Transport)
		transport.DisableKeepAlives = true
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
		url := []string{"https://acme.eu.example.com/", "http://shop.example.org/"}[i%2]
		load.Go(func() {
			for ctx.Err() == nil {
				ok := send(func() error {
					resp, err := c.Get(url)
					if err != nil {
						return err
					}
					_, err = io.Copy(io.Discard, resp.Body)
					if resp.StatusCode != http.StatusOK {
						err = errors.New(resp.Status)
					}
					return errors.Join(err, resp.Body.Close())
				})
				if !ok {
					failed.Add(1)
				}
			}
		})
	}
	for _, protocol := range []string{"http/1.1", "h2"} {
		config := &tls.Config{RootCAs: pool, ServerName: "acme.eu.example.com", NextProtos: []string{protocol}}
		conn, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(e.proxy.settings.HTTPSPort)), config)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		ask := overOneConnection(conn, protocol)
		load.Go(func() {
			for ctx.Err() == nil {
				ok := send(func() error {
					status, _, err := ask("acme.eu.example.com")
					if err == nil && status != http.StatusOK {
						err = fmt.Errorf("%s: status %d", protocol, status)
					}
					return err
				})
				if !ok {
					closed.Add(1)
					return
				}
			}
		})
	}

	for i, domain := range all[1:] {
		name := fmt.Sprintf("new-%d.eu.example.com", i)
		site, custom := serving(name, "t-1", at), serving(domain, "t-1", at)
		custom.Site = name
		api := route(fmt.Sprintf("api-%d.example.org", i), "rte-1")
		status := func(url string, want int) {
			t.Helper()
			got, body, _ := e.get(url)
			require.Equal(t, want, got, "%s: %s", url, body)
		}
		apply([]wire.EdgeHost{site, custom, api})
		status("https://"+name+"/", 200)
		status("http://"+name+"/", 308)
		status("http://"+domain+"/", 200)
		status("http://"+api.Name+"/", 200)
		custom.State, site.State = wire.EdgeMaintenance, wire.EdgeMaintenance
		apply([]wire.EdgeHost{site, custom, api}, refs[i+1])
		status("https://"+name+"/", 503)
		status("https://"+domain+"/", 503)
		status("http://"+domain+"/", 308)
		site.State, site.Upstreams = wire.EdgeServing, nil
		apply([]wire.EdgeHost{site})
		status("https://"+name+"/", 503)
		status("http://"+domain+"/", 404)
		status("http://"+api.Name+"/", 404)
		apply(nil)
		status("https://"+name+"/", 404)
	}
	stop()
	load.Wait()
	t.Logf("%d requests, %d documents, %d loads; %d new connections and %d of 2 kept connections failed",
		sent.Load(), d.Version, loads.Load(), failed.Load(), closed.Load())
	require.Zero(t, failed.Load()+closed.Load(), "%v", first.Load())
	require.Zero(t, loads.Load())
	require.Greater(t, sent.Load(), int64(200))
}

// TestHostileHosts: whatever a client takes for a name, it finds a name of the document or none, over HTTP/1.1 and
// HTTP/2, where a host is any text. No file of the edge is read for it.
func TestHostileHosts(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	label := strings.Repeat("a", 61)
	long := strings.Join([]string{label, label, label, label}, ".")
	long += "." + strings.Repeat("b", 253-1-len(long))
	require.Len(t, long, 253)
	require.NoError(t, checkName(long))
	require.Error(t, checkName(long+"b"))
	pool, refs, certs := certified(t, "acme.example.com", long)
	at := upstream(t, "here")
	d := wire.EdgeDocument{
		Version: 1, Certificates: refs,
		Hosts:      []wire.EdgeHost{serving("acme.example.com", "t-1", at), serving(long, "t-2", at)},
		Challenges: []wire.EdgeChallenge{{Host: long, Token: "t1", KeyAuthorization: "t1.thumb"}},
	}
	require.NoError(t, e.Apply(context.Background(), d, slices.Collect(maps.Values(certs))))
	e.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	status, body, _ := e.get("https://" + long + "/")
	require.Equal(t, 200, status)
	require.Contains(t, body, "host="+long)
	status, _, _ = e.get("http://" + long + "/")
	require.Equal(t, 308, status)
	_, body, _ = e.get("http://" + long + "/.well-known/acme-challenge/t1")
	require.Equal(t, "t1.thumb", body)

	secure := (listener{port: e.proxy.settings.HTTPSPort}).name()
	hosts := []string{
		"", ".", "..", "../" + secure + "/acme.example.com", "../../config.json", "../../secret",
		"../../certificates/acme.example.com", "acme.example.com/", "acme.example.com/../acme.example.com",
		"./acme.example.com", "/acme.example.com", "acme.example.com%00", "acme%2eexample.com", "*", "acme.*.com",
		"acme.example.[c]om", "{env.HOME}", "{http.request.host}", "acme.example.com}", "{file./etc/hostname}",
		"\\acme.example.com", "acme.example.com\\", "acme.example.com'", "ACME.example.com..",
		"acmé.example.com", "xn--acm-dma.example.com", "[::1]", "127.0.0.1", "draft", long + "b",
		strings.Repeat("c", 8000),
	}
	for _, host := range hosts {
		for _, protocol := range []string{"http/1.1", "h2"} {
			conn, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(e.proxy.settings.HTTPSPort)),
				&tls.Config{RootCAs: pool, ServerName: "acme.example.com", NextProtos: []string{protocol}})
			require.NoError(t, err)
			status, body, err := overOneConnectionTo(conn, protocol, host)
			_ = conn.Close()
			if err != nil {
				continue // no request for this server
			}
			require.Contains(t, []int{400, 404, 421, 431}, status, "%s %q: %s", protocol, host, body)
			require.NotContains(t, body, "here host=")
		}
	}
	for _, host := range []string{"acme.example.com", "ACME.Example.com.", "acme.example.com:443"} {
		conn, err := e.dialTLS("acme.example.com", pool)
		require.NoError(t, err)
		status, body, err := overOneConnectionTo(conn, "http/1.1", host)
		require.NoError(t, errors.Join(err, conn.Close()))
		require.Equal(t, 200, status, "%s: %s", host, body)
	}
	log, err := os.ReadFile(e.log)
	require.NoError(t, err)
	require.NotContains(t, string(log), "failed to read file", "unknown names don't fill the log")
}

// overOneConnectionTo asks with any text as the host, which Go's clients would refuse.
func overOneConnectionTo(conn net.Conn, protocol, host string) (int, string, error) {
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return 0, "", err
	}
	if protocol != "h2" {
		return overOneConnection(conn, protocol)(host)
	}
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":path", "/"}, {":authority", host}} {
		if err := fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return 0, "", err
		}
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err := io.WriteString(conn, http2.ClientPreface)
	err = errors.Join(err, framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
	}))
	if err != nil {
		return 0, "", err
	}
	status, body := 0, ""
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return 0, "", err
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			status, _ = strconv.Atoi(f.PseudoValue("status"))
		case *http2.DataFrame:
			body += string(f.Data())
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return 0, "", errors.New("refused")
		}
		if frame.Header().Flags.Has(http2.FlagDataEndStream) && frame.Header().Type != http2.FrameSettings {
			return status, body, nil
		}
	}
}

// TestNamesFilesAreKept: names with the same content share a file, a change of one changes no other's, and a start
// repairs what a crash has left.
func TestNamesFilesAreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *Edge {
		e, err := Open(dir, Settings{RunDir: dir})
		require.NoError(t, err)
		return e
	}
	const a, b, c = namesDir + "/shared:443/a.org", namesDir + "/shared:443/b.org", namesDir + "/shared:80/c.org"
	contains := func(want map[string]string) {
		t.Helper()
		got := map[string]string{}
		require.NoError(t, filepath.WalkDir(filepath.Join(dir, namesDir), func(path string, f fs.DirEntry, err error) error {
			if err != nil || f.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			got[strings.TrimPrefix(path, dir+"/")] = string(content)
			return err
		}))
		require.Equal(t, want, got)
	}
	e := open()
	require.NoError(t, e.filed(map[string]string{a: "same", b: "same", c: "other"}))
	one, err := os.Stat(filepath.Join(dir, a))
	require.NoError(t, err)
	two, err := os.Stat(filepath.Join(dir, b))
	require.NoError(t, err)
	require.True(t, os.SameFile(one, two))
	require.Equal(t, os.FileMode(0o600), one.Mode().Perm())

	require.NoError(t, os.Link(filepath.Join(dir, b), filepath.Join(dir, draftFile)), "a process died here")
	require.NoError(t, e.filed(map[string]string{a: "new", b: "same"}))
	contains(map[string]string{a: "new", b: "same"})

	require.NoError(t, os.Remove(filepath.Join(dir, a)))
	require.NoError(t, os.WriteFile(filepath.Join(dir, b), nil, 0o600), "a power cut")
	require.NoError(t, os.WriteFile(filepath.Join(dir, c), []byte("gone"), 0o600))
	e = open() // its document has no names
	contains(map[string]string{})
	require.NoError(t, os.WriteFile(filepath.Join(dir, b), nil, 0o600), "a power cut")
	require.NoError(t, e.refile(map[string]string{a: "new", b: "same"}))
	contains(map[string]string{a: "new", b: "same"})
}
