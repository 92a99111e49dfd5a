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
	"io/fs"
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

// OfDisk gives a full disk, or a full quota, its code, unless the error has one.
func OfDisk(err error) error {
	var known *Failure
	if full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT); full && !errors.As(err, &known) {
		return &Failure{Code: wire.FailedDiskFull, Err: err}
	}
	return err
}

// Unreadable is the failure of what can't be read as a backup.
func Unreadable(err error) error { return &Failure{Code: wire.FailedUnreadable, Err: err} }

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

// Open opens a sealed backup. With a digest it must be unchanged: any other is not even decrypted.
func Open(root *os.Root, file, name, sum string) (*os.File, error) {
	f, err := root.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Failed(wire.FailedNoBackup, "there is no sealed backup %s", name)
	}
	if err != nil || sum == "" {
		return f, err
	}
	whole := sha256.New()
	if _, err = io.Copy(whole, f); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if got := hex.EncodeToString(whole.Sum(nil)); err == nil && got != sum {
		err = Failed(wire.FailedDigest, "sealed backup %s has SHA-256 %s instead of %s", name, wire.Grouped(got), wire.Grouped(sum))
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// ReadPiece writes a piece of a sealed backup as it is.
func ReadPiece(root *os.Root, file, name string, offset, length int64, to io.Writer) error {
	f, err := Open(root, file, name, "")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	n, err := io.Copy(to, io.NewSectionReader(f, offset, length))
	if err == nil && n != length {
		err = Failed(wire.FailedNoBackup, "sealed backup %s ends before %d", name, offset+length)
	}
	return err
}

// WritePiece takes a piece of a sealed backup. The pieces before it must be there. It is written through, if that is
// not nil.
func WritePiece(
	root *os.Root, file, name string, offset, length int64, from io.Reader, through func(*os.File) io.Writer,
) error {
	f, err := root.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return OfDisk(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() < offset {
		return Failed(wire.FailedNoBackup, "only %d bytes of %s are there", info.Size(), name)
	}
	if err := f.Truncate(offset); err != nil {
		return err
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	var to io.Writer = f
	if through != nil {
		to = through(f)
	}
	n, err := io.Copy(to, io.LimitReader(from, length+1))
	if err == nil && n != length {
		err = fmt.Errorf("%d bytes came instead of %d", n, length)
	}
	return OfDisk(errors.Join(err, f.Sync(), f.Close()))
}

// Entries reads an archive to its end.
func Entries(archive *tar.Reader, entry func(h *tar.Header) error) error {
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return Unreadable(err)
		}
		if err := entry(h); err != nil {
			return err
		}
	}
}

// Read decrypts an archive, and checks it to its end. What read made of it counts only if there is no error.
func Read(from io.Reader, key age.Identity, plainSum string, read func(*tar.Reader) error) error {
	opened, err := age.Decrypt(bufio.NewReaderSize(from, 1<<20), key)
	if err != nil {
		return Unreadable(err)
	}
	large, err := zstd.NewReader(opened, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return Unreadable(err)
	}
	defer large.Close()
	plain := sha256.New()
	tee := io.TeeReader(large, plain)
	if err := read(tar.NewReader(tee)); err != nil {
		return err
	}
	// To the end: age reports a truncated file only there.
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return Unreadable(err)
	}
	if got := hex.EncodeToString(plain.Sum(nil)); got != plainSum {
		return Failed(wire.FailedDigest, "the archive has SHA-256 %s instead of %s", wire.Grouped(got), wire.Grouped(plainSum))
	}
	return nil
}
