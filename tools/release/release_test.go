package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestArchivesDependOnContentsAlone: neither order nor clock shows in an archive.
func TestArchivesDependOnContentsAlone(t *testing.T) {
	t.Parallel()
	r := release{time: time.Unix(1_800_000_000, 0)}
	entries := []entry{{"a/", 0o755, nil}, {"a/b", 0o644, []byte("b")}, {"c", 0o755, []byte("c")}}
	var one, two bytes.Buffer
	if err := r.archive(&one, entries); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(entries)
	if err := r.archive(&two, entries); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Fatal("the order of entries shows")
	}
}

// TestAuthoritiesAreCertificates: programs can read the image's list of authorities.
func TestAuthoritiesAreCertificates(t *testing.T) {
	t.Parallel()
	text, err := authorities()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "BEGIN CERTIFICATE"); n < 100 || !x509.NewCertPool().AppendCertsFromPEM(text) {
		t.Fatalf("%d certificate authorities", n)
	}
}

// TestVersions: a version must be one in Debian's packages and in the agent's releases.
func TestVersions(t *testing.T) {
	t.Parallel()
	for version, good := range map[string]bool{
		"v0.1.0": true, "v0.1.0-rc1": true, "v1.20.3-rc.2": true,
		"": false, "0.1.0": false, "v0.1": false, "v0.1.0-": false, "v0.1.0 x": false, "../x": false,
		"v0.1.0-4-g2328fd5b-dirty": false,
	} {
		if versions.MatchString(version) != good {
			t.Errorf("%q: %v", version, !good)
		}
	}
}

// TestAgentsTrustTheKeyThatSigns: once, and first.
func TestAgentsTrustTheKeyThatSigns(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	own := publicText(key)
	for others, want := range map[string]string{"": own, own: own, "b": own + ",b", "b," + own: own + ",b"} {
		if got := trusted(key, others); got != want {
			t.Errorf("%q: %s", others, got)
		}
	}
	if !ed25519.Verify(public(key), []byte("x"), ed25519.Sign(key, []byte("x"))) {
		t.Error("public is another key's")
	}
}

// TestModulesHaveURLs: scanners find a module by its package URL.
func TestModulesHaveURLs(t *testing.T) {
	t.Parallel()
	m := module("github.com/google/uuid", "v1.6.0", "h1:NIvaJDMOsjHA8n1jAhLSgzrAzy1Hgr+hNrb57e+94F0=")
	if m.PackageURL != "pkg:golang/github.com/google/uuid@v1.6.0" || (*m.Hashes)[0].Value[:4] != "348b" {
		t.Errorf("%+v", m)
	}
	if module("std", "1.26.8", "").Hashes != nil {
		t.Error("a module without a sum has a hash")
	}
}
