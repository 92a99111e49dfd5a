package seal_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"testing"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// FuzzRead: the content from a storage is unchanged to the last byte, or refused with a code. Anyone with the
// recipient, which is no secret, can also seal: inside is the compressed archive, as an attacker may have made it.
func FuzzRead(f *testing.F) {
	key, err := age.GenerateX25519Identity()
	require.NoError(f, err)
	content := bytes.Repeat([]byte("rows of a database\n"), 200)
	var sealed bytes.Buffer
	var report wire.SealedBackup
	require.NoError(f, seal.Write(&sealed, key.Recipient(), &report, func(w *tar.Writer) error {
		if err := w.WriteHeader(&tar.Header{Name: "a", Mode: 0o600, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}))
	sum := wire.Ungrouped(report.PlainSHA256)
	opened, err := age.Decrypt(bytes.NewReader(sealed.Bytes()), key)
	require.NoError(f, err)
	inside, err := io.ReadAll(opened)
	require.NoError(f, err)
	small, err := zstd.NewWriter(nil)
	require.NoError(f, err)
	f.Add(inside, uint(0), byte(0))
	f.Add(inside[:len(inside)/2], uint(7), byte(1))
	f.Add(small.EncodeAll(make([]byte, 1<<20), nil), uint(sealed.Len()-1), byte(0x80))
	f.Add([]byte{}, uint(30), byte(0xff))
	read := func(from []byte) (got []byte, err error) {
		err = seal.Read(bytes.NewReader(from), key, sum, func(r *tar.Reader) error {
			for {
				if _, err := r.Next(); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return seal.Failed(wire.FailedUnreadable, "%w", err)
				}
				if got, err = io.ReadAll(io.LimitReader(r, 1<<20)); err != nil {
					return seal.Failed(wire.FailedUnreadable, "%w", err)
				}
			}
		})
		return got, err
	}
	check := func(t *testing.T, from []byte, changed bool) {
		got, err := read(from)
		if err == nil {
			require.Equal(t, content, got, "another archive was taken for it")
			return
		}
		var failure *seal.Failure
		require.ErrorAs(t, err, &failure)
		require.Contains(t, []string{wire.FailedUnreadable, wire.FailedDigest}, failure.Code)
		require.True(t, changed, "an unchanged backup is readable: %v", err)
	}
	f.Fuzz(func(t *testing.T, inner []byte, at uint, with byte) {
		var out bytes.Buffer
		w, err := age.Encrypt(&out, key.Recipient())
		require.NoError(t, err)
		_, err = w.Write(inner)
		require.NoError(t, errors.Join(err, w.Close()))
		check(t, out.Bytes(), !bytes.Equal(inner, inside))

		changed := bytes.Clone(sealed.Bytes())
		changed[at%uint(len(changed))] ^= with
		check(t, changed, with != 0)
		check(t, changed[:at%uint(len(changed))], true)
	})
}
