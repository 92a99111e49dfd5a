package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestUnitsAreHardenedAlike: what one process may not do, no other may.
func TestUnitsAreHardenedAlike(t *testing.T) {
	t.Parallel()
	var first string
	for _, process := range []string{"api", "agentgw", "worker", "migrate"} {
		unit := read(t, "../../deploy/systemd/prego-"+process+".service")
		_, hardening, ok := strings.Cut(unit, "\n# As docker-compose.yml has it")
		if !ok {
			t.Fatalf("%s is not hardened", process)
		}
		hardening, _, _ = strings.Cut(hardening, "\n[Install]")
		hardening = strings.TrimSpace(hardening)
		if first == "" {
			first = hardening
		}
		if hardening != first {
			t.Errorf("prego-%s is hardened in another way than prego-api:\n%s", process, hardening)
		}
	}
}

// TestUnitsHaveComposesLimits: memory, CPU, the time to stop and the secrets of a process are the same in both.
func TestUnitsHaveComposesLimits(t *testing.T) {
	t.Parallel()
	compose := read(t, "../../docker-compose.yml")
	for _, process := range []string{"api", "agentgw", "worker", "migrate"} {
		service := regexp.MustCompile(`(?ms)^  ` + process + `:\n(.*?)(?:^  [a-z]|^[a-z])`).FindStringSubmatch(compose)[1]
		unit := read(t, "../../deploy/systemd/prego-"+process+".service")
		both := func(what, ofService, ofUnit string, convert func(string) string) {
			s := regexp.MustCompile(ofService).FindStringSubmatch(service)
			u := regexp.MustCompile(ofUnit).FindStringSubmatch(unit)
			if s == nil && u == nil {
				return
			}
			if s == nil || u == nil || convert(s[1]) != u[1] {
				t.Errorf("%s of %s: %v in docker-compose.yml, %v in its unit", what, process, s, u)
			}
		}
		both("memory", `memory: (\w+)`, `MemoryMax=(\w+)`, strings.ToUpper)
		both("CPU", `cpus: "([\d.]+)"`, `CPUQuota=(\d+)%`, func(s string) string {
			return map[string]string{"0.5": "50", "1": "100"}[s]
		})
		both("Go's memory", `GOMEMLIMIT: (\w+)`, `GOMEMLIMIT=(\w+)`, func(s string) string { return s })
		both("time to stop", `stop_grace_period: (\w+)`, `TimeoutStopSec=(\w+)`, func(s string) string { return s })
		secrets := map[string]bool{}
		for _, m := range regexp.MustCompile(`(?m)^LoadCredential=(\w+):`).FindAllStringSubmatch(unit, -1) {
			secrets[m[1]] = true
		}
		named := regexp.MustCompile(`secrets: \[(.*)\]`).FindStringSubmatch(service)[1]
		for name := range strings.SplitSeq(named, ", ") {
			if !secrets[name] {
				t.Errorf("prego-%s does not get %s", process, name)
			}
			delete(secrets, name)
		}
		if len(secrets) > 0 {
			t.Errorf("prego-%s gets %v beyond docker-compose.yml", process, secrets)
		}
	}
}
