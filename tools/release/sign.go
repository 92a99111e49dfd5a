package main

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	sumsFile      = "SHA256SUMS"
	signatureFile = "SHA256SUMS.sig"
	publicFile    = "release-key.pem"
)

// readKey reads a key as `openssl genpkey -algorithm ed25519` writes it: the key of agent releases.
func readKey(file string) (ed25519.PrivateKey, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", file)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is no Ed25519 key", file)
	}
	return key, nil
}

func public(key ed25519.PrivateKey) ed25519.PublicKey {
	return ed25519.PublicKey(key[ed25519.PrivateKeySize-ed25519.PublicKeySize:])
}

func publicText(key ed25519.PrivateKey) string {
	return base64.StdEncoding.EncodeToString(public(key))
}

// checksums lists every file of the release, sorted by name. Signatures are made later, so that a build of the same
// commit without the key has the same list.
func (r *release) checksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, e := range entries {
		sum, err := digest(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s  %s\n", hex.EncodeToString(sum), e.Name())
	}
	return os.WriteFile(filepath.Join(r.out, sumsFile), []byte(list.String()), 0o644)
}

func digest(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, err
	}
	return sum.Sum(nil), nil
}

// sign signs the list of checksums, and the agents with the release's own prego, so that `prego agent release create`
// takes them.
func (r *release) sign(ctx context.Context, keyFile string, key ed25519.PrivateKey) error {
	list, err := os.ReadFile(filepath.Join(r.out, sumsFile))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.out, signatureFile), ed25519.Sign(key, list), 0o644); err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(public(key))
	if err != nil {
		return fmt.Errorf("public key: %w", err)
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if err := os.WriteFile(filepath.Join(r.out, publicFile), block, 0o644); err != nil {
		return err
	}
	for _, arch := range archs {
		agent := r.file("prego-agent", arch)
		cmd := exec.CommandContext(ctx, r.file("prego", runtime.GOARCH), "keys", "sign-agent", agent,
			"--key", keyFile, "--version", r.version)
		var problem strings.Builder
		cmd.Stderr = &problem
		signed, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("sign the agent for %s: %w: %s", arch, err, problem.String())
		}
		if err := os.WriteFile(agent+".signed.json", signed, 0o644); err != nil {
			return err
		}
	}
	return nil
}
