// Package tools has the checks of `make lint` and `make compose-config`; its test shows
// that each of them finds what it is for.
package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// run runs a program in a directory and returns its output.
func run(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o755))
}

// TestComposeConfigIsChecked breaks docker-compose.yml in each way that the check detects.
func TestComposeConfigIsChecked(t *testing.T) {
	t.Parallel()
	compose := read(t, "../docker-compose.yml")
	for name, c := range map[string]struct{ file, old, now, says string }{
		"as it is":                 {},
		"a writable root":          {"docker-compose.yml", "  read_only: true\n", "", "can write to its root file system"},
		"privileges":               {"docker-compose.yml", `  security_opt: ["no-new-privileges:true"]` + "\n", "", "can gain privileges"},
		"capabilities":             {"docker-compose.yml", "  cap_drop: [ALL]\n", "", "keeps capabilities"},
		"one capability less":      {"docker-compose.yml", "  cap_drop: [ALL]\n", "  cap_drop: [NET_RAW]\n", "keeps capabilities"},
		"root":                     {"docker-compose.yml", `    user: "5000:5000"` + "\n", "", "temporal-ui may run as root"},
		"no limit":                 {"docker-compose.yml", `        limits: {cpus: "1", memory: 1g}`, `        limits: {cpus: "1"}`, "worker has no limit of memory"},
		"no restart":               {"docker-compose.yml", "  restart: unless-stopped\n  # Every", "  # Every", "api has no restart policy"},
		"a published database":     {"docker-compose.yml", "    networks: [database]\n    healthcheck:", "    ports: [\"5432:5432\"]\n    networks: [database]\n    healthcheck:", "postgres is published"},
		"an unpublished API":       {"docker-compose.yml", `    ports: ["${PREGO_API_PUBLISH:-127.0.0.1:8080}:8080"]` + "\n", "", "api is not published"},
		"no health check":          {"docker-compose.yml", "    healthcheck: *prego-health\n    stop_grace_period: 40s", "    stop_grace_period: 40s", "worker has no health check"},
		"a search attribute less":  {"deploy/temporal/namespace.sh", "fleet_id name outcome kind; do", "fleet_id name outcome; do", "other search attributes"},
		"no YAML":                  {"docker-compose.yml", "services:\n", "services\n", ""},
		"a variable without value": {"deploy/example.env", "PREGO_EGRESS_CIDRS=", "PREGO_NOTHING=", "PREGO_EGRESS_CIDRS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			files := map[string]string{"docker-compose.yml": compose}
			for _, f := range []string{"tools/compose-config.sh", "deploy/example.env", "deploy/settings.env", "deploy/temporal/namespace.sh", "workflows/options.go"} {
				files[f] = read(t, "../"+f)
			}
			if c.file != "" {
				require.Contains(t, files[c.file], c.old, "what this case breaks is written in another way now")
				files[c.file] = strings.Replace(files[c.file], c.old, c.now, 1)
			}
			for f, text := range files {
				write(t, filepath.Join(dir, f), text)
			}
			said, err := run(t, dir, "tools/compose-config.sh")
			if c.file == "" {
				require.NoError(t, err, said)
				return
			}
			require.Error(t, err, said)
			require.Contains(t, said, c.says)
		})
	}
}

// TestGeneratedCodeIsCompared changes generated code by hand.
func TestGeneratedCodeIsCompared(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, f := range []string{"go.mod", "go.sum", "tools/generated.sh", "api/openapi.yaml", "api/oapi-codegen.yaml", "api/openapi.gen.go"} {
		write(t, filepath.Join(dir, f), read(t, "../"+f))
	}
	// The verbs need the whole module: TestTablesAreWhatTheContractDeclares compares them.
	verbs := regexp.MustCompile(`(?m)^//go:generate .*tools/verbs.*\n`)
	write(t, filepath.Join(dir, "api/generate.go"), verbs.ReplaceAllString(read(t, "../api/generate.go"), ""))
	said, err := run(t, dir, "tools/generated.sh")
	require.NoError(t, err, said)
	write(t, filepath.Join(dir, "api/openapi.gen.go"), read(t, "../api/openapi.gen.go")+"\n// by hand\n")
	said, err = run(t, dir, "tools/generated.sh")
	require.Error(t, err, said)
	require.Contains(t, said, "api/openapi.gen.go is not what api/openapi.yaml generates")
}

// linter finds a tool that the Makefile installed.
func linter(t *testing.T, name string) string {
	t.Helper()
	found, err := filepath.Glob("../.prego/bin/" + name + "-v*")
	require.NoError(t, err)
	require.NotEmpty(t, found, "%s is not there: make tools", name)
	path, err := filepath.Abs(found[len(found)-1])
	require.NoError(t, err)
	return path
}

// module is a module with our name and our dependencies, and nothing in it.
func module(t *testing.T, dir string) string {
	t.Helper()
	dir, err := filepath.Abs(dir)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	for _, f := range []string{"go.mod", "go.sum", ".golangci.yml"} {
		write(t, filepath.Join(dir, f), read(t, "../"+f))
	}
	return dir
}

// TestForbiddenImportsAreFound imports, in every place that .golangci.yml names, each package that it denies there.
func TestForbiddenImportsAreFound(t *testing.T) {
	t.Parallel()
	// Always in the same place: findings are cached with their paths.
	dir := module(t, "../.prego/lint-check")
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct {
						Files []string
						Deny  []struct{ Pkg, Desc string }
					}
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "../.golangci.yml")), &config))
	real := map[string]string{"go.temporal.io": "go.temporal.io/sdk/temporal", "github.com/jackc/pgx": "github.com/jackc/pgx/v5", "github.com/prego/prego": "github.com/prego/prego/quota/leaf"}
	type want struct{ file, desc string }
	var wants []want
	for name, rule := range config.Linters.Settings.Depguard.Rules {
		for _, glob := range rule.Files {
			if strings.HasPrefix(glob, "!") {
				continue
			}
			place := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(glob, "*.go"), "**/"), "${config-path}/")
			for i, deny := range rule.Deny {
				pkg := deny.Pkg
				if r, ok := real[strings.TrimSuffix(pkg, "/")]; ok {
					pkg = r
				} else if below, ok := strings.CutPrefix(pkg, "github.com/prego/prego/"); ok {
					pkg += "/leaf" // so that nothing imports itself
					write(t, filepath.Join(dir, below, "leaf", "leaf.go"), "// Package leaf is there to be imported.\npackage leaf\n")
				}
				file := filepath.Join(place, name+string(rune('a'+i))+".go")
				write(t, filepath.Join(dir, file), "package "+packageOf(place)+"\n\nimport _ \""+pkg+"\"\n")
				wants = append(wants, want{file, deny.Desc})
			}
		}
	}
	write(t, filepath.Join(dir, "quota", "leaf", "leaf.go"), "// Package leaf is there to be imported.\npackage leaf\n")
	write(t, filepath.Join(dir, "api", "env.go"), "package api\n\nimport \"os\"\n\n// X is.\nfunc X() string { return os.Getenv(\"X\") }\n")
	wants = append(wants, want{"api/env.go", "settings are read in internal/config and in cmd"})
	write(t, filepath.Join(dir, "placement", "now.go"), "package placement\n\nimport \"time\"\n\n// X is.\nfunc X() time.Time { return time.Now() }\n")
	wants = append(wants, want{"placement/now.go", "what decides is given the time"})
	require.Greater(t, len(wants), 50)
	said, err := run(t, dir, linter(t, "golangci-lint"), "run", "--allow-parallel-runners", "--max-issues-per-linter", "0", "--max-same-issues", "0", "./...")
	require.Error(t, err, said)
	for _, w := range wants {
		found := slices.ContainsFunc(strings.Split(said, "\n"), func(l string) bool { return strings.HasPrefix(l, w.file+":") && strings.Contains(l, w.desc) })
		require.True(t, found, "no finding for %s: %s\n%s", w.file, w.desc, said)
	}
}

func packageOf(place string) string {
	switch name := filepath.Base(place); name {
	case ".":
		return "prego"
	case "prego", "prego-agent":
		return "main"
	default:
		return name
	}
}

// TestNondeterminismIsFound calls, from a workflow, each function that
// tools/workflowcheck.yaml declares, and some that workflowcheck knows by itself.
func TestNondeterminismIsFound(t *testing.T) {
	t.Parallel()
	dir := module(t, t.TempDir())
	calls := map[string]string{
		"math/rand/v2.Int": "rand.Int()", "math/rand/v2.IntN": "rand.IntN(2)", "math/rand/v2.Int64N": "rand.Int64N(2)", "math/rand/v2.Float64": "rand.Float64()",
		"math/rand/v2.Uint64": "rand.Uint64()", "github.com/google/uuid.New": "uuid.New()", "github.com/google/uuid.NewString": "uuid.NewString()",
		"os.Getenv": `os.Getenv("X")`, "os.LookupEnv": `os.LookupEnv("X")`, "os.ReadFile": `os.ReadFile("x")`, "os.Open": `os.Open("x")`,
		"time.NewTimer": "time.NewTimer(1)", "time.NewTicker": "time.NewTicker(1)",
		"(*sync.Mutex).Lock": "new(sync.Mutex).Lock()", "(*sync.RWMutex).Lock": "new(sync.RWMutex).Lock()", "(*sync.WaitGroup).Wait": "new(sync.WaitGroup).Wait()",
		"time.Now": "time.Now()", "time.Sleep": "time.Sleep(1)",
	}
	var config struct{ Decls map[string]bool }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "workflowcheck.yaml")), &config))
	for name := range config.Decls {
		require.Contains(t, calls, name, "no case for it")
	}
	write(t, filepath.Join(dir, "workflows", "w.go"), `package workflows

import (
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/workflow"
)

var _ = []any{rand.Int, os.Open, sync.OnceFunc, time.Now, uuid.New}
`+workflowsOf(calls)+`
// Fine only sleeps as workflows do.
func Fine(ctx workflow.Context) error { return workflow.Sleep(ctx, time.Second) }

// Register has them checked.
func Register(r interface{ RegisterWorkflow(any) }) {
	r.RegisterWorkflow(Fine)
`+registered(calls)+"}\n")
	config2, err := filepath.Abs("workflowcheck.yaml")
	require.NoError(t, err)
	said, err := run(t, dir, linter(t, "workflowcheck"), "-config", config2, "./workflows/...")
	require.Error(t, err, said)
	for i, name := range names(calls) {
		require.Regexp(t, `W`+string(rune('A'+i))+` is non-deterministic`, said, name)
	}
	require.NotContains(t, said, "Fine is non-deterministic")
}

func names(calls map[string]string) []string {
	var out []string
	for n := range calls {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

func workflowsOf(calls map[string]string) string {
	var b strings.Builder
	for i, n := range names(calls) {
		b.WriteString("\n// W" + string(rune('A'+i)) + " calls " + n + ".\nfunc W" + string(rune('A'+i)) + "(ctx workflow.Context) error { " + calls[n] + "; return nil }\n")
	}
	return b.String()
}

func registered(calls map[string]string) string {
	var b strings.Builder
	for i := range names(calls) {
		b.WriteString("	r.RegisterWorkflow(W" + string(rune('A'+i)) + ")\n")
	}
	return b.String()
}

// shares matches code with goroutines, or with state that several goroutines share.
var shares = regexp.MustCompile(`(?m)^\s*go (func\(|\w+(\.\w+)*\()|\.Go\(func|\bsync\.(Mutex|RWMutex|Map|WaitGroup)\b|\batomic\.|errgroup\.`)

// withoutRace are packages that share state and are tested without the race detector.
var withoutRace = map[string]string{
	"lab/s3test":         "starts a program for tests; its lock guards only that",
	"lab/netns":          "it has no tests, and runs in the tests of agent/rooted, internal/dockerhost and lab/sim",
	"lab/agenttest":      "it has no tests, and runs in the tests of agent/online",
	"lab/acmetest":       "starts programs for tests; its goroutines only serve",
	"app":                "its tests read files, and play seeds with one actor at a time; what it wires runs in lab/e2e",
	"cmd/prego-lab":      "what it shares are the programs that dev starts, and their settings; lab/docsrun runs it",
	"cmd/prego-agent":    "it has no tests; the tests of agent/online run its program",
	"lab/sim/judge":      "its test is one client after the other, whose program takes most of the time",
	"lab/world":          "one actor runs at a time, and most of its tests are app's",
	"lab/pgtest":         "it has no tests, and runs in the tests of store",
	"lab/browser":        "its test is of a pure function; its tabs run in the tests of lab/e2e",
	"internal/telemetry": "it has no tests",
	"tools/mutate":       "it is a tool, whose only lock guards its output",
	"tools/frozen":       "it is a tool, whose locks guard what it builds and its output",
}

// TestSharedStateRunsWithTheRaceDetector in each push (Makefile) or in its turn (deep.txt).
func TestSharedStateRunsWithTheRaceDetector(t *testing.T) {
	t.Parallel()
	list := regexp.MustCompile(`(?m)^RACE := ((?:.*\\\n)*.*)$`).FindStringSubmatch(read(t, "../Makefile"))
	require.NotNil(t, list)
	race := strings.Fields(strings.ReplaceAll(list[1], "\\\n", " "))
	for _, line := range regexp.MustCompile(`(?m)^run PACKAGES='?([^']*?)'? tools/test.sh -race`).FindAllStringSubmatch(read(t, "deep.txt"), -1) {
		race = append(race, strings.Fields(line[1])...)
	}
	out, err := run(t, "..", "go", "list", "-f", `{{$d := .ImportPath}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}`, "./...")
	require.NoError(t, err, out)
	found := map[string]bool{}
	for file := range strings.FieldsSeq(out) {
		file = strings.TrimPrefix(file, "github.com/prego/prego/")
		if shares.MatchString(read(t, filepath.Join("..", file))) {
			found[filepath.Dir(file)] = true
		}
	}
	for dir := range found {
		require.NotEqual(t, withoutRace[dir] != "", slices.Contains(race, "./"+dir), "%s: either RACE in the Makefile or a line of deep.txt names it, or withoutRace has the reason", dir)
	}
	for _, dir := range race {
		require.True(t, found[strings.TrimPrefix(dir, "./")], "%s shares nothing that a race could be about", dir)
	}
	for dir := range withoutRace {
		require.True(t, found[dir], "%s shares nothing", dir)
	}
}
