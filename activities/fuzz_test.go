package activities

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/tenant"
)

// FuzzBenchOutput: what a bench prints, which a tenant's app can add to, is refused, or is a report
// of the site that was asked about and of nothing else.
func FuzzBenchOutput(f *testing.F) {
	for _, s := range []string{
		`{"database_bytes":1,"files_bytes":2,"backups_bytes":3,"users":4}`, "Updating...\n" + `{"database_bytes":-1}`, `{"database_bytes":1e19}`, "null", "[]", "",
		`{"name":"b","files":[{"path":"a.example.com/private/backups/b-database.sql.gz","bytes":5},{"path":"a.example.com/private/backups/b-files.tar","bytes":7}]}`,
		`{"name":"b","files":[{"path":"a.example.com/../c/x-database.sql.gz","bytes":5}]}`, `{"name":"b","bytes":99,"files":[{"path":"b.example.com/x-database.sql.gz","bytes":5}]}`,
		`{"name":"b","files":[{"path":"a.example.com/x-database.sql.gz","bytes":9223372036854775807},{"path":"a.example.com/y","bytes":9223372036854775807}]}`,
	} {
		f.Add(s)
	}
	const site, name = "a.example.com", "b"
	f.Fuzz(func(t *testing.T, printed string) {
		coded := func(err error) {
			var coded *prego.Error
			require.ErrorAs(t, err, &coded)
			require.LessOrEqual(t, len(coded.Message), 1000, "a sentence, not a command's output")
		}
		if s, err := parseSiteSize(printed); err != nil {
			coded(err)
		} else {
			require.True(t, s.DatabaseBytes >= 0 && s.FilesBytes >= 0 && s.BackupsBytes >= 0 && s.Users >= 0)
		}
		b, err := parseBackup(site, name, printed)
		if err != nil {
			coded(err)
			return
		}
		require.Equal(t, name, b.Name)
		require.NotEmpty(t, b.Files)
		require.True(t, strings.HasSuffix(b.Files[0].Path, backupDatabase), "the database is first")
		var sum int64
		for _, file := range b.Files {
			require.True(t, strings.HasPrefix(file.Path, site+"/") && !strings.Contains(file.Path, ".."))
			require.GreaterOrEqual(t, file.Bytes, int64(0))
			sum += file.Bytes
		}
		require.GreaterOrEqual(t, b.Bytes, int64(0), "sizes add up to more than there is")
		require.Equal(t, sum, b.Bytes)
	})
}

// bucket has one manifest, and the object that it names.
type bucket struct {
	ObjectStorage
	manifest []byte
}

func (b bucket) Get(context.Context, string, int64) ([]byte, error) { return b.manifest, nil }

func (b bucket) Head(context.Context, string) (tenant.StoredObject, bool, error) {
	return tenant.StoredObject{Bytes: 5, ETag: "e"}, true, nil
}

// FuzzManifest: write access to the bucket allows replaying a genuine manifest, but not changing
// one.
func FuzzManifest(f *testing.F) {
	dir, others := f.TempDir(), f.TempDir()
	vault := func(dir string) *token.Sealing {
		require.NoError(f, token.InitKeys(dir))
		v, err := token.OpenSealing(dir, token.SealBackups)
		require.NoError(f, err)
		return v
	}
	ours, other := vault(dir), vault(others)
	genuine := func(v *token.Sealing, id prego.BackupID) (m tenant.Manifest, text []byte) {
		sealed, key, err := v.Seal(tenant.BackupKeyFor(id), []byte("AGE-SECRET-KEY-1"))
		require.NoError(f, err)
		object, _ := tenant.BackupKeys("test", "t-1", id)
		m = tenant.Manifest{
			Format: 1, Environment: "test", BackupID: id, OrgID: "acme", TenantID: "t-1", Slug: "s", Site: "a.example.com", Apps: []string{"erpnext"}, Object: object, Bytes: 5,
			Parts: []tenant.ObjectPart{{Number: 1, Bytes: 5, ETag: "x"}}, SealedIdentity: sealed, KeyID: key,
		}
		text, err = json.Marshal(m)
		require.NoError(f, err)
		m.MAC, err = v.MAC(key, text)
		require.NoError(f, err)
		text, err = json.Marshal(m)
		require.NoError(f, err)
		return m, text
	}
	want, text := genuine(ours, "bak-1")
	_, another := genuine(ours, "bak-2")
	_, foreign := genuine(other, "bak-1")
	// A corpus can't know the keys of a run: a kept input is an edit of the genuine text.
	f.Add(0, 0, "")
	f.Add(len(text)-1, 0, `,"ORG_ID":"thief"`)
	f.Add(1, 0, `"org_id":"thief",`)
	f.Add(1, 0, `"mac":null,`)
	f.Add(bytes.Index(text, []byte("acme")), 4, "evil")
	f.Add(0, len(text), string(another))
	f.Add(0, len(text), string(foreign))
	f.Add(0, len(text), `{"format":1,"environment":"test","backup_id":"bak-1","tenant_id":"t-1"}`)
	f.Fuzz(func(t *testing.T, at, cut int, put string) {
		at = min(max(at, 0), len(text))
		cut = min(max(cut, 0), len(text)-at)
		changed := append(append(append([]byte{}, text[:at]...), put...), text[at+cut:]...)
		a := &Backups{Objects: bucket{manifest: changed}, Vault: ours, Settings: BackupSettings{Environment: "test"}}
		got, _, _, err := a.readManifest(t.Context(), "key", "t-1", "", "bak-1")
		if err != nil {
			return
		}
		got.MAC = want.MAC
		require.Equal(t, want, got, "a changed manifest was accepted")
	})
}
