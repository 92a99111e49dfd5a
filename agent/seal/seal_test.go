package seal_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

func failsWith(t *testing.T, err error, code, text string) {
	t.Helper()
	var failure *seal.Failure
	require.ErrorAs(t, err, &failure)
	require.Equal(t, code, failure.Code)
	require.Equal(t, code+": "+failure.Err.Error(), err.Error())
	require.ErrorContains(t, err, text)
}

// A backup travels in pieces: a piece may come twice, none may be left out, and only the whole opens.
func TestPieces(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	whole := strings.Repeat("0123456789", 10)
	sum := sha256.Sum256([]byte(whole))
	digest := hex.EncodeToString(sum[:])
	put := func(offset, length int64, content string) error {
		return seal.WritePiece(root, "b.age", "b", offset, length, strings.NewReader(content), nil)
	}

	_, err = seal.Open(root, "b.age", "b", digest)
	failsWith(t, err, wire.FailedNoBackup, "there is no sealed backup b")
	failsWith(t, put(40, 60, whole[40:]), wire.FailedNoBackup, "only 0 bytes of b are there")
	require.NoError(t, put(0, 40, whole[:40]))
	require.ErrorContains(t, put(40, 60, whole[40:99]), "59 bytes came instead of 60")
	require.ErrorContains(t, put(40, 60, whole[40:]+"too long"), "61 bytes came instead of 60")
	_, err = seal.Open(root, "b.age", "b", digest)
	failsWith(t, err, wire.FailedDigest, "instead of "+wire.Grouped(digest))
	for range 2 {
		require.NoError(t, put(40, 60, whole[40:]))
	}
	f, err := seal.Open(root, "b.age", "b", digest)
	require.NoError(t, err)
	got, err := io.ReadAll(f)
	require.NoError(t, errors.Join(err, f.Close()))
	require.Equal(t, whole, string(got), "it is read from its start, after its digest")

	var piece bytes.Buffer
	require.NoError(t, seal.ReadPiece(root, "b.age", "b", 95, 5, &piece))
	require.Equal(t, whole[95:], piece.String())
	failsWith(t, seal.ReadPiece(root, "b.age", "b", 95, 6, io.Discard), wire.FailedNoBackup, "ends before 101")

	var seen bytes.Buffer
	require.NoError(t, seal.WritePiece(root, "b.age", "b", 90, 10, strings.NewReader("changed it"),
		func(f *os.File) io.Writer { return io.MultiWriter(f, &seen) }))
	require.Equal(t, "changed it", seen.String())
	_, err = seal.Open(root, "b.age", "b", digest)
	failsWith(t, err, wire.FailedDigest, "sealed backup b has SHA-256")
}

func TestKeys(t *testing.T) {
	t.Parallel()
	key, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	recipient, err := seal.Recipient(key.Recipient().String())
	require.NoError(t, err)
	identity, err := seal.Identity(key.String())
	require.NoError(t, err)

	var sealed bytes.Buffer
	var report wire.SealedBackup
	require.NoError(t, seal.Write(&sealed, recipient, &report, func(w *tar.Writer) error {
		for _, name := range []string{"a", "b"} {
			if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg}); err != nil {
				return err
			}
		}
		return nil
	}))
	require.EqualValues(t, sealed.Len(), report.Bytes)
	var names []string
	each := func(r *tar.Reader) error {
		return seal.Entries(r, func(h *tar.Header) error { names = append(names, h.Name); return nil })
	}
	sum := wire.Ungrouped(report.PlainSHA256)
	require.NoError(t, seal.Read(bytes.NewReader(sealed.Bytes()), identity, sum, each))
	require.Equal(t, []string{"a", "b"}, names)

	other, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	failsWith(t, seal.Read(bytes.NewReader(sealed.Bytes()), other, sum, each), wire.FailedUnreadable, "")
	_, err = seal.Recipient(key.String())
	require.EqualError(t, err, "the recipient is no public key of age's", "and the private key is not in it")
	_, err = seal.Identity(key.Recipient().String())
	failsWith(t, err, wire.FailedUnreadable, "no private key")
	require.ErrorIs(t, seal.Write(io.Discard, recipient, &report, func(*tar.Writer) error { return os.ErrPermission }),
		os.ErrPermission)
	failsWith(t, seal.Entries(tar.NewReader(strings.NewReader("garbage")), nil), wire.FailedUnreadable, "")
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		failsWith(t, seal.OfDisk(fmt.Errorf("write: %w", full)), wire.FailedDiskFull, full.Error())
	}
	known := seal.Failed(wire.FailedDigest, "%w", syscall.ENOSPC)
	require.Equal(t, known, seal.OfDisk(known), "it has a code")
	require.ErrorIs(t, known, syscall.ENOSPC)
	require.Equal(t, io.EOF, seal.OfDisk(io.EOF))
	require.NoError(t, seal.OfDisk(nil))
}
