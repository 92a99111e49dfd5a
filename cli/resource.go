package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
)

// recordsText lists the DNS records that a name needs.
func recordsText(_ *call, d api.Domain) string {
	out := fmt.Sprintf("domain %s: %s is %s. Make these DNS records:", d.DomainId, d.Name, d.Status)
	for _, r := range d.Records {
		out += fmt.Sprintf("\n  %-5s  %s  %s  (%s)", r.Type, r.Name, r.Value, r.Purpose)
	}
	return out
}

var createVolume = hook{
	flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
		f.Int64("gb", 10, "the size in GB")
		cmd.MarkFlagsMutuallyExclusive("gb", "size")
	},
	body: func(in *call, body object) (any, error) {
		if in.given("gb") {
			gb, err := in.Flags().GetInt64("gb")
			if err != nil || gb < 0 || gb > 1e9 {
				return nil, usagef("--gb must be 10 to 10000, not %d", gb)
			}
			body["size_bytes"] = gb * 1e9
		}
		return body, nil
	},
}

// createRestore distinguishes snapshots from backups by id.
var createRestore = hook{body: func(in *call, body object) (any, error) {
	if strings.HasPrefix(in.typed, "bak-") {
		body = object{"backup_id": in.typed}
	}
	return body, nil
}}

// isPolicyOwner reports whether a word names whose backup policy is meant, besides names.
func isPolicyOwner(word string) bool {
	return strings.HasPrefix(word, "org:") || strings.HasPrefix(word, "vol-")
}
