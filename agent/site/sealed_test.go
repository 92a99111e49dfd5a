package site

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/need"
)

func identity(t testing.TB) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	return id
}

func opens(id *age.X25519Identity) map[string]string {
	return map[string]string{wire.SecretBackupIdentity: id.String()}
}

// carry takes a sealed backup from one bench to a site of another, in pieces, as hosts do.
func carry(t testing.TB, from *testBench, site, name string, to *testBench, toSite, toName string, size int64, change func([]byte) []byte) {
	t.Helper()
	const piece = 3000
	var all []byte
	for at := int64(0); at < size; at += piece {
		d := from.verb(-1, nil, "--site", site, "read-sealed", name, strconv.FormatInt(at, 10), strconv.FormatInt(min(piece, size-at), 10))
		require.Zero(t, d.status, d.stderr)
		all = append(all, d.stdout...)
	}
	if all = change(all); len(all) == 0 {
		all = []byte{0}
	}
	for at := 0; at < len(all); at += piece {
		d := to.feed(all[at:min(at+piece, len(all))], "--site", toSite, "write-sealed", toName, strconv.Itoa(at), strconv.Itoa(min(piece, len(all)-at)))
		require.Zero(t, d.status, d.stderr)
	}
}

// feed runs a verb that takes input after the line of secrets.
func (b *testBench) feed(input []byte, args ...string) done {
	b.t.Helper()
	var out, errs bytes.Buffer
	status := Run(b.root, args, bytes.NewReader(append([]byte("{}\n"), input...)), &out, &errs)
	return done{status: status, stdout: out.String(), stderr: errs.String()}
}

func same(b []byte) []byte { return b }

// TestABackupLeavesAndComesBack: sealed here, opened on another host, under another name, with
// nothing in the sealed file that its host could read.
func TestABackupLeavesAndComesBack(t *testing.T) {
	t.Parallel()
	b, other := newBench(t), newBench(t)
	site, db := "a.example.com", b.database("a")
	b.good("new-site", site, "--db-name", db)
	b.put(db, "one")
	require.NoError(t, os.WriteFile(b.path("sites/"+site+"/private/files/kept.txt"), []byte("as it was"), 0o600))
	began := time.Now()
	b.good("--site", site, "backup", "bak-1", "--with-files")
	key := identity(t)

	require.Contains(t, b.bad("--site", site, "seal-backup", "no-such", key.Recipient().String()), "has no backup no-such")
	killed := 0
	var sealed wire.SealedBackup
	for n := 0; ; n++ { // after any interruption, the files are complete
		d := b.verb(n, nil, "--site", site, "seal-backup", "bak-1", key.Recipient().String())
		if d.status == 0 {
			unmarshal(t, d.stdout, &sealed)
			break
		}
		require.Equal(t, killedAt, d.status, d.stderr)
		killed++
	}
	require.GreaterOrEqual(t, killed, 4)
	printed := b.good("--site", site, "seal-backup", "bak-1", key.Recipient().String())
	var again wire.SealedBackup
	unmarshal(t, printed, &again)
	require.Equal(t, sealed, again, "the same one")
	content, err := os.ReadFile(b.path("sites/" + sealedFile(site, "bak-1")))
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	require.Equal(t, wire.Ungrouped(sealed.SHA256), hex.EncodeToString(sum[:]))
	require.EqualValues(t, len(content), sealed.Bytes)
	require.NotContains(t, string(content), "as it was")
	require.Less(t, sealed.Bytes, sealed.PlainBytes, "it is compressed")
	require.Len(t, sealed.Files, 4)
	require.WithinDuration(t, began, sealed.TakenAt, time.Minute)
	info, err := os.Stat(b.path("sites/" + sealedFile(site, "bak-1")))
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())

	require.NoDirExists(t, b.path("sites/"+site+"/"+wire.SnapshotsDir+"/bak-1"), "the plain one is gone")
	b.good("--site", site, "delete-backup", "bak-1")
	require.NoFileExists(t, b.path("sites/"+sealedFile(site, "bak-1")))
	require.NoFileExists(t, b.path("sites/"+describedIn(site, "bak-1")))
	require.Contains(t, b.bad("--site", site, "read-sealed", "bak-1", "0", "1"), "site: backup_missing: ")
	require.NoError(t, os.WriteFile(b.path("sites/"+sealedFile(site, "bak-1")), content, 0o600))

	there, otherDB := "b.example.com", other.database("b")
	other.good("new-site", there, "--db-name", otherDB)
	carry(t, b, site, "bak-1", other, there, "in-1", sealed.Bytes, same)
	killed = 0
	for n := 0; ; n++ {
		d := other.verb(n, opens(key), "--site", there, "open-backup", "in-1", wire.Ungrouped(sealed.SHA256), wire.Ungrouped(sealed.PlainSHA256))
		require.NotContains(t, d.stderr, key.String())
		if d.status == 0 {
			break
		}
		require.Equal(t, killedAt, d.status, d.stderr)
		killed++
	}
	require.GreaterOrEqual(t, killed, 5)
	other.goodWith(opens(key), "--site", there, "open-backup", "in-1", wire.Ungrouped(sealed.SHA256), wire.Ungrouped(sealed.PlainSHA256))
	require.NoFileExists(t, other.path("sites/"+sealedFile(there, "in-1")))
	other.good("--site", there, "restore", "in-1", "--with-files")
	require.Equal(t, 1, other.rows(otherDB))
	text, err := os.ReadFile(other.path("sites/" + there + "/private/files/kept.txt"))
	require.NoError(t, err)
	require.Equal(t, "as it was", string(text))
}

// TestWhatIsNoBackupIsNotOpened: each kind of damage has its code, and leaves nothing that could be restored.
func TestWhatIsNoBackupIsNotOpened(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	site := "a.example.com"
	dir := "sites/" + site
	require.NoError(t, os.MkdirAll(b.path(dir+"/"+wire.SnapshotsDir+"/bak-1"), 0o755))
	b.write(dir+"/site_config.json", map[string]any{"db_name": b.database("a")})
	b.write(dir+"/"+stateFile, state{Made: true})
	require.NoError(t, os.WriteFile(b.path(dir+"/"+wire.SnapshotsDir+"/bak-1/bak-1-"+partDatabase), bytes.Repeat([]byte("0123456789abcdef"), 20_000), 0o600))
	key := identity(t)
	var sealed wire.SealedBackup
	unmarshal(t, b.good("--site", site, "seal-backup", "bak-1", key.Recipient().String()), &sealed)
	content, err := os.ReadFile(b.path("sites/" + sealedFile(site, "bak-1")))
	require.NoError(t, err)

	flipped := bytes.Clone(content)
	flipped[len(flipped)/2] ^= 1
	sum := func(b []byte) string {
		s := sha256.Sum256(b)
		return hex.EncodeToString(s[:])
	}
	for name, c := range map[string]struct {
		content []byte
		sum     string // as the control plane has it
		plain   string
		key     *age.X25519Identity
		want    string
	}{
		"a bit is flipped":                 {content: flipped, want: wire.FailedDigest},
		"a bit is flipped, and the digest": {content: flipped, sum: sum(flipped), want: wire.FailedUnreadable},
		"cut":                              {content: content[:len(content)-1], want: wire.FailedDigest},
		"cut, and the digest":              {content: content[:len(content)-1], sum: sum(content[:len(content)-1]), want: wire.FailedUnreadable},
		"longer":                           {content: append(bytes.Clone(content), 0), want: wire.FailedDigest},
		"empty":                            {content: []byte{0}, sum: sum([]byte{0}), want: wire.FailedUnreadable},
		"the key of another":               {content: content, key: identity(t), want: wire.FailedUnreadable},
		"another archive's digest":         {content: content, plain: sum(nil), want: wire.FailedDigest},
		"another's file":                   {content: archived(t, key, "x-site_config.json", "{}"), want: wire.FailedUnreadable},
		"a way out":                        {content: archived(t, key, "../../x-database.sql.gz", "{}"), want: wire.FailedUnreadable},
		"a database that ends early":       {content: archived(t, key, "x-database.sql.gz", gzipped(t, "CREATE TABLE `a` (`b` int);\nINSERT INTO `a` VALUES (1),(2")), want: wire.FailedUnreadable},
		"a database that is cut":           {content: archived(t, key, "x-database.sql.gz", gzipped(t, "CREATE TABLE `a` (`b` int);\n")[:20]), want: wire.FailedUnreadable},
		"no database":                      {content: archived(t, key, "x-files.tar", "{}"), want: wire.FailedUnreadable},
	} {
		t.Run(name, func(t *testing.T) {
			if c.key == nil {
				c.key = key
			}
			if strings.Contains(name, "file") || strings.Contains(name, "way") || strings.Contains(name, "database") {
				c.sum, c.plain = sum(c.content), plainOf(t, key, c.content)
			}
			if c.sum == "" {
				c.sum = wire.Ungrouped(sealed.SHA256)
			}
			if c.plain == "" {
				c.plain = wire.Ungrouped(sealed.PlainSHA256)
			}
			d := b.feed(c.content, "--site", site, "write-sealed", "in-1", "0", strconv.Itoa(len(c.content)))
			require.Zero(t, d.status, d.stderr)
			d = b.verb(-1, opens(c.key), "--site", site, "open-backup", "in-1", c.sum, c.plain)
			require.Equal(t, 1, d.status)
			require.Contains(t, d.stderr, "site: "+c.want+": ", d.stderr)
			require.NoDirExists(t, b.path(dir+"/"+wire.SnapshotsDir+"/in-1"))
			require.NoDirExists(t, b.path(dir+"/"+wire.SnapshotsDir+"/.making-in-1"))
		})
	}
	d := b.verb(-1, nil, "--site", site, "open-backup", "in-1", wire.Ungrouped(sealed.SHA256), wire.Ungrouped(sealed.PlainSHA256))
	require.Contains(t, d.stderr, "is no private key")
	// Pieces come in order, and whole.
	require.Contains(t, b.feed([]byte("x"), "--site", site, "write-sealed", "in-2", "5", "1").stderr, "site: backup_missing: only 0 bytes")
	require.Contains(t, b.feed([]byte("x"), "--site", site, "write-sealed", "in-2", "0", "2").stderr, "1 bytes came instead of 2")
	require.Contains(t, b.feed([]byte("xyz"), "--site", site, "write-sealed", "in-2", "0", "2").stderr, "3 bytes came instead of 2")
	require.Contains(t, b.verb(-1, nil, "--site", site, "read-sealed", "bak-1", "0", strconv.Itoa(len(content)+1)).stderr, "site: backup_missing: ")
	require.Equal(t, 2, b.verb(-1, nil, "--site", site, "seal-backup", "bak-1", "age1x").status)
	require.Equal(t, 2, b.verb(-1, nil, "--site", site, "read-sealed", "bak-1", "-1", "1").status)
}

func gzipped(t testing.TB, text string) string {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return out.String()
}

// archived is a sealed archive of one file.
func archived(t testing.TB, key *age.X25519Identity, name, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	sealed, err := age.Encrypt(&out, key.Recipient())
	require.NoError(t, err)
	small, err := zstd.NewWriter(sealed)
	require.NoError(t, err)
	archive := tar.NewWriter(small)
	require.NoError(t, archive.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Mode: 0o600}))
	_, err = archive.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	require.NoError(t, small.Close())
	require.NoError(t, sealed.Close())
	return out.Bytes()
}

func plainOf(t testing.TB, key *age.X25519Identity, content []byte) string {
	t.Helper()
	opened, err := age.Decrypt(bytes.NewReader(content), key)
	require.NoError(t, err)
	large, err := zstd.NewReader(opened)
	require.NoError(t, err)
	defer large.Close()
	sum := sha256.New()
	_, err = large.WriteTo(sum)
	require.NoError(t, err)
	return hex.EncodeToString(sum.Sum(nil))
}

// TestFullDiskIsReported: while a backup is sealed, and while one comes in.
func TestFullDiskIsReported(t *testing.T) {
	t.Parallel()
	for _, err := range []error{fmt.Errorf("write: %w", os.ErrDeadlineExceeded), nil} {
		require.Equal(t, err, seal.OfDisk(err))
	}
	b := newBench(t)
	site := "a.example.com"
	full := b.path("sites/" + site + "/" + wire.SnapshotsDir)
	require.NoError(t, os.MkdirAll(full, 0o755))
	b.write("sites/"+site+"/site_config.json", map[string]any{"db_name": b.database("a")})
	b.write("sites/"+site+"/"+stateFile, state{Made: true})
	mountSmall(t, full, 256<<10)
	require.NoError(t, os.Mkdir(full+"/bak-1", 0o755))
	key, noise := identity(t), make([]byte, 160<<10)
	for i := range noise {
		noise[i] = byte(i * i >> 7)
	}
	require.NoError(t, os.WriteFile(full+"/bak-1/bak-1-"+partDatabase, scrambled(noise), 0o600))
	require.Contains(t, b.bad("--site", site, "seal-backup", "bak-1", key.Recipient().String()), "site: disk_full: ")
	left, err := filepath.Glob(full + "/.sealed*")
	require.NoError(t, err)
	require.Empty(t, left, "nothing of it stays: the disk is full")
	d := b.feed(make([]byte, 200<<10), "--site", site, "write-sealed", "in-1", "0", strconv.Itoa(200<<10))
	require.Contains(t, d.stderr, "site: disk_full: ")
	var out json.RawMessage
	unmarshal(t, b.good("--site", site, "delete-backup", "in-1"), &out)
}

// TestAFullDiskLosesNothing: every step of a backup, of its opening and of a restore reports a full disk. Partial
// files are gone, the site is as it was, and the backup is good.
func TestAFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const room, part = 12 << 20, 2 << 20
	common := b.read("sites/common_site_config.json")
	mountSmall(t, b.path("sites"), room)
	require.NoError(t, os.WriteFile(b.path("sites/apps.txt"), []byte("frappe\nerpnext\n"), 0o644))
	b.write("sites/common_site_config.json", common)
	site, db := "a.example.com", b.database("a")
	b.good("new-site", site, "--db-name", db)
	b.put(db, "one")
	kept := b.path("sites/" + site + "/private/files/kept")
	content := scrambled(make([]byte, part))
	require.NoError(t, os.WriteFile(kept, content, 0o600))
	snapshots := b.path("sites/" + site + "/" + wire.SnapshotsDir)
	full := func(free int64) (empty func()) {
		t.Helper()
		var at syscall.Statfs_t
		require.NoError(t, syscall.Statfs(b.path("sites"), &at))
		file := b.path("sites/filler")
		require.NoError(t, os.WriteFile(file, make([]byte, int64(at.Bavail)*at.Bsize-free), 0o600))
		return func() { require.NoError(t, os.Remove(file)) }
	}
	asItWas := func(left ...string) {
		t.Helper()
		text, err := os.ReadFile(kept)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, text))
		require.NoDirExists(t, b.path("sites/"+site+"/"+asideDir))
		there, err := os.ReadDir(snapshots)
		require.NoError(t, err)
		names := []string{}
		for _, e := range there {
			if e.Name() != ".restoring" { // links, which take no room
				names = append(names, e.Name())
			}
		}
		require.Equal(t, left, names)
	}

	// While the files are packed, while the database is dumped, and before anything is.
	for _, free := range []int64{part / 2, 3 << 12, 0} {
		empty := full(free)
		require.Contains(t, b.bad("--site", site, "backup", "bak-1", "--with-files"), "site: disk_full: ", free)
		empty()
		asItWas([]string{}...)
	}
	b.good("--site", site, "backup", "bak-1", "--with-files")
	key := identity(t)
	var sealed wire.SealedBackup
	unmarshal(t, b.good("--site", site, "seal-backup", "bak-1", key.Recipient().String()), &sealed)
	b.put(db, "two")

	// While it is opened: the sealed one is still there, and is opened when there is room.
	open := []string{"--site", site, "open-backup", "bak-1", wire.Ungrouped(sealed.SHA256), wire.Ungrouped(sealed.PlainSHA256)}
	empty := full(part / 2)
	d := b.verb(-1, opens(key), open...)
	require.Equal(t, 1, d.status)
	require.Contains(t, d.stderr, "site: disk_full: ")
	empty()
	asItWas(".sealed-bak-1", ".sealed-bak-1.json")
	b.goodWith(opens(key), open...)

	// While it is restored.
	empty = full(part / 2)
	require.Contains(t, b.bad("--site", site, "restore", "bak-1", "--with-files"), "site: disk_full: bench restore: ")
	empty()
	asItWas("bak-1")
	b.good("--site", site, "restore", "bak-1", "--with-files")
	asItWas("bak-1")
	require.Equal(t, 1, b.rows(db))

	// That Frappe can't open it on a full disk does not make the backup an incomplete one.
	b.good("--site", site, "check-restored", "bak-1")
	for why, want := range map[string]string{"ImportError": wire.FailedIncomplete, "OSError: [Errno 28] No space left on device: 'logs'": wire.FailedDiskFull} {
		require.NoError(t, os.WriteFile(filepath.Join(b.root, wire.BenchBinary), fmt.Appendf(nil, "#!/bin/sh\necho \"%s\"\nexit 1\n", why), 0o755))
		require.Contains(t, b.bad("--site", site, "check-restored", "bak-1"), "site: "+want+": ")
	}
}

// mountSmall mounts a file system of so many bytes for the time of a test.
func mountSmall(t testing.TB, at string, size int) {
	t.Helper()
	need.Root(t, "it mounts a small file system")
	require.NoError(t, syscall.Mount("none", at, "tmpfs", 0, "size="+strconv.Itoa(size)))
	t.Cleanup(func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) })
}

// scrambled is text that does not compress.
func scrambled(b []byte) []byte {
	var out []byte
	for i := 0; len(out) < len(b); i++ {
		s := sha256.Sum256(append(b[:64:64], byte(i), byte(i>>8)))
		out = append(out, s[:]...)
	}
	return out
}
