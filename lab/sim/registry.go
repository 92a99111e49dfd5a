package sim

import (
	"archive/tar"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
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
	"strings"
	"time"
)

// RegistryName is the machines' registry for images. Their engines trust it.
const RegistryName = "registry.cloud.example"

// hubName is where engines look for images without a registry in their name. Machines
// find the same images there, without a login, so that a stack's own names can be
// pulled.
const hubName = "registry-1.docker.io"

// registry serves images to machines, as the OCI distribution specification requires
// for pulls. It stores blobs by digest, and manifests by repository and tag. What it
// does not have is looked up in more, a directory of the reference implementation of
// registries.
type registry struct {
	dir, more      string
	ca             []byte // PEM, that machines trust it by
	user, password string // required if set
}

// ImageConfig is the default configuration of an image's containers.
type ImageConfig struct {
	Env        []string `json:"Env,omitempty"`
	Entrypoint []string `json:"Entrypoint,omitempty"`
	Cmd        []string `json:"Cmd,omitempty"`
	User       string   `json:"User,omitempty"`
	WorkingDir string   `json:"WorkingDir,omitempty"`
}

const (
	ociManifest = "application/vnd.oci.image.manifest.v1+json"
	ociConfig   = "application/vnd.oci.image.config.v1+json"
	ociLayer    = "application/vnd.oci.image.layer.v1.tar"
)

type ociDescriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// AddImage adds an image of one layer, a tar, to the registry that machines pull from;
// its reference is RegistryName/repository:tag.
func (s *Sim) AddImage(repository, tag string, layer io.Reader, config ImageConfig) error {
	if s.images == nil {
		return errors.New("only machines pull images")
	}
	return s.images.add(repository, tag, layer, config)
}

// AddProgram adds an image with one static program to the registry.
func (s *Sim) AddProgram(repository, tag, program, at string) error {
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(tarOf(w, program, strings.TrimPrefix(at, "/"))) }()
	return s.AddImage(repository, tag, r, ImageConfig{})
}

// RequireLogin makes the registry require a user and a password.
func (s *Sim) RequireLogin(user, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images.user, s.images.password = user, password
}

func (g *registry) add(repository, tag string, layer io.Reader, config ImageConfig) error {
	rootfs, err := g.blob(ociLayer, layer)
	if err != nil {
		return err
	}
	document, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": config,
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{rootfs.Digest}},
		"history": []any{map[string]any{"created_by": "prego-lab sim"}},
	})
	if err != nil {
		return err
	}
	about, err := g.blob(ociConfig, strings.NewReader(string(document)))
	if err != nil {
		return err
	}
	document, err = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": ociManifest, "config": about,
		"layers": []ociDescriptor{rootfs},
	})
	if err != nil {
		return err
	}
	manifest, err := g.blob(ociManifest, strings.NewReader(string(document)))
	if err != nil {
		return err
	}
	file := g.tagFile(repository, tag)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(manifest.Digest), 0o600)
}

func (g *registry) tagFile(repository, tag string) string {
	return filepath.Join(g.dir, "tags", filepath.FromSlash(repository), tag)
}

func (g *registry) blobFile(digest string) string {
	return filepath.Join(g.dir, "blobs", strings.TrimPrefix(digest, "sha256:"))
}

// find is the file of a manifest or a blob, and its digest.
func (g *registry) find(repository, kind, reference string) (file, digest string, ok bool) {
	if kind == "manifests" && !strings.HasPrefix(reference, "sha256:") {
		link := filepath.Join(g.more, "docker/registry/v2/repositories", filepath.FromSlash(repository),
			"_manifests/tags", reference, "current/link")
		b, err := os.ReadFile(g.tagFile(repository, reference))
		if err != nil && g.more != "" {
			b, err = os.ReadFile(link)
		}
		if err != nil {
			return "", "", false
		}
		reference = strings.TrimSpace(string(b))
	}
	sum := strings.TrimPrefix(reference, "sha256:")
	if len(sum) != sha256.Size*2 {
		return "", "", false
	}
	for _, file := range []string{
		g.blobFile(reference),
		filepath.Join(g.more, "docker/registry/v2/blobs/sha256", sum[:2], sum, "data"),
	} {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, reference, true
		}
	}
	return "", "", false
}

func (g *registry) blob(kind string, content io.Reader) (ociDescriptor, error) {
	if err := os.MkdirAll(filepath.Join(g.dir, "blobs"), 0o755); err != nil {
		return ociDescriptor{}, err
	}
	f, err := os.CreateTemp(filepath.Join(g.dir, "blobs"), ".new-*")
	if err != nil {
		return ociDescriptor{}, err
	}
	sum := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, sum), content)
	if err := errors.Join(err, f.Close()); err != nil {
		return ociDescriptor{}, errors.Join(err, os.Remove(f.Name()))
	}
	d := ociDescriptor{MediaType: kind, Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Size: size}
	return d, os.Rename(f.Name(), g.blobFile(d.Digest))
}

func (s *Sim) serveImages(ctx context.Context) error {
	g := &registry{dir: filepath.Join(s.cfg.StateDir, "registry"), more: s.cfg.Images}
	cert, err := g.certificate()
	if err != nil {
		return err
	}
	l, err := s.net.listenTCP(ctx, net.JoinHostPort(s.net.gateway(), "443"))
	if err != nil {
		return err
	}
	s.images = g
	s.serve(tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}),
		http.HandlerFunc(s.serveRegistry))
	program := s.cfg.StandIn
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	repository, tag, _ := strings.Cut(StandIn, ":")
	return s.AddProgram(repository, tag, program, StandInProgram)
}

// certificate creates the registry's certificate at each start: machines get its CA at each of theirs.
func (g *registry) certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: RegistryName},
		DNSNames: []string{RegistryName, hubName}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	g.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// serveRegistry answers /v2/REPOSITORY/manifests/REFERENCE and /v2/REPOSITORY/blobs/DIGEST.
func (s *Sim) serveRegistry(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	user, password := s.images.user, s.images.password
	s.mu.Unlock()
	if u, p, _ := r.BasicAuth(); user != "" && r.Host != hubName && (u != user || p != password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="`+RegistryName+`"`)
		registryError(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		return
	}
	path := strings.TrimPrefix(filepath.ToSlash(filepath.Clean(r.URL.Path)), "/v2")
	path = strings.Trim(path, "/")
	if path == "" {
		w.WriteHeader(http.StatusOK)
		return
	}
	parts := strings.Split(path, "/")
	if len(parts) < 3 {
		registryError(w, http.StatusNotFound, "NAME_UNKNOWN", "repository name not known to registry")
		return
	}
	repository, kind, reference := strings.Join(parts[:len(parts)-2], "/"), parts[len(parts)-2], parts[len(parts)-1]
	file, digest, ok := s.images.find(repository, kind, reference)
	if !ok && kind == "manifests" {
		registryError(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
		return
	}
	if !ok {
		registryError(w, http.StatusNotFound, "BLOB_UNKNOWN", "blob unknown to registry")
		return
	}
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Type", "application/octet-stream")
	if kind == "manifests" {
		var m struct {
			MediaType string `json:"mediaType"`
		}
		b, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		if err != nil || m.MediaType == "" {
			m.MediaType = ociManifest
		}
		w.Header().Set("Content-Type", m.MediaType)
	}
	http.ServeFile(w, r, file)
}

func registryError(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status,
		map[string]any{"errors": []any{map[string]any{"code": code, "message": message, "detail": nil}}})
}

// tarOf writes a tar of one program.
func tarOf(w io.Writer, file, name string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{
		Name: name, Mode: 0o755, Size: info.Size(),
		Typeflag: tar.TypeReg,
	}); err != nil {
		return err
	}
	if _, err := io.Copy(t, f); err != nil {
		return err
	}
	return t.Close()
}
