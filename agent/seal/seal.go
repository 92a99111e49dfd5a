// Package seal writes and reads what leaves a host: a tar, compressed with zstd and encrypted with
// age to a recipient whose private half the host does not have.
package seal

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"syscall"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"github.com/prego/prego/agent/wire"
)

// Failure is an error with a code (wire.IsFailure): "CODE: …".
type Failure struct {
	Code string
	Err  error
}

func (f *Failure) Error() string { return f.Code + ": " + f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Failed is a Failure.
func Failed(code, format string, args ...any) error {
	return &Failure{Code: code, Err: fmt.Errorf(format, args...)}
}

// IsFull reports whether a disk or a quota is full.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Recipient reads the public key of a backup.
func Recipient(text string) (age.Recipient, error) {
	key, err := age.ParseX25519Recipient(text)
	if err != nil {
		return nil, errors.New("the recipient is no public key of age's")
	}
	return key, nil
}

// Identity reads the private key of a backup.
func Identity(text string) (age.Identity, error) {
	key, err := age.ParseX25519Identity(text)
	if err != nil {
		return nil, Failed(wire.FailedUnreadable, "the identity is no private key of age's")
	}
	return key, nil
}

// Counter passes writes on, and knows their length and digest.
type Counter struct {
	to  io.Writer
	n   int64
	all hash.Hash
}

// Counted counts the writes to another writer.
func Counted(to io.Writer) *Counter { return &Counter{to: to, all: sha256.New()} }

func (c *Counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	_, _ = c.all.Write(p[:n])
	return n, err
}

// Bytes is how many there were, Sum their SHA-256 in hex.
func (c *Counter) Bytes() int64 { return c.n }

// Sum is the SHA-256 of the written bytes, in hex.
func (c *Counter) Sum() string { return hex.EncodeToString(c.all.Sum(nil)) }

// Write writes the sealed form of an archive, and what it is like.
func Write(to io.Writer, recipient age.Recipient, out *wire.SealedBackup, write func(*tar.Writer) error) error {
	outside := Counted(to)
	sealed, err := age.Encrypt(outside, recipient)
	if err != nil {
		return err
	}
	small, err := zstd.NewWriter(sealed, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	plain := Counted(small)
	archive := tar.NewWriter(plain)
	if err := write(archive); err != nil {
		return err
	}
	if err := errors.Join(archive.Close(), small.Close(), sealed.Close()); err != nil {
		return err
	}
	out.PlainBytes, out.PlainSHA256 = plain.n, wire.Grouped(plain.Sum())
	out.Bytes, out.SHA256 = outside.n, wire.Grouped(outside.Sum())
	return nil
}

// Check verifies that a sealed file is unchanged, before it is even decrypted, and goes back to its beginning.
func Check(f *os.File, name, sum string) error {
	whole := sha256.New()
	if _, err := io.Copy(whole, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(whole.Sum(nil)); got != sum {
		return Failed(wire.FailedDigest, "sealed backup %s has SHA-256 %s instead of %s", name, wire.Grouped(got), wire.Grouped(sum))
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// Read decrypts an archive, and checks it to its end. What read made of it counts only if there is no error.
func Read(from io.Reader, key age.Identity, plainSum string, read func(*tar.Reader) error) error {
	unreadable := func(err error) error { return &Failure{Code: wire.FailedUnreadable, Err: err} }
	opened, err := age.Decrypt(bufio.NewReaderSize(from, 1<<20), key)
	if err != nil {
		return unreadable(err)
	}
	large, err := zstd.NewReader(opened, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return unreadable(err)
	}
	defer large.Close()
	plain := sha256.New()
	tee := io.TeeReader(large, plain)
	if err := read(tar.NewReader(tee)); err != nil {
		return err
	}
	// To the end: age reports a truncated file only there.
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return unreadable(err)
	}
	if got := hex.EncodeToString(plain.Sum(nil)); got != plainSum {
		return Failed(wire.FailedDigest, "the archive has SHA-256 %s instead of %s", wire.Grouped(got), wire.Grouped(plainSum))
	}
	return nil
}
