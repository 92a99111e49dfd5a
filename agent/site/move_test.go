package site

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// packed packs a site and carries it to another bench.
func packed(t testing.TB, from, to *testBench, site, name string, key *age.X25519Identity, since ...string) wire.PackedSite {
	t.Helper()
	var out wire.PackedSite
	unmarshal(t, from.good(append([]string{"--site", site, "pack-site", name, key.Recipient().String()}, since...)...), &out)
	carry(t, from, site, name, to, site, name, out.Bytes, same)
	return out
}

func unpack(to *testBench, kill int, site string, p wire.PackedSite, key *age.X25519Identity, how string) done {
	return to.verb(kill, opens(key), "--site", site, "unpack-site", p.Name, wire.Ungrouped(p.SHA256), wire.Ungrouped(p.PlainSHA256), how)
}

// TestASitesDirectoryMoves: a copy while it serves, the changes since, and late ones; after kills at every step, the
// arrived directory equals the source.
func TestASitesDirectoryMoves(t *testing.T) {
	t.Parallel()
	b, other := newBench(t), newBench(t)
	b.queues()
	const site = "a.example.com"
	db := b.database("a")
	b.good("new-site", site, "--db-name", db)
	at := func(b *testBench, name string) string { return b.path("sites/" + site + "/" + name) }
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(at(b, name)), 0o755))
		require.NoError(t, os.WriteFile(at(b, name), []byte(text), 0o640))
	}
	write("private/files/kept", "kept")
	write("private/files/changed", "before")
	write("public/files/gone", "gone")
	write("public/files/turns", "a file")
	odd := []string{
		"caf\xe9.png", "d\xe9p/a.txt", "d\xe9p/\xff\xfe", "new\nline", `back\slash`, "e\u0301", "\u00e9", "%41", "A", "%", "a b ",
		"..a", "\u202egnp", "emoji \U0001F600", "\"quoted\"", strings.Repeat("n", 255),
	}
	for _, name := range odd {
		write("public/files/odd/"+name, name)
	}
	require.NoError(t, os.Symlink("kept", at(b, "private/files/link")))
	require.NoError(t, os.Symlink("/etc/passwd", at(b, "private/files/outside")))
	b.good("--site", site, "backup", "snap-1", "--with-files")

	require.Contains(t, other.bad("--site", site, "write-sealed", "mov-1-1", "0", "1"), "does not exist")
	for range 2 {
		other.good("expect-site", site, "--db-name", db)
	}
	require.Equal(t, "[]", other.good("list-sites"), "it is no site yet")
	require.Contains(t, b.bad("expect-site", site, "--db-name", db), "is there already")
	require.Contains(t, b.bad("leave-site", site, "--db-name", db), "is in use here")

	key := identity(t)
	all := packed(t, b, other, site, "mov-1-1", key)
	require.Equal(t, all.All, all.Changed)
	killed := 0
	for n := 0; ; n++ { // repeated, it goes through
		d := unpack(other, n, site, all, key, unpackAll)
		if d.status == 0 {
			break
		}
		require.Equal(t, killedAt, d.status, d.stderr)
		killed++
	}
	require.Greater(t, killed, 5)
	require.NoFileExists(t, at(other, siteConfig))

	write("private/files/changed", "after!")
	write("private/files/new/deep", "new")
	write("public/files/odd/d\xe9p/a.txt", "changed")
	require.NoError(t, os.Remove(at(b, "public/files/odd/caf\xe9.png")))
	require.NoError(t, os.Remove(at(b, "public/files/gone")))
	require.NoError(t, os.Remove(at(b, "public/files/turns")))
	write("public/files/turns/into", "a directory")
	for range 2 {
		b.good("--site", site, "hold-site")
	}
	config := b.read("sites/" + site + "/" + siteConfig)
	require.EqualValues(t, 1, config["maintenance_mode"])
	require.EqualValues(t, 1, config["allow_reads_during_maintenance"])
	delta := packed(t, b, other, site, "mov-1-2", key, "mov-1-1")
	require.LessOrEqual(t, delta.Changed, 5, "only the changes")
	require.Equal(t, 0, unpack(other, -1, site, delta, key, unpackAll).status)

	want := listing(t, at(b, ""))
	require.Contains(t, want, "private/files/link")
	require.Contains(t, want, wire.SnapshotsDir+"/snap-1/snap-1-database.sql.gz")
	require.Equal(t, want, listing(t, at(other, "")))
	text, err := os.ReadFile(at(other, "private/files/changed"))
	require.NoError(t, err)
	require.Equal(t, "after!", string(text))
	for _, name := range odd[1:] {
		text, err := os.ReadFile(at(other, "public/files/odd/"+name))
		require.NoError(t, err, "%q", name)
		if name == "d\xe9p/a.txt" {
			name = "changed"
		}
		require.Equal(t, name, string(text))
	}
	b.good("--site", site, "usage")
	to, err := os.Readlink(at(other, "private/files/outside"))
	require.NoError(t, err)
	require.Equal(t, "/etc/passwd", to, "a link is a link, and is not followed")

	// It ends here for this site: the database is not on another server.
	write("private/files/late", "late")
	late := packed(t, b, other, site, "mov-1-3", key, "mov-1-2")
	require.Equal(t, 1, late.Changed)
	require.NoError(t, os.WriteFile(at(other, "private/files/kept"), []byte("newer"), 0o640))
	require.Equal(t, 0, unpack(other, -1, site, late, key, unpackMissing).status)
	require.FileExists(t, at(other, "private/files/late"))
	text, err = os.ReadFile(at(other, "private/files/kept"))
	require.NoError(t, err)
	require.Equal(t, "newer", string(text), "existing files stay")

	for range 2 {
		b.good("--site", site, "free-site")
		require.NotContains(t, b.read("sites/"+site+"/"+siteConfig), "allow_reads_during_maintenance")
		require.NotEqualValues(t, 1, b.read("sites/" + site + "/" + siteConfig)["maintenance_mode"])
	}
	for range 2 {
		other.good("leave-site", site, "--db-name", db)
		require.NoDirExists(t, at(other, ""))
	}
	b.good("--site", site, "hold-site")
	require.Contains(t, b.bad("--site", "missing.example.com", "pack-site", "mov-1-1", key.Recipient().String()),
		"site: site_missing: ")
	require.Contains(t, b.bad("leave-site", site, "--db-name", b.database("b")), "has database")
	b.good("leave-site", site, "--db-name", db)
	require.NoDirExists(t, at(b, ""))
}

// TestAnArchiveStaysInItsSite: the archive of a compromised host reaches no other site, and no file of this host's
// own.
func TestAnArchiveStaysInItsSite(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const site, neighbour = "a.example.com", "b.example.com"
	require.NoError(t, os.MkdirAll(b.path("sites/"+neighbour), 0o755))
	require.NoError(t, os.WriteFile(b.path("sites/"+neighbour+"/"+siteConfig), []byte("{}"), 0o644))
	list, err := json.Marshal(packList{Dirs: byName[uint32]{"private": 0o755}, Files: byName[bool]{"x": true}})
	require.NoError(t, err)
	header := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 2, Mode: 0o644}
	}
	for what, entries := range map[string][]tar.Header{
		"the owner":         {header(ownerFile)},
		"a path out":        {header("../" + neighbour + "/" + siteConfig)},
		"an absolute path":  {header("/etc/prego")},
		"through a link":    {{Typeflag: tar.TypeSymlink, Name: "x", Linkname: "../" + neighbour}, header("x/" + siteConfig)},
		"a device":          {{Typeflag: tar.TypeChar, Name: "x"}},
		"a hard link":       {{Typeflag: tar.TypeLink, Name: "x", Linkname: "../" + neighbour + "/" + siteConfig}},
		"what others start": {header(backupsDir + "/.sealed-bak-1")},
	} {
		t.Run(what, func(t *testing.T) {
			b.good("expect-site", site, "--db-name", b.database("a"))
			key := identity(t)
			var sealed strings.Builder
			to, err := age.Encrypt(&sealed, key.Recipient())
			require.NoError(t, err)
			small, err := zstd.NewWriter(to)
			require.NoError(t, err)
			plain := seal.Counted(small)
			archive := tar.NewWriter(plain)
			require.NoError(t, packBytes(archive, listEntry, list))
			for _, h := range entries {
				require.NoError(t, archive.WriteHeader(&h))
				if h.Typeflag == tar.TypeReg {
					_, err = archive.Write([]byte("no"))
					require.NoError(t, err)
				}
			}
			require.NoError(t, archive.Close())
			require.NoError(t, small.Close())
			require.NoError(t, to.Close())
			require.NoError(t, os.MkdirAll(b.path("sites/"+site+"/"+backupsDir), 0o755))
			require.NoError(t, os.WriteFile(b.path("sites/"+sealedFile(site, "mov-1-1")), []byte(sealed.String()), 0o600))
			sum := sha256.Sum256([]byte(sealed.String()))
			d := b.verb(-1, opens(key), "--site", site, "unpack-site", "mov-1-1", hex.EncodeToString(sum[:]), plain.Sum(), unpackAll)
			require.Equal(t, 1, d.status, d.stderr)
			text, err := os.ReadFile(b.path("sites/" + neighbour + "/" + siteConfig))
			require.NoError(t, err)
			require.Equal(t, "{}", string(text))
			b.good("leave-site", site, "--db-name", b.database("a"))
		})
	}
}

// listing is everything below a directory that is not the host's own.
func listing(t testing.TB, dir string) (out []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err == nil && name != "." && !staysOnHost(name) {
			out = append(out, name)
		}
		return err
	}))
	return out
}
