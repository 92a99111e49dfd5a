package main

import (
	"slices"
	"strings"

	"github.com/prego/prego/internal/config"
)

// secretsOf are the secrets that the processes of prego-lab dev use, as in production. Every other
// child uses none of them.
var secretsOf = map[string][]string{
	"api":     {"DATABASE_URL"},
	"agentgw": {"DATABASE_URL"},
	"worker":  config.Secrets(),
}

// childEnvironment is env without the secrets that a child has no use for. Object storage that
// a process has no key for is not named to it either.
func childEnvironment(name string, env []string) []string {
	uses := secretsOf[name]
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		setting, _, _ := strings.Cut(v, "=")
		secret := strings.TrimSuffix(setting, "_FILE")
		return slices.Contains(config.Secrets(), secret) && !slices.Contains(uses, secret) ||
			setting == "PREGO_BACKUP_ENDPOINT" && !slices.Contains(uses, "PREGO_BACKUP_SECRET_KEY")
	})
}
