package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// entry is a file, or with a slash at its end a directory, of an archive.
type entry struct {
	name    string
	mode    int64
	content []byte
}

// image writes an OCI layout in an archive. `docker load`, `podman load` and skopeo read it. Its content is that
// of the Dockerfile and tools/image-context.sh, except that a pinned module has the public authorities.
func (r *release) image(arch string) error {
	layer, err := r.layer(arch)
	if err != nil {
		return err
	}
	bare := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(bare, mutate.Addendum{
		Layer: layer, History: v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "tools/release"},
	})
	if err != nil {
		return err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Created = arch, "linux", v1.Time{Time: r.time}
	file.Config = v1.Config{
		User: "65532:65532", Entrypoint: []string{"/prego"},
		Env: []string{"PREGO_AGENTGW_AGENT_BINARY=/prego-agent", "PREGO_KEYS_DIR=/keys"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "prego", "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.revision": r.commit, "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.created": r.time.Format(time.RFC3339),
		},
	}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return err
	}
	dir := filepath.Join(r.out, "image-"+arch)
	defer func() { _ = os.RemoveAll(dir) }()
	at, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	name := "prego:" + r.version
	named := layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.version, "io.containerd.image.name": "docker.io/library/" + name,
	})
	platform := layout.WithPlatform(v1.Platform{OS: "linux", Architecture: arch})
	if err := at.AppendImage(img, platform, named); err != nil {
		return err
	}
	if err := writeDockerManifest(img, dir, name); err != nil {
		return err
	}
	entries, err := tree(dir)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(r.out, "prego-image-linux-"+arch+".tar"))
	if err != nil {
		return err
	}
	if err := r.archive(f, entries); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// layer is the image's file system.
func (r *release) layer(arch string) (v1.Layer, error) {
	prego, err := os.ReadFile(r.file("prego", arch))
	if err != nil {
		return nil, err
	}
	agent, err := os.ReadFile(r.file("prego-agent", archs[0]))
	if err != nil {
		return nil, err
	}
	authorities, err := authorities()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := r.archive(&b, []entry{
		{"etc/", 0o755, nil},
		{"etc/group", 0o644, []byte("prego:x:65532:\n")},
		{"etc/passwd", 0o644, []byte("prego:x:65532:65532:prego:/:/prego\n")},
		{"etc/ssl/", 0o755, nil},
		{"etc/ssl/certs/", 0o755, nil},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, authorities},
		{"prego", 0o755, prego},
		{"prego-agent", 0o755, agent},
		{"tmp/", 0o1777, nil},
	}); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

// authorities are the public certificate authorities, in PEM. Those with conditions that PEM can't express are left
// out: browsers no longer trust them for new certificates.
func authorities() ([]byte, error) {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if _, err := x509.ParseCertificate(root.Certificate); err != nil {
			return nil, fmt.Errorf("certificate authority: %w", err)
		}
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// writeDockerManifest lets engines that know no OCI layout read the archive: Docker with its older store of images.
func writeDockerManifest(img v1.Image, dir, name string) error {
	config, err := img.ConfigName()
	if err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	var paths []string
	for _, l := range layers {
		h, err := l.Digest()
		if err != nil {
			return err
		}
		paths = append(paths, blob(h))
	}
	b, err := json.Marshal(tarball.Manifest{{Config: blob(config), RepoTags: []string{name}, Layers: paths}})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), b, 0o644)
}

// tree reads a directory's files.
func tree(dir string) ([]entry, error) {
	var out []entry
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			out = append(out, entry{name + "/", 0o755, nil})
			return nil
		}
		b, err := os.ReadFile(path)
		out = append(out, entry{name, 0o644, b})
		return err
	})
	return out, err
}

// archive writes a tar that depends on names, modes and contents alone.
func (r *release) archive(w io.Writer, entries []entry) error {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b entry) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	t := tar.NewWriter(w)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.name, Mode: e.mode, ModTime: r.time, Size: int64(len(e.content)), Typeflag: tar.TypeReg,
			Format: tar.FormatUSTAR,
		}
		if e.name[len(e.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(e.content); err != nil {
			return err
		}
	}
	return t.Close()
}
