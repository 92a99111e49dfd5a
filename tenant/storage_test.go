package tenant

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStorageLevels(t *testing.T) {
	t.Parallel()
	r := StorageRules{WarnPct: 90, HardPct: 120, Grace: time.Hour}
	for _, tc := range []struct {
		used, quota int64
		over        time.Duration
		want        StorageLevel
	}{
		{0, 1000, 0, StorageOK},
		{899, 1000, 0, StorageOK},
		{900, 1000, 0, StorageWarned},
		{999, 1000, 5 * time.Hour, StorageWarned},
		{1000, 1000, 0, StorageOver},
		{1199, 1000, time.Hour - 1, StorageOver},
		{1000, 1000, time.Hour, StorageReadOnly},
		{1200, 1000, 0, StorageReadOnly},
		{2, 0, 0, StorageReadOnly},
	} {
		require.Equal(t, tc.want, r.Level(tc.used, tc.quota, tc.over), "%+v", tc)
	}
	require.Equal(t, StorageReadOnly, StorageRules{WarnPct: 90, HardPct: 120}.Level(1000, 1000, 0), "no grace is at once")
}

func TestParseBackup(t *testing.T) {
	t.Parallel()
	good := `{"name":"snp-1","files":[{"path":"a.b/p/snp-1-files.tar","bytes":7},{"path":"a.b/p/snp-1-database.sql.gz","bytes":5}],"bytes":1}`
	b, err := ParseBackup("a.b", "snp-1", "progress\n"+good+"\n")
	require.NoError(t, err)
	require.Equal(t, Backup{Name: "snp-1", Bytes: 12, Files: []BackupFile{{"a.b/p/snp-1-database.sql.gz", 5}, {"a.b/p/snp-1-files.tar", 7}}}, b)
	require.Equal(t, []string{"a.b/p/snp-1-database.sql.gz", "a.b/p/snp-1-files.tar"}, b.Paths())
	for what, tc := range map[string]struct{ printed, want string }{
		"of another name":  {strings.ReplaceAll(good, `"name":"snp-1"`, `"name":"snp-2"`), `made backup "snp-2" and not "snp-1"`},
		"of another site":  {strings.ReplaceAll(good, `"path":"a.b/`, `"path":"c.d/`), "not of site a.b"},
		"out of the site":  {strings.ReplaceAll(good, `a.b/p/`, `a.b/../c.d/`), "not of site a.b"},
		"less than a byte": {strings.ReplaceAll(good, `tar","bytes":7`, `tar","bytes":-7`), "not of site a.b"},
		"no database":      {strings.ReplaceAll(good, `database.sql.gz`, `database.sql`), "the backup has no database"},
		"an empty one":     {strings.ReplaceAll(good, `gz","bytes":5`, `gz","bytes":0`), "the backup has no database"},
		"nothing":          {"", `no JSON: ""`},
		"no JSON":          {"Backup taken", `no JSON: "Backup taken"`},
	} {
		require.NotEqual(t, good, tc.printed, what)
		_, err := ParseBackup("a.b", "snp-1", tc.printed)
		require.ErrorContains(t, err, tc.want, what)
	}
	s, err := ParseSiteSize(`{"database_bytes":3,"files_bytes":4,"backups_bytes":5,"users":6}`)
	require.NoError(t, err)
	require.EqualValues(t, 7, s.Used())
	for _, printed := range []string{`{"database_bytes":-1}`, `{"files_bytes":-1}`, `{"backups_bytes":-1}`, `{"users":-1}`} {
		_, err = ParseSiteSize(printed)
		require.ErrorContains(t, err, "less than nothing", printed)
	}
}
