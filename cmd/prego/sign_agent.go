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
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/agent/wire"
)

// newSignAgentCommand signs a release of the agent, where it is built: the key belongs to no
// process of the control plane.
func newSignAgentCommand() *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use: "sign-agent FILE", Short: "Sign a release of the agent with an Ed25519 key in PEM", Args: cobra.ExactArgs(1),
		Example: "  openssl genpkey -algorithm ed25519 -out agent-release.pem\n  prego keys sign-agent bin/prego-agent --key agent-release.pem > signed.json",
		RunE: func(cmd *cobra.Command, args []string) error {
			private, err := releaseKey(key)
			if err != nil {
				return err
			}
			signed, err := signAgent(cmd.Context(), args[0], private, time.Now())
			if err != nil {
				return err
			}
			public, _ := private.Public().(ed25519.PublicKey)
			fmt.Fprintf(cmd.ErrOrStderr(), "signed; agents take it that were built with -X main.releaseKeys=%s\n", base64.StdEncoding.EncodeToString(public))
			return json.NewEncoder(cmd.OutOrStdout()).Encode(signed)
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "file with the private key")
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

// signAgent signs a program, with the version that it reports.
func signAgent(ctx context.Context, file string, key ed25519.PrivateKey, now time.Time) (wire.SignedAgentUpdate, error) {
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
	printed, err := exec.CommandContext(ctx, file, "version").Output()
	if err != nil {
		return wire.SignedAgentUpdate{}, fmt.Errorf("ask %s for its version: %w", file, err)
	}
	return wire.SignAgentUpdate(wire.AgentUpdate{
		Version: strings.TrimSpace(string(printed)), Serial: now.Unix(), SHA256: hex.EncodeToString(sum.Sum(nil)), Bytes: n, Arch: archs[program.Machine],
	}, key)
}
