package sim

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/prego/prego/agent/wire"
)

// cloudConfig is the supported part of a cloud-init document.
type cloudConfig struct {
	WriteFiles []struct {
		Path        string `yaml:"path"`
		Content     string `yaml:"content"`
		Encoding    string `yaml:"encoding"`
		Permissions string `yaml:"permissions"`
		Defer       bool   `yaml:"defer"`
		Owner       string `yaml:"owner"`
	} `yaml:"write_files"`
}

// cloudInit does what cloud-init and our boot script do on a real host: it writes
// the files, fetches the second stage if there is one, installs the agent, and
// phones home at each stage.
func (h *processHost) cloudInit(ctx context.Context) error {
	h.setPhase("cloud-init")
	doc, err := decodeUserData(h.user)
	if err != nil {
		return err
	}
	var cc cloudConfig
	if err := yaml.Unmarshal(doc, &cc); err != nil {
		return fmt.Errorf("user_data: %w", err)
	}
	for _, f := range cc.WriteFiles {
		content, err := decodeContent(f.Content, f.Encoding)
		if err != nil {
			return fmt.Errorf("write_files %s: %w", f.Path, err)
		}
		if err := h.writeFile(f.Path, content, f.Permissions); err != nil {
			return err
		}
	}
	var cfg wire.HostConfig
	b, err := os.ReadFile(filepath.Join(h.root(), wire.HostConfigPath))
	if err != nil {
		return fmt.Errorf("user_data leaves no %s", wire.HostConfigPath)
	}
	if err := json.Unmarshal(b, &cfg); err != nil {
		return fmt.Errorf("%s: %w", wire.HostConfigPath, err)
	}
	gw, err := h.gateway(cfg)
	if err != nil {
		return err
	}
	if err := gw.stageTwo(ctx, h); err != nil {
		gw.report(ctx, wire.StageFailed, "second stage: "+err.Error())
		return err
	}
	for _, stage := range []wire.BootStage{
		wire.StageCloudInitStarted, wire.StageFirewallReady,
		wire.StageDockerInstalled,
	} {
		gw.report(ctx, stage, "")
		if err := sleep(ctx, h.sim.cfg.Profile.Stage); err != nil {
			return err
		}
	}
	if h.plan.withoutAgent {
		gw.report(ctx, wire.StageFailed, "prego-agent could not be installed")
		return nil
	}
	if err := h.sim.agents.install(filepath.Join(h.root(), wire.AgentBinary), cfg.AgentSHA256,
		func() (io.ReadCloser, error) {
			return gw.get(ctx, wire.PathAgentBinary+"?sha256="+cfg.AgentSHA256)
		}); err != nil {
		gw.report(ctx, wire.StageFailed, "agent: "+err.Error())
		return fmt.Errorf("install the agent: %w", err)
	}
	gw.report(ctx, wire.StageAgentInstalled, "")
	return sleep(ctx, h.sim.cfg.Profile.Stage)
}

// decodeUserData accepts what cloud-init's source for this provider does: plain
// text, or base64 of text or gzip.
func decodeUserData(s string) ([]byte, error) {
	doc := []byte(s)
	if !strings.HasPrefix(s, "#") {
		if b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(s)); err == nil {
			doc = b
		}
	}
	if bytes.HasPrefix(doc, []byte{0x1f, 0x8b}) {
		r, err := gzip.NewReader(bytes.NewReader(doc))
		if err != nil {
			return nil, fmt.Errorf("user_data: %w", err)
		}
		if doc, err = io.ReadAll(io.LimitReader(r, 1<<20)); err != nil {
			return nil, fmt.Errorf("user_data: %w", err)
		}
	}
	if !bytes.HasPrefix(doc, []byte("#cloud-config\n")) {
		return nil, errors.New("user_data is not a #cloud-config document; nothing was run")
	}
	return doc, nil
}

func decodeContent(content, encoding string) ([]byte, error) {
	out := []byte(content)
	var err error
	switch encoding {
	case "", "text/plain":
		return out, nil
	case "b64", "base64", "gz+b64", "gzip+base64", "gz+base64":
		if out, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(content), "")); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("unknown encoding %q", encoding)
	}
	if strings.HasPrefix(encoding, "gz") {
		r, err := gzip.NewReader(bytes.NewReader(out))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(io.LimitReader(r, 8<<20))
	}
	return out, nil
}

// writeFile writes a file below the host's root, wherever its path points.
func (h *processHost) writeFile(path string, content []byte, permissions string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("write_files: path %q is not absolute", path)
	}
	mode := os.FileMode(0o644)
	if permissions != "" {
		n, err := strconv.ParseUint(permissions, 8, 12)
		if err != nil {
			return fmt.Errorf("write_files %s: permissions %q", path, permissions)
		}
		mode = os.FileMode(n)
	}
	target := filepath.Join(h.root(), filepath.Clean("/"+path))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(target, content, mode); err != nil {
		return err
	}
	return os.Chmod(target, mode)
}

// gatewayClient calls the agent gateway as the boot script does.
type gatewayClient struct {
	client *http.Client
	base   string
	token  string
	server string
	addr   string
}

func (h *processHost) gateway(cfg wire.HostConfig) (*gatewayClient, error) {
	bundle, err := os.ReadFile(filepath.Join(h.root(), wire.GatewayCAPath))
	if err != nil {
		return nil, fmt.Errorf("user_data leaves no %s", wire.GatewayCAPath)
	}
	token, err := os.ReadFile(filepath.Join(h.root(), wire.BootstrapTokenPath))
	if err != nil {
		return nil, fmt.Errorf("user_data leaves no %s", wire.BootstrapTokenPath)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("%s holds no certificate", wire.GatewayCAPath)
	}
	return &gatewayClient{
		base: strings.TrimSuffix(cfg.GatewayURL, "/"), token: strings.TrimSpace(string(token)), server: cfg.ServerID,
		addr: h.addr, client: h.httpClient(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: pool,
			ServerName: cfg.GatewayServerName,
		}),
	}, nil
}

func (h *processHost) httpClient(cfg *tls.Config) *http.Client {
	dialer := &net.Dialer{Timeout: 3 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(h.addr)}}
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DialContext:     dialer.DialContext,
		TLSClientConfig: cfg, DisableKeepAlives: true,
	}}
}

// report phones home; a failure stops nothing.
func (g *gatewayClient) report(ctx context.Context, stage wire.BootStage, detail string) {
	body, err := json.Marshal(wire.BootStageRequest{
		ServerID: g.server, Stage: stage,
		Detail: detail[:min(len(detail), 500)],
	})
	if err != nil {
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.base+wire.PathBootStage, bytes.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Authorization", "Bearer "+g.token)
	req.Header.Set("Content-Type", "application/json")
	if resp, err := g.client.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}

func (g *gatewayClient) get(ctx context.Context, path string) (io.ReadCloser, error) {
	wait := 200 * time.Millisecond
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base+path, nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+g.token)
		resp, err := g.client.Do(req)
		if err == nil && resp.StatusCode == http.StatusOK {
			return resp.Body, nil
		}
		if err == nil {
			_ = resp.Body.Close()
			err = fmt.Errorf("%s answered %d", path, resp.StatusCode)
			if resp.StatusCode/100 == 4 && resp.StatusCode != http.StatusTooManyRequests {
				return nil, err
			}
		}
		if sleep(ctx, wait) != nil {
			return nil, err
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// stageTwo fetches, checks and unpacks the second stage.
func (g *gatewayClient) stageTwo(ctx context.Context, h *processHost) error {
	b, err := os.ReadFile(filepath.Join(h.root(), wire.StageTwoPath))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var pin wire.StageTwo
	if err := json.Unmarshal(b, &pin); err != nil {
		return err
	}
	body, err := g.get(ctx, pin.Path)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	archive, err := io.ReadAll(io.LimitReader(body, 16<<20))
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(archive); hex.EncodeToString(sum[:]) != pin.SHA256 {
		return errors.New("its digest is not the pinned one")
	}
	gz, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	for r := tar.NewReader(gz); ; {
		hdr, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if hdr.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(io.LimitReader(r, 8<<20))
		if err != nil {
			return err
		}
		if err := h.writeFile("/"+hdr.Name, content, strconv.FormatInt(hdr.Mode&0o777, 8)); err != nil {
			return err
		}
	}
}

func saveVerified(target, digest string, body io.Reader) error {
	content, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	if got := hex.EncodeToString(sum[:]); got != digest {
		return fmt.Errorf("the agent's digest is %s, not %s", got, digest)
	}
	return writeProgram(target, content, 0o755)
}

// writeProgram replaces a file. Nothing is forked meanwhile: until its exec, a child would have the file open for
// writing, and Linux starts no such program ("text file busy").
func writeProgram(path string, content []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock()
	err := os.WriteFile(path+".new", content, mode)
	syscall.ForkLock.RUnlock()
	if err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// stealToken presents the host's token with another key.
func (h *processHost) stealToken(ctx context.Context) error {
	var cfg wire.HostConfig
	b, err := os.ReadFile(filepath.Join(h.root(), wire.HostConfigPath))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &cfg); err != nil {
		return err
	}
	gw, err := h.gateway(cfg)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "thief"},
		NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	csrDER, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	csr := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csrDER}))
	transport, ok := gw.client.Transport.(*http.Transport)
	if !ok {
		return errors.New("unexpected transport")
	}
	transport.TLSClientConfig.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	body, err := json.Marshal(wire.HandshakeRequest{
		ServerID: cfg.ServerID, Token: gw.token, CSRs: wire.CSRs{AgentClient: csr, AgentServer: csr, DockerServer: csr},
		AgentVersion: "thief",
	})
	if err != nil {
		return err
	}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, gw.base+wire.PathHandshake, bytes.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := gw.client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}
