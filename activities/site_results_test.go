package activities

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/tenant"
)

func TestParseBackup(t *testing.T) {
	t.Parallel()
	good := `{"name":"snp-1","files":[{"path":"a.b/p/snp-1-files.tar","bytes":7},{"path":"a.b/p/snp-1-database.sql.gz","bytes":5}],"bytes":1}`
	b, err := parseBackup("a.b", "snp-1", "progress\n"+good+"\n")
	require.NoError(t, err)
	require.Equal(t, tenant.HostBackup{Name: "snp-1", Bytes: 12, Files: []tenant.HostFile{{Path: "a.b/p/snp-1-database.sql.gz", Bytes: 5}, {Path: "a.b/p/snp-1-files.tar", Bytes: 7}}}, b)
	require.Equal(t, []string{"a.b/p/snp-1-database.sql.gz", "a.b/p/snp-1-files.tar"}, b.Paths())
	for what, tc := range map[string]struct{ printed, want string }{
		"of another name":  {strings.ReplaceAll(good, `"name":"snp-1"`, `"name":"snp-2"`), `made backup "snp-2" instead of "snp-1"`},
		"of another site":  {strings.ReplaceAll(good, `"path":"a.b/`, `"path":"c.d/`), "not of site a.b"},
		"out of the site":  {strings.ReplaceAll(good, `a.b/p/`, `a.b/../c.d/`), "not of site a.b"},
		"less than a byte": {strings.ReplaceAll(good, `tar","bytes":7`, `tar","bytes":-7`), "not of site a.b"},
		"no database":      {strings.ReplaceAll(good, `database.sql.gz`, `database.sql`), "the backup has no database"},
		"an empty one":     {strings.ReplaceAll(good, `gz","bytes":5`, `gz","bytes":0`), "the backup has no database"},
		"nothing":          {"", `no JSON: ""`},
		"no JSON":          {"Backup taken", `no JSON: "Backup taken"`},
	} {
		require.NotEqual(t, good, tc.printed, what)
		_, err := parseBackup("a.b", "snp-1", tc.printed)
		require.ErrorContains(t, err, tc.want, what)
	}
	s, err := parseSiteSize(`{"database_bytes":3,"files_bytes":4,"backups_bytes":5,"users":6}`)
	require.NoError(t, err)
	require.EqualValues(t, 7, s.Used())
	for _, printed := range []string{`{"database_bytes":-1}`, `{"files_bytes":-1}`, `{"backups_bytes":-1}`, `{"users":-1}`} {
		_, err = parseSiteSize(printed)
		require.ErrorContains(t, err, "negative size", printed)
	}
}
