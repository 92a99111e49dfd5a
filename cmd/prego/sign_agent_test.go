package main

import (
	"bytes"
	"crypto/ed25519"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSignAgentOfAnotherArchitecture: a program that can't run on the build machine is signed with the version that its
// builder names, and a program that can run must report that version.
func TestSignAgentOfAnotherArchitecture(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	now := time.Unix(1_800_000_000, 0)
	machine, arch := elf.EM_AARCH64, "arm64"
	if runtime.GOARCH == arch {
		machine, arch = elf.EM_X86_64, "amd64"
	}
	foreign := program(t, machine)

	_, err = signAgent(t.Context(), foreign, "", key, now)
	require.ErrorContains(t, err, "is for "+arch+" and can't run here: name its version with --version")
	signed, err := signAgent(t.Context(), foreign, "v1.2.0", key, now)
	require.NoError(t, err)
	update, err := signed.Open([]ed25519.PublicKey{ed25519.PublicKey(key[32:])})
	require.NoError(t, err)
	require.Equal(t, "v1.2.0", update.Version)
	require.Equal(t, arch, update.Arch)
	require.Equal(t, now.Unix(), update.Serial)

	const echo = "/bin/echo" // prints its argument, version
	_, err = agentVersion(t.Context(), echo, runtime.GOARCH, "v1.2.0")
	require.ErrorContains(t, err, "reports version version, not v1.2.0")
	version, err := agentVersion(t.Context(), echo, runtime.GOARCH, "version")
	require.NoError(t, err)
	require.Equal(t, "version", version)
	_, err = agentVersion(t.Context(), "/bin/false", runtime.GOARCH, "v1.2.0")
	require.ErrorContains(t, err, "for its version", "a broken program of this architecture is not signed")
}

// program writes the least file that is a program for a machine.
func program(t *testing.T, machine elf.Machine) string {
	t.Helper()
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	h.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	var b bytes.Buffer
	require.NoError(t, binary.Write(&b, binary.LittleEndian, h))
	file := filepath.Join(t.TempDir(), "prego-agent")
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o755))
	return file
}
