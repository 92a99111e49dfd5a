package main

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"debug/elf"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/agent/wire"
)

// newSignAgentCommand signs a release of the agent, where it is built: the key belongs to no
// process of the control plane.
func newSignAgentCommand() *cobra.Command {
	var key, reported string
	cmd := &cobra.Command{
		Use: "sign-agent FILE", Short: "Sign a release of the agent with an Ed25519 key in PEM", Args: cobra.ExactArgs(1),
		Example: "  openssl genpkey -algorithm ed25519 -out agent-release.pem\n  prego keys sign-agent bin/prego-agent --key agent-release.pem > signed.json",
		RunE: func(cmd *cobra.Command, args []string) error {
			private, err := releaseKey(key)
			if err != nil {
				return err
			}
			signed, err := signAgent(cmd.Context(), args[0], reported, private, time.Now())
			if err != nil {
				return err
			}
			public, _ := private.Public().(ed25519.PublicKey)
			fmt.Fprintf(cmd.ErrOrStderr(), "signed; agents take it that were built with -X main.releaseKeys=%s\n", base64.StdEncoding.EncodeToString(public))
			return json.NewEncoder(cmd.OutOrStdout()).Encode(signed)
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "file with the private key")
	cmd.Flags().StringVar(&reported, "version", "",
		"version that the program reports, if it is for another architecture")
	_ = cmd.MarkFlagRequired("key")
	return cmd
}

func releaseKey(file string) (ed25519.PrivateKey, error) {
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

// archs are GOARCH by the machines of programs.
var archs = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}

// signAgent signs a program with the version that it reports. A program that cannot run here is taken at its builder's
// word: hosts refuse it if it reports another version.
func signAgent(
	ctx context.Context, file, reported string, key ed25519.PrivateKey, now time.Time,
) (wire.SignedAgentUpdate, error) {
	f, err := os.Open(file)
	if err != nil {
		return wire.SignedAgentUpdate{}, err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return wire.SignedAgentUpdate{}, err
	}
	program, err := elf.NewFile(f)
	if err != nil || archs[program.Machine] == "" {
		return wire.SignedAgentUpdate{}, errors.Join(fmt.Errorf("%s is no program for hosts", file), err)
	}
	arch := archs[program.Machine]
	version, err := agentVersion(ctx, file, arch, reported)
	if err != nil {
		return wire.SignedAgentUpdate{}, err
	}
	return wire.SignAgentUpdate(wire.AgentUpdate{
		Version: version, Serial: now.Unix(), SHA256: hex.EncodeToString(sum.Sum(nil)), Bytes: n, Arch: arch,
	}, key)
}

func agentVersion(ctx context.Context, file, arch, reported string) (string, error) {
	printed, err := exec.CommandContext(ctx, file, "version").Output()
	version := strings.TrimSpace(string(printed))
	switch {
	case err != nil && arch != runtime.GOARCH && reported != "":
		return reported, nil
	case err != nil && arch != runtime.GOARCH:
		return "", fmt.Errorf("%s is for %s and can't run here: name its version with --version", file, arch)
	case err != nil:
		return "", fmt.Errorf("ask %s for its version: %w", file, err)
	case reported != "" && reported != version:
		return "", fmt.Errorf("%s reports version %s, not %s", file, version, reported)
	}
	return version, nil
}
