package site

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// A backup that is to leave the host, or has come from elsewhere, is one file beside the directory of the plain one:
// a tar of its files, compressed with zstd and encrypted with age. The process that faces the network gets at this
// file alone, in pieces, and the host has nothing that opens it.
func sealedFile(site, name string) string { return site + "/" + backupsDir + "/.sealed-" + name }

// describedIn is beside a sealed file when it is complete.
func describedIn(site, name string) string { return sealedFile(site, name) + ".json" }

// sealBackup compresses and encrypts a backup to a recipient, and deletes the plain one. An existing sealed backup is
// the answer to a repeated call.
func (b *bench) sealBackup(site, name, recipient string) error {
	plain := site + "/" + backupsDir + "/" + name
	if there := b.sealedBefore(site, name, recipient); there != nil {
		if err := b.sites.RemoveAll(plain); err != nil {
			return err
		}
		return b.printResult(there)
	}
	all, err := b.files(site, name)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("site %s has no backup %s", site, name)
	}
	var out wire.SealedBackup
	if err := b.seal(site, name, recipient, &out, &out, nil, func(archive *tar.Writer) error {
		for _, f := range all {
			step()
			if err := b.archive(archive, f, &out); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	step()
	if err := b.sites.RemoveAll(plain); err != nil {
		return err
	}
	return b.printResult(out)
}

// sealedBefore is the answer to a repeated call: what describes the sealed backup, if it is there.
func (b *bench) sealedBefore(site, name, recipient string) json.RawMessage {
	var there wire.SealedBackup
	text, err := b.sites.ReadFile(describedIn(site, name))
	if err != nil || json.Unmarshal(text, &there) != nil || there.Recipient != recipient {
		return nil
	}
	return text
}

// seal writes the sealed form of an archive to its file, and beside it what describes it (all), of which out is a
// part; or it leaves none. packed, if it is not nil, is written down for the next archive.
func (b *bench) seal(site, name, recipient string, out *wire.SealedBackup, all, packed any, write func(*tar.Writer) error) error {
	to, err := seal.Recipient(recipient)
	if err != nil {
		return err
	}
	out.Name, out.Recipient, out.Files = name, recipient, []wire.SealedFile{}
	if err := errors.Join(b.sites.MkdirAll(site+"/"+backupsDir, 0o750), b.dropSealed(site, name)); err != nil {
		return err
	}
	draft, err := b.sites.OpenFile(sealedFile(site, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = seal.Write(draft, to, out, write)
	err = errors.Join(err, draft.Sync(), draft.Close())
	if err == nil && packed != nil {
		err = b.putJSON(packedIn(site, name), packed)
	}
	if err == nil {
		err = b.putJSON(describedIn(site, name), all)
	}
	if err != nil {
		return errors.Join(err, b.dropSealed(site, name))
	}
	return nil
}

func (b *bench) archive(to *tar.Writer, f file, out *wire.SealedBackup) error {
	from, err := b.sites.Open(f.Path)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", f.Path)
	}
	base := f.Path[strings.LastIndexByte(f.Path, '/')+1:]
	if out.TakenAt.IsZero() || info.ModTime().Before(out.TakenAt) {
		out.TakenAt = info.ModTime().UTC().Truncate(time.Second)
	}
	out.Files = append(out.Files, wire.SealedFile{Path: base, Bytes: info.Size()})
	if err := to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: base, Size: info.Size(), Mode: 0o600, ModTime: info.ModTime().Truncate(time.Second), Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.CopyN(to, from, info.Size())
	return err
}

func (b *bench) dropSealed(site, name string) error {
	// Its description first: half of one must not look whole.
	for _, f := range []string{describedIn(site, name), describedIn(site, name) + ".new", sealedFile(site, name)} {
		if err := b.sites.Remove(f); ignoreGone(err) != nil {
			return err
		}
	}
	return nil
}

// readSealed prints a piece of a sealed backup as it is.
func (b *bench) readSealed(site, name string, offset, length int64) error {
	return seal.ReadPiece(b.sites, sealedFile(site, name), name, offset, length, b.out)
}

// writeSealed takes a piece of a sealed backup from its input, after the line of secrets. The
// pieces before it must be there.
func (b *bench) writeSealed(site, name string, offset, length int64) error {
	if s, err := b.readState(site); err != nil || s == nil || !s.Arriving {
		if _, err := b.finishedSite(site); err != nil {
			return err
		}
	}
	if err := b.sites.MkdirAll(site+"/"+backupsDir, 0o750); err != nil {
		return err
	}
	if offset == 0 {
		if err := b.dropSealed(site, name); err != nil {
			return err
		}
	}
	if err := seal.WritePiece(b.sites, sealedFile(site, name), name, offset, length, b.in, nil); err != nil {
		return err
	}
	return b.printResult(map[string]any{"name": name, "bytes": offset + length})
}

// openBackup decrypts a sealed backup, so that it can be restored like a local one. Nothing appears before both
// digests are verified.
func (b *bench) openBackup(site, name, sum, plainSum string) error {
	key, err := seal.Identity(b.secrets[wire.SecretBackupIdentity])
	if err != nil {
		return err
	}
	dir, draft := site+"/"+backupsDir+"/"+name, site+"/"+backupsDir+"/.making-"+name
	if all, err := b.files(site, name); err == nil && len(all) > 0 && !b.exists(sealedFile(site, name)) {
		return b.saysBackup(name, all) // this call is repeated
	}
	f, err := b.openSealed(site, name, sum)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for _, old := range []string{dir, draft} {
		if err := b.sites.RemoveAll(old); err != nil {
			return err
		}
	}
	if err := b.sites.MkdirAll(draft, 0o750); err != nil {
		return err
	}
	if err := b.unseal(f, key, draft, name, plainSum); err != nil {
		return errors.Join(err, b.sites.RemoveAll(draft))
	}
	if err := b.sync(draft); err != nil {
		return err
	}
	step()
	if err := b.sites.Rename(draft, dir); err != nil {
		return err
	}
	step()
	if err := b.dropSealed(site, name); err != nil {
		return err
	}
	all, err := b.files(site, name)
	if err != nil {
		return err
	}
	return b.saysBackup(name, all)
}

// openSealed opens a sealed backup if it is unchanged.
func (b *bench) openSealed(site, name, sum string) (*os.File, error) {
	return seal.Open(b.sites, sealedFile(site, name), name, sum)
}

// unseal decrypts into a directory. It takes only the parts of a backup, under any name in the archive: they get this
// backup's name.
func (b *bench) unseal(from io.Reader, key age.Identity, dir, name, plainSum string) error {
	seen := make(map[string]bool)
	err := seal.Read(from, key, plainSum, func(archive *tar.Reader) error {
		return seal.Entries(archive, func(h *tar.Header) error {
			part := partOf(h.Name)
			if part == "" || h.Typeflag != tar.TypeReg || seen[part] {
				return seal.Failed(wire.FailedUnreadable, "%q is no part of a backup", h.Name)
			}
			seen[part] = true
			step()
			to, err := b.sites.OpenFile(dir+"/"+name+"-"+part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
			if err != nil {
				return err
			}
			_, err = io.Copy(to, archive)
			var disk *fs.PathError
			if err = errors.Join(err, to.Close()); err == nil || errors.As(err, &disk) {
				return err // the host's disk is full, or broken: the backup may be good
			}
			return seal.Unreadable(err)
		})
	})
	if err == nil && !seen[partDatabase] {
		return seal.Failed(wire.FailedUnreadable, "it holds no database")
	}
	if err != nil {
		return err
	}
	return b.wholeDump(dir + "/" + name + "-" + partDatabase)
}

// wholeDump refuses a truncated dump, before a restore drops anything for it. Only Frappe can read a dump that the
// site encrypts itself.
func (b *bench) wholeDump(name string) error {
	f, err := b.sites.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var magic [2]byte
	if n, err := f.ReadAt(magic[:], 0); n < len(magic) || magic != [2]byte{0x1f, 0x8b} {
		return ignoreEOF(err)
	}
	if _, err := dumpedRows(f); err != nil {
		return seal.Unreadable(err)
	}
	return nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// partOf is which part of a backup a file's name ends with.
func partOf(file string) string {
	// The private files' name ends with the public ones'.
	for _, part := range []string{partDatabase, partPrivate, partFiles, partConfig} {
		if prefix, ok := strings.CutSuffix(file, "-"+part); ok && policy.Is("BACKUP", prefix) {
			return part
		}
	}
	return ""
}
