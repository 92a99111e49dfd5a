package docsrun

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// mention is a command in a sentence; notRunHere is one in a fence that is not run.
	mention    = regexp.MustCompile("`(?:bin/)?(prego(?:-lab)?|make|go (?:test|run|build|vet)) ([^`]+)`")
	notRunHere = regexp.MustCompile(`(?:^|\s|/)(prego(?:-lab)?|make|go (?:test|run|build|vet)) ([^#|;&()]+)`)
	fences     = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	word       = regexp.MustCompile(`^[a-z][a-z-]*$`)
	flagName   = regexp.MustCompile(`^--[a-z-]+`)
	target     = regexp.MustCompile(`(?m)^([a-z-]+):`)
)

// unknown returns the first unknown verb, flag, target or folder of a command, "" if there is none. The help of a
// program's verbs is that of the longest known beginning.
func unknown(program, args, makefile string, help func(program string, verbs ...string) string) string {
	fields := strings.Fields(args)
	if program == "make" {
		for _, m := range target.FindAllStringSubmatch(makefile, -1) {
			if m[1] == fields[0] {
				return ""
			}
		}
		return "make " + fields[0]
	}
	if strings.HasPrefix(program, "go ") {
		for _, f := range fields {
			if _, err := os.Stat(filepath.Join("../..", strings.TrimSuffix(f, "/..."))); strings.HasPrefix(f, "./") && err != nil {
				return f
			}
		}
		return ""
	}
	var verbs []string
	for _, f := range fields {
		if !word.MatchString(f) {
			break
		}
		verbs = append(verbs, f)
	}
	text := help(program, verbs...)
	if strings.Contains(text, "Available Commands:") && !strings.Contains(text, program+" "+strings.Join(verbs, " ")+" [") {
		return program + " " + strings.Join(verbs, " ")
	}
	for _, f := range fields {
		if f == "--" { // what follows is the host's
			break
		}
		if name := flagName.FindString(f); name != "" && !regexp.MustCompile(`(?m)^ .*\s`+name+`\b`).MatchString(text) {
			return program + " " + strings.Join(verbs, " ") + " " + name
		}
	}
	return ""
}

// TestMentionedCommandsExist: commands that sentences name, and those in fences that are
// not run, have the verbs, flags and targets of the programs.
func TestMentionedCommandsExist(t *testing.T) {
	t.Parallel()
	bins, err := build()
	require.NoError(t, err)
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	help := func(program string, verbs ...string) string {
		out, err := exec.CommandContext(t.Context(), filepath.Join(bins, program), append(verbs, "--help")...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	seen := map[string]bool{}
	check := func(at, program, args string) {
		if !seen[program+args] {
			seen[program+args] = true
			if what := unknown(program, args, string(makefile), help); what != "" {
				t.Errorf("%s: there is no %s", at, what)
			}
		}
	}
	for _, d := range documents(t, "../..") {
		if d.name == "CHANGELOG.md" || strings.HasPrefix(d.name, "docs/adr/") { // they describe the past
			continue
		}
		b, err := os.ReadFile(filepath.Join("../..", d.name))
		require.NoError(t, err)
		text := fences.ReplaceAllStringFunc(string(b), func(f string) string { return strings.Repeat("\n", strings.Count(f, "\n")) })
		for _, m := range mention.FindAllStringSubmatchIndex(text, -1) {
			check(fmt.Sprintf("%s:%d", d.name, 1+strings.Count(text[:m[0]], "\n")), text[m[2]:m[3]], text[m[4]:m[5]])
		}
		for _, m := range d.marks {
			for _, line := range m.lines {
				for _, c := range notRunHere.FindAllStringSubmatch(line, -1) {
					check(m.at, c[1], c[2])
				}
			}
		}
	}
	require.Greater(t, len(seen), 50)
}

// TestUnknownCommandsAreFound: the check above can fail.
func TestUnknownCommandsAreFound(t *testing.T) {
	t.Parallel()
	help := func(program string, verbs ...string) string {
		switch {
		case program == "prego-lab":
			return "Usage:\n  prego-lab [command]\n\nAvailable Commands:\n  sim\n"
		case len(verbs) > 1 && verbs[1] == "show":
			return "Show servers\n\nUsage:\n  prego server show SERVER… [flags]\n\nFlags:\n  -o, --output string   form\n      --watch   follow it\n"
		case len(verbs) > 0 && verbs[0] == "server":
			return "Usage:\n  prego server [flags]\n  prego server [command]\n\nAvailable Commands:\n  show\n"
		}
		return "Usage:\n  prego [command]\n\nAvailable Commands:\n  server\n"
	}
	for args, want := range map[string]string{
		"server": "", "server show": "", "server show app-7 web --watch -- --else": "", "server show ID --output=json": "",
		"sever": "prego sever", "server shw web": "prego server shw web", "server show --wait": "prego server show --wait", "server show --out": "prego server show --out",
	} {
		require.Equal(t, want, unknown("prego", args, "", help), args)
	}
	require.Equal(t, "prego-lab server list", unknown("prego-lab", "server list", "", help), "it is the other program's")
	require.Empty(t, unknown("go test", "./lab/docsrun -run Mentioned", "", help))
	require.Empty(t, unknown("go test", "-count=1 ./placement/...", "", help))
	require.Equal(t, "./internal/nowhere", unknown("go test", "./internal/nowhere -update", "", help))
	require.Empty(t, unknown("make", "test RUN=x", "all:\ntest: build\n", help))
	require.Equal(t, "make tests", unknown("make", "tests", "all:\ntest: build\n", help))
}
