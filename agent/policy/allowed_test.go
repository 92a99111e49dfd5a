package policy

import (
	"cmp"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

func verbOf(kind wire.CommandKind, args []string) string {
	if p := Permitted(kind, args); p != nil {
		return p.Verb
	}
	return ""
}

func TestBenchIsAllowedByTheTable(t *testing.T) {
	t.Parallel()
	site := "a-1.example.com"
	for _, tc := range []struct {
		verb string
		args []string
	}{
		{"new-site", []string{"new-site", site, "--db-name", "pool_a1"}},
		{"set-config", []string{"--site", site, "set-config", "host_name", "https://ü.example.com/ $(id)"}},
		{"set-config", []string{"--site", site, "set-config", "empty", ""}},
		{"install-app", []string{"--site", site, "install-app", "erpnext"}},
		{"list-apps", []string{"--site", site, "list-apps"}},
		{"set-maintenance-mode", []string{"--site", site, "set-maintenance-mode", "on"}},
		{"set-maintenance-mode", []string{"--site", site, "set-maintenance-mode", "off"}},
		{"", []string{"--site", site, "backup"}},
		{"", []string{"--site", site, "backup", "--with-files"}},
		{"", []string{"--site", site, "rename-site", "b.example.com"}},
		{"", []string{"drop-site", site, "--force", "--no-backup"}},
		{"", []string{"new-site", site, "--db-name", "mysql"}},
		{"", []string{"--site", site, "restore", "b.example.com/private/backups/20260102_030405-b-database.sql.gz"}},
		{"", []string{"--site", site, "restore", "/" + site + "/private/backups/20260102_030405-a-database.sql.gz"}},
		{"", []string{"--site", site, "restore", site + "/private/backups/../../20260102_030405-a-database.sql.gz"}},
		{"", []string{"--site", site, "restore", site + "/private/backups/20260102_030405-a-files.tar"}},
		{"", []string{"--site", site, "restore", "https://example.com/20260102_030405-a-database.sql.gz"}},
		{"", []string{"--site", site, "restore", site + "/private/backups/20260102_030405-a-database.sql.gz", "--force"}},
		{"", []string{"--site", site, "restore", site + "/private/backups/20260102_030405-a-database.sql.gz", "--admin-password", "x"}},
		{"list-sites", []string{"list-sites"}},
		{"promote-site", []string{"promote-site", site, "b.example.com"}},
		{"configure", []string{"--site", site, "configure", `{"host_name":"https://a.example.com"}`}},
		{"set-admin-password", []string{"--site", site, "set-admin-password"}},
		{"add-user", []string{"--site", site, "add-user", "kim.p+x@example.co.kr", "Kim Park-Ö"}},
		{"enable-scheduler", []string{"--site", site, "enable-scheduler"}},
		{"disable-scheduler", []string{"--site", site, "disable-scheduler"}},
		{"migrate", []string{"--site", site, "migrate"}},
		{"backup", []string{"--site", site, "backup", "snap-1"}},
		{"backup", []string{"--site", site, "backup", "snap-1", "--with-files"}},
		{"restore", []string{"--site", site, "restore", "snap-1"}},
		{"restore", []string{"--site", site, "restore", "snap-1", "--with-files"}},
		{"delete-backup", []string{"--site", site, "delete-backup", "snap-1"}},
		{"usage", []string{"--site", site, "usage"}},
		{"erase-site", []string{"erase-site", site, "--db-name", "pool_1"}},
		{"erase-site", []string{"erase-site", site, "--db-name", "tenant_a_db"}},
		{"", []string{"erase-site", site, "--db-name", "mysql"}},
		{"", []string{"erase-site", site, "--db-name", "_a1"}},
		{"", []string{"erase-site", site}},
		{"", []string{"promote-site", site, "../x"}},
		{"", []string{"promote-site", site, "--force"}},
		{"", []string{"--site", site, "configure", `["host_name"]`}},
		{"", []string{"--site", site, "set-admin-password", "a password"}},
		{"", []string{"--site", site, "add-user", "--password", "x"}},
		{"", []string{"--site", site, "add-user", "a@example.com", "-x"}},
		{"", []string{"--site", site, "add-user", "a@example.com", "<b>"}},
		{"", []string{"--site", site, "add-user", "a@example", "A"}},
		{"", []string{"--site", site, "backup", "../x"}},
		{"", []string{"--site", site, "backup", "Snap"}},
		{"", []string{"--site", site, "backup", strings.Repeat("a", 81)}},
		{"", []string{"--site", site, "restore", "snap-1", "--force"}},
		{"", []string{"--site", site, "migrate", "--skip-failing"}},
		{"", nil},
		{"", []string{""}},
		{"", []string{"version"}},
		{"", []string{"console"}},
		{"", []string{"--site", site, "console"}},
		{"", []string{"--site", site, "execute", "frappe.db.sql"}},
		{"", []string{"--site", "all", "backup"}},
		{"", []string{"list-sites", "--help"}},
		{"", []string{"List-Sites"}},
		{"", []string{"SITE"}},
		{"", []string{"new-site", site}},
		{"", []string{"new-site", site, "--db-name"}},
		{"", []string{"new-site", site, "--db-name", "a;b"}},
		{"", []string{"new-site", site, "--db-name", "pool_" + strings.Repeat("a", 64)}},
		{"", []string{"new-site", site, "--db-name", "pool_a", "--force"}},
		{"", []string{"new-site", "localhost", "--db-name", "pool_a"}},
		{"", []string{"new-site", "../../etc", "--db-name", "pool_a"}},
		{"", []string{"new-site", "A.example.com", "--db-name", "pool_a"}},
		{"", []string{"new-site", "-a.example.com", "--db-name", "pool_a"}},
		{"", []string{"new-site", "a.example.com\n", "--db-name", "pool_a"}},
		{"", []string{"new-site", "a..com", "--db-name", "pool_a"}},
		{"", []string{"new-site", strings.Repeat("a.", 130) + "com", "--db-name", "pool_a"}},
		{"", []string{"--site", site, "rename-site", "--force"}},
		{"", []string{"--site", site, "set-config", "-g", "value"}},
		{"", []string{"--site", site, "set-config", "key", "--parse"}},
		{"", []string{"--site", site, "set-config", "a key", "value"}},
		{"", []string{"--site", site, "set-config", "key", "two\nlines"}},
		{"", []string{"--site", site, "set-config", "key", "\x00"}},
		{"set-config", []string{"--site", site, "set-config", "key", strings.Repeat("x", 4096)}},
		{"", []string{"--site", site, "set-config", "key", strings.Repeat("x", 4097)}},
		{"", []string{"--site", site, "install-app", "https://example.com/app"}},
		{"", []string{"--site", site, "install-app", "Erpnext"}},
		{"", []string{"--site", site, "set-maintenance-mode", "maybe"}},
		{"", []string{"drop-site", site, "--no-backup", "--force"}},
		{"", []string{"drop-site", site}},
	} {
		require.Equal(t, tc.verb, verbOf(wire.KindBench, tc.args), "%q", tc.args)
	}
}

// TestRulesAreWhole goes over the table: an example of each line is its verb's, named by its words, and takes its
// secrets only, and no longer than any command may.
func TestRulesAreWhole(t *testing.T) {
	t.Parallel()
	examples := map[string]string{
		"SITE": "a-1.example.com", "APP": "erpnext", "SETTINGS": `{"host_name":"https://a.example.com"}`, "EMAIL": "kim@example.com", "PERSON": "Kim",
		"BACKUP": "snap-1", "RECIPIENT": "age1" + strings.Repeat("q", 58), "SHA256": strings.Repeat("0", 64), "BYTES": "0", "KEY": "k", "VALUE": "v",
		"UNPACK": "all", "DBNAME": "mysql", "OURDB": "pool_a", "ADDRESS": "10.0.0.1", "SERVER": "s-1", "CACHEDB": "7", "SECTION": "memory",
		"REDISKEY": "k", "VOLUME": "42", "COUNT": "10",
	}
	const secret = "s3cret"
	for kind, rules := range Rules {
		require.True(t, kind.Valid() || kind == KindSpool)
		for i, r := range rules {
			var args, named []string
			for word := range strings.FieldsSeq(r.Line) {
				example, there := examples[word]
				if there {
					named = append(named, example)
				} else {
					require.Equal(t, strings.ToLower(word), word, "no pattern: %s", r.Line)
				}
				args = append(args, cmp.Or(example, word))
			}
			p := Permitted(kind, args)
			require.NotNil(t, p, r.Line)
			require.Same(t, &rules[i], p.Rule, "another line takes the same: %s", r.Line)
			require.Equal(t, named, p.Words[:len(named)], r.Line)
			require.NotRegexp(t, "^--(site|volume|db)", strings.Join(p.Words, " "))
			// What was packed or sealed for a transfer is a copy of what stays.
			loses := regexp.MustCompile(`^(erase|drop|delete|leave|remove|purge|wipe|destroy)-`).MatchString(p.Verb) &&
				p.Verb != "drop-packed" && p.Verb != "drop-sealed"
			e, erases := Erased(kind, args)
			require.Equal(t, loses, erases, r.Line)
			require.Equal(t, loses, e != Erasure{}, r.Line)

			in := wire.ExecRequest{Kind: kind, Args: args, Secrets: map[string]string{}}
			for _, name := range []string{r.Needs, r.Takes} {
				if name != "" {
					in.Secrets[name] = secret
				}
			}
			k, refused := Check(in)
			require.Nil(t, refused, r.Line)
			require.LessOrEqual(t, k.Limit(), 15*time.Minute, r.Line)
			require.GreaterOrEqual(t, k.Limit(), time.Minute, r.Line)
			in.Secrets["another"] = secret
			_, refused = Check(in)
			require.NotNil(t, refused, r.Line)
			if r.Needs != "" {
				_, refused = Check(wire.ExecRequest{Kind: kind, Args: args})
				require.NotNil(t, refused, r.Line)
			}
			line, err := k.SecretsLine(nil, wire.Service{User: "root", Password: "r00t"})
			require.NoError(t, err)
			require.Equal(t, r.Root, strings.Contains(line, "r00t"), r.Line)
		}
	}
}

// FuzzPolicy lets nothing through that a shell, an option parser, a statement or a
// path could read more into.
func FuzzPolicy(f *testing.F) {
	for _, rules := range Rules {
		for _, r := range rules {
			f.Add("bench", strings.Join(strings.Fields(r.Line), "\x1f"))
		}
	}
	for _, s := range []string{"--site\x1fa.b\x1fset-config\x1fk\x1f--parse", "drop-database\x1fpool_a`", "memory-usage\x1f-x", "new-site\x1fa.b\n\x1f--db-name\x1fx"} {
		f.Add("mariadb", s)
	}
	f.Fuzz(func(t *testing.T, kind, joined string) {
		args := strings.Split(joined, "\x1f")
		for _, k := range []wire.CommandKind{wire.CommandKind(kind), wire.KindBench, wire.KindMariaDB, wire.KindRedisCLI} {
			p := Permitted(k, args)
			if p == nil {
				continue
			}
			require.True(t, k.Valid())
			options := 0
			for i, a := range args {
				require.NotContains(t, a, "\x00")
				require.NotContains(t, a, "\n")
				require.LessOrEqual(t, len(a), 4096)
				if strings.HasPrefix(a, "-") {
					options++
					require.Contains(t, []string{"--site", "--db-name", "--force", "--no-backup", "--with-files", "--with-public-files", "--with-private-files"}, a)
					require.Equal(t, wire.KindBench, k)
				}
				if k == wire.KindMariaDB && i > 0 {
					require.NotRegexp(t, "[^A-Za-z0-9_]", a)
				}
			}
			require.LessOrEqual(t, options, 3)
			for _, s := range p.Sites {
				require.NotContains(t, s, "/")
				require.NotContains(t, s, "..")
				require.True(t, filepath.IsLocal(s))
			}
		}
	})
}

func TestErased(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		kind wire.CommandKind
		line string
		want Erasure
	}{
		{wire.KindBench, "erase-site a.example.com --db-name pool_a", Erasure{Site: "a.example.com", Database: "pool_a"}},
		{wire.KindBench, "leave-site a.example.com --db-name pool_a", Erasure{Site: "a.example.com", Database: "pool_a"}},
		{wire.KindBench, "--site a.example.com delete-backup snp-1", Erasure{Copy: "snp-1"}},
		{wire.KindMariaDB, "erase-database pool_a", Erasure{Database: "pool_a"}},
		{wire.KindRedisCLI, "erase-user tenant_a_db 7", Erasure{Database: "tenant_a_db"}},
		{wire.KindBench, "--site a.example.com drop-packed snp-1", Erasure{}},
		{wire.KindBench, "erase-database pool_a", Erasure{}},
		{wire.KindMariaDB, "erase-database mysql", Erasure{}},
	} {
		e, ok := Erased(tc.kind, strings.Fields(tc.line))
		require.Equal(t, tc.want, e, tc.line)
		require.Equal(t, tc.want != Erasure{}, ok, tc.line)
	}
}

// TestEveryWordIsPublicOrNot: each placeholder of the table is declared, and only what is public is recorded.
func TestEveryWordIsPublicOrNot(t *testing.T) {
	t.Parallel()
	capitals := regexp.MustCompile(`^[A-Z][A-Z0-9]*$`)
	used := map[string]bool{}
	for _, rules := range Rules {
		for _, r := range rules {
			for word := range strings.FieldsSeq(r.Line) {
				if capitals.MatchString(word) {
					require.Contains(t, publicWords, word, r.Line)
					require.Contains(t, words(), word, r.Line)
					used[word] = true
				}
			}
		}
	}
	require.Len(t, publicWords, len(used), "no word is declared that no line has")

	for want, args := range map[string][]string{
		"--site a.example.com set-config smtp_pass …": {"--site", "a.example.com", "set-config", "smtp_pass", "hunter2"},
		"--site a.example.com configure …":            {"--site", "a.example.com", "configure", `{"mail_login":"x"}`},
		"--site a.example.com add-user … …":           {"--site", "a.example.com", "add-user", "kim@example.com", "Kim"},
		"--site a.example.com backup one":             {"--site", "a.example.com", "backup", "one"},
		"… --site … set-config … …":                   {"-x", "--site", "a", "set-config", "k", "hunter2"},
		"… … …":                                       {"SITE", "mysql", "-phunter2"},
	} {
		line, private := Recorded(wire.KindBench, args)
		require.Equal(t, want, line)
		require.Len(t, private, strings.Count(want, Unrecorded))
	}
	line, private := Recorded(wire.KindRedisCLI, []string{"memory-usage", "session:abc"})
	require.Equal(t, []any{"memory-usage …", []string{"session:abc"}}, []any{line, private})
}
