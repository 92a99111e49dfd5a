package main

import (
	"regexp"
	"strings"
)

const (
	saysPulumi = "no Pulumi"
	saysAnsib  = "no Ansible"
	saysSSH    = "no SSH"
	saysShell  = "commands are vectors, never text for a shell"
	saysPath   = "every endpoint of the agent is an exec endpoint, whose requests name a kind"
	saysKind   = "a new kind of the agent's commands needs a decision (ADR 77)"
)

// names are words that stand for a forbidden program wherever a text has them: as a command with arguments, as a
// dependency, as an element of a list of arguments.
var names = []struct {
	says    string
	pattern *regexp.Regexp
}{
	{saysPulumi, regexp.MustCompile(`prego-pulumi|(?:github\.com|registry\.npmjs\.org|@)/?pulumi\b|\bpulumi[ \t]+[-a-z]|\bpulumi-[a-z]`)},
	{saysAnsib, regexp.MustCompile(`prego-ansible|\bansible-[a-z]|\bansible[ \t]+[-a-z]`)},
	{saysSSH, regexp.MustCompile(`golang\.org/x/crypto/ssh|(?m:(?:^|[\s;&|(` + "`" + `"'/@])(?:ssh|scp|sftp|sshpass)(?:[ \t]+[-\w$"'{@]|["'][ \t]*[,\])]))`)},
}

var agentPath = regexp.MustCompile(`/agent/v1[\w/:.{}$%*+-]*`)

func allowedPath(path string) bool {
	return path == "/agent/v1/exec" || path == "/agent/v1/exec/stream"
}

type finding struct {
	line int
	says string
}

// inText finds forbidden names and endpoints in a file that is not Go.
func inText(text string) (out []finding) {
	for i, line := range strings.Split(text, "\n") {
		for _, n := range names {
			if n.pattern.MatchString(line) {
				out = append(out, finding{i + 1, n.says})
			}
		}
		for _, path := range agentPath.FindAllString(line, -1) {
			if !allowedPath(strings.TrimRight(path, ".:")) {
				out = append(out, finding{i + 1, saysPath})
			}
		}
	}
	return out
}
