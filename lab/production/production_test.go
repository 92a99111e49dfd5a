package production

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/need"
)

// TestTheStackOfDockerCompose starts what docker-compose.yml declares and works with it.
func TestTheStackOfDockerCompose(t *testing.T) {
	s := newStack(t)
	if s.real == "" {
		t.Log("TEMPORAL_SERVER is not set: Temporal's dev server stands in for its server, and temporal-schema is not tried (make test-production builds the real one)")
	}
	s.up()
	t.Run("each process is confined as declared", s.confined)
	t.Run("no process has a secret that it does not need", s.minimal)
	t.Run("two of each, each killed in turn under load", s.killedUnderLoad)
	t.Run("all stop in time", s.stopInTime)
	t.Run("no secret is in a log", s.silent)
}

// confined reads from the kernel what each process of ours may do.
func (s *stack) confined(t *testing.T) {
	seen := 0
	for name, x := range s.boxes {
		service := name[:strings.LastIndex(name, "-")]
		if !x.running() {
			continue
		}
		seen++
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", x.pid()))
		require.NoError(t, err)
		field := func(key string) string {
			for l := range strings.SplitSeq(string(status), "\n") {
				if rest, ok := strings.CutPrefix(l, key+":"); ok {
					return strings.Join(strings.Fields(rest), " ")
				}
			}
			return ""
		}
		uid, gid, _ := strings.Cut(s.file.Services[service].User, ":")
		require.Equal(t, strings.TrimSpace(strings.Repeat(uid+" ", 4)), field("Uid"), name)
		require.Equal(t, strings.TrimSpace(strings.Repeat(gid+" ", 4)), field("Gid"), name)
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			require.Equal(t, "0000000000000000", field(set), "%s %s", name, set)
		}
		require.Equal(t, "1", field("NoNewPrivs"), name)
		require.True(t, strings.HasSuffix(field("NSpid"), " 1"), "%s is not the first of its processes: %s", name, field("NSpid"))

		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", x.pid()))
		require.NoError(t, err)
		writable := []string{}
		for l := range strings.SplitSeq(strings.TrimSpace(string(mounts)), "\n") {
			f := strings.Fields(l)
			if f[2] != "proc" && strings.HasPrefix(f[3], "rw") && !strings.HasPrefix(f[1], "/dev/") {
				writable = append(writable, f[1])
			}
		}
		want := []string{}
		for _, m := range x.Tmpfs {
			path, _, _ := strings.Cut(m, ":")
			want = append(want, path)
		}
		for _, m := range x.Binds {
			if !m.ReadOnly {
				want = append(want, m.Target)
			}
		}
		require.ElementsMatch(t, want, writable, "%s can write", name)
		if strings.HasPrefix(s.file.Services[service].Image, "prego:") {
			require.Empty(t, writable, name)
		}
	}
	require.GreaterOrEqual(t, seen, 8)
}

// mayHave are the files with secrets of each of our processes, by the variables that name them. All others are in none:
// only the worker has the master keys and the provider's token.
var mayHave = map[string]map[string]string{
	"migrate": {"DATABASE_URL_FILE": "/run/secrets/database_url"},
	"api":     {"DATABASE_URL_FILE": "/run/secrets/database_url", "PREGO_KEYS_DIR": "/keys"},
	"agentgw": {"DATABASE_URL_FILE": "/run/secrets/database_url", "PREGO_KEYS_DIR": "/keys"},
	"worker": {
		"DATABASE_URL_FILE": "/run/secrets/database_url", "PREGO_KEYS_DIR": "/keys", "HCLOUD_TOKEN_FILE": "/run/secrets/hcloud_token",
		"PREGO_MASTER_KEY_FILE": "/run/secrets/master_key", "PREGO_MASTER_KEY_EARLIER_FILE": "/run/secrets/master_key_earlier",
		"PLACEMENT_ADVISER_TOKEN_FILE": "/run/secrets/adviser_token",
	},
}

// minimal starts each of our processes without one mount: it must not come up. And it has no others, and no secret in
// its environment.
func (s *stack) minimal(t *testing.T) {
	for name, service := range s.file.Services {
		if !strings.HasPrefix(service.Image, "prego:") {
			continue
		}
		require.Contains(t, mayHave, name)
		got, mounts := map[string]string{}, []string{}
		for variable, value := range service.Environment {
			require.NotContains(t, config.Secrets(), variable, "%s has a secret in its environment", name)
			if _, isSecret := mayHave["worker"][variable]; isSecret || strings.HasSuffix(variable, "_FILE") {
				got[variable] = *value
			}
		}
		require.Equal(t, mayHave[name], got, name)
		for _, secret := range service.Secrets {
			mounts = append(mounts, "/run/secrets/"+string(secret))
		}
		for _, m := range service.Volumes {
			mounts = append(mounts, m.Target)
			require.Equal(t, "keys-"+name, filepath.Base(m.Source))
		}
		require.ElementsMatch(t, slices.Collect(maps.Values(mayHave[name])), mounts, name)
	}
	tried := 0
	for _, service := range []string{"migrate", "api", "agentgw", "worker"} {
		s.connect(service, 9)
		whole := s.boxed(service, 9)
		for i, left := range whole.Binds {
			b := whole
			b.Name = fmt.Sprintf("%s-without-%d", service, i)
			b.Scratch = filepath.Join(s.dir, "containers", b.Name)
			b.Binds = append(append([]bind{}, whole.Binds[:i]...), whole.Binds[i+1:]...)
			x, err := startBox(b, s.logFile(b.Name))
			require.NoError(t, err)
			select {
			case <-x.done:
			case <-time.After(15 * time.Second):
				x.kill()
				t.Fatalf("%s runs without %s%s", service, left.Target, tail(x.log))
			}
			require.ErrorContains(t, x.err, "exit status 1", "%s without %s%s", service, left.Target, tail(x.log))
			said, err := os.ReadFile(x.log)
			require.NoError(t, err)
			require.Contains(t, string(said), left.Target, "%s names the missing mount", service)
			tried++
		}
	}
	require.Equal(t, 1+2+2+6, tried)
}

// stopInTime asks every process to stop, the dependent ones first.
func (s *stack) stopInTime(t *testing.T) {
	for _, service := range []string{"worker", "agentgw", "api", "temporal", "postgres"} {
		for n := range replicas(service) {
			x := s.box(fmt.Sprintf("%s-%d", service, n))
			began := time.Now()
			sig := syscall.SIGTERM
			if service == "postgres" {
				sig = syscall.SIGINT // the stop signal of its image
			}
			require.NoError(t, x.signal(sig, time.Duration(s.file.Services[service].StopGrace)))
			if service != "temporal" || s.real != "" {
				require.NoError(t, x.err, "%s%s", x.Name, tail(x.log))
			}
			t.Logf("%s stopped after %s", x.Name, time.Since(began).Round(time.Millisecond))
		}
	}
}

// silent looks for every secret in every log.
func (s *stack) silent(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(s.dir, "*.log"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 10)
	secrets := map[string]string{"a private key": "PRIVATE KEY"}
	for name, secret := range s.file.Secrets {
		b, err := os.ReadFile(secret.File)
		require.NoError(t, err)
		secrets[name] = strings.TrimSpace(string(b))
		require.NotEmpty(t, secrets[name], "%s is in every log", name)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for name, secret := range secrets {
			require.NotContains(t, string(b), secret, "%s is in %s", name, filepath.Base(f))
		}
		require.NotContains(t, string(b), "panic:", filepath.Base(f))
		require.NotContains(t, string(b), "goroutine ", filepath.Base(f))
	}
}

func answers(url string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := need.HTTP.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
