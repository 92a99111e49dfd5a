package tree_test

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/prego/prego/agent/tree"
)

// FuzzExtract: even for a malicious archive, nothing is written outside of the target directory, no device is made,
// and the restored files are those of its list.
func FuzzExtract(f *testing.F) {
	from := f.TempDir()
	require.NoError(f, os.MkdirAll(filepath.Join(from, "d/e"), 0o755))
	require.NoError(f, os.WriteFile(filepath.Join(from, "d/a"), []byte("text\n"), 0o600))
	require.NoError(f, os.Symlink("../d/a", filepath.Join(from, "d/e/link")))
	dir, err := os.Open(from)
	require.NoError(f, err)
	var good bytes.Buffer
	w := tar.NewWriter(&good)
	_, err = tree.Archive(f.Context(), tree.Source{Dir: dir, Sync: func() error { return nil }}, w)
	require.NoError(f, err)
	require.NoError(f, w.Close())
	require.NoError(f, dir.Close())
	f.Add(good.Bytes())
	for _, headers := range [][]tar.Header{
		{{Name: "../x", Typeflag: tar.TypeReg}},
		{{Name: "/x", Typeflag: tar.TypeReg}},
		{{Name: "l", Linkname: "..", Typeflag: tar.TypeSymlink}, {Name: "l/x", Typeflag: tar.TypeReg}},
		{{Name: "l", Linkname: "/", Typeflag: tar.TypeSymlink}, {Name: "l", Typeflag: tar.TypeDir}, {Name: "l/x", Typeflag: tar.TypeReg}},
		{{Name: "h", Linkname: "../secret", Typeflag: tar.TypeLink}},
		{{Name: "l", Linkname: "../secret", Typeflag: tar.TypeSymlink}, {Name: "h", Linkname: "l", Typeflag: tar.TypeLink}, {Name: "h", Typeflag: tar.TypeReg}},
		{{Name: "n", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		{{Name: ".", Typeflag: tar.TypeSymlink, Linkname: ".."}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			require.NoError(f, w.WriteHeader(&h))
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		outside := t.TempDir()
		secret, into := filepath.Join(outside, "secret"), filepath.Join(outside, "into")
		require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
		require.NoError(t, os.Mkdir(into, 0o755))
		root, err := os.OpenRoot(into)
		require.NoError(t, err)
		defer func() { _ = root.Close() }()
		before, err := os.Lstat(secret)
		require.NoError(t, err)
		r, err := tree.Extract(t.Context(), root, tar.NewReader(bytes.NewReader(archive)))
		if err == nil {
			require.NotZero(t, r.Entries())
			err = r.Settle(t.Context())
		} else {
			require.Nil(t, r)
		}
		beside, derr := os.ReadDir(outside)
		require.NoError(t, derr)
		require.Len(t, beside, 2, "something was made outside")
		text, rerr := os.ReadFile(secret)
		require.NoError(t, rerr)
		require.Equal(t, "secret", string(text))
		after, serr := os.Lstat(secret)
		require.NoError(t, serr)
		require.Equal(t, []any{before.Mode(), before.ModTime()}, []any{after.Mode(), after.ModTime()})
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(secret, &st))
		require.EqualValues(t, 1, st.Nlink, "a hard link leads outside")
		found := 0
		require.NoError(t, filepath.WalkDir(into, func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // a directory that may not be read has nothing that could be used
			}
			found++
			require.Zero(t, e.Type()&fs.ModeDevice, "a device")
			return nil
		}))
		if err == nil {
			require.Equal(t, r.Entries(), found, "it matches its list")
		}
	})
}
