package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/keyset"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
)

// withConfig runs f with the environment's configuration.
func withConfig(f func(cmd *cobra.Command, cfg config.Config, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cfg, err := config.FromEnvironment()
		if err != nil {
			return err
		}
		return f(cmd, cfg, args)
	}
}

func newKeysCommand() *cobra.Command {
	keys := &cobra.Command{Use: "keys", Short: "Create and rotate the keys and certificate authorities in PREGO_KEYS_DIR"}
	keys.AddCommand(&cobra.Command{
		Use: "init", Short: "Create missing keys and certificate authorities", Args: cobra.NoArgs,
		RunE: withConfig(func(_ *cobra.Command, cfg config.Config, _ []string) error {
			if err := pki.Init(cfg.KeysDir, cfg.Environment); err != nil {
				return err
			}
			return token.InitKeys(cfg.KeysDir)
		}),
	})
	keys.AddCommand(newSignAgentCommand())
	keys.AddCommand(&cobra.Command{
		Use: "seal", Short: "Make another key that seals keys of certificates from now on", Args: cobra.NoArgs,
		RunE: withConfig(func(_ *cobra.Command, cfg config.Config, _ []string) error {
			return token.AddSealing(cfg.KeysDir, token.SealCertificates)
		}),
	})
	rotate := func(use, short string, f func(cfg config.Config, p pki.Purpose) error) *cobra.Command {
		return &cobra.Command{
			Use: use + " PURPOSE", Short: short, Args: cobra.ExactArgs(1),
			RunE: withConfig(func(_ *cobra.Command, cfg config.Config, args []string) error {
				if p := pki.Purpose(args[0]); slices.Contains(pki.Purposes(), p) {
					return f(cfg, p)
				}
				return fmt.Errorf("unknown purpose %q; there are %v", args[0], pki.Purposes())
			}),
		}
	}
	keys.AddCommand(
		newKeysShareCommand(),
		rotate("add", "First step of a rotation: trust a new CA", func(c config.Config, p pki.Purpose) error { return pki.Add(c.KeysDir, c.Environment, p) }),
		rotate("activate", "Second step: let the new CA issue", func(c config.Config, p pki.Purpose) error { return pki.Activate(c.KeysDir, p) }),
		rotate("retire", "Last step: trust only the CA that issues", func(c config.Config, p pki.Purpose) error { return pki.Retire(c.KeysDir, p) }),
	)
	return keys
}

func newKeysShareCommand() *cobra.Command {
	var group int
	cmd := &cobra.Command{
		Use: "share PROCESS DIR", Short: "Write the keys that a process needs to DIR, and remove all others",
		Long: "Make DIR hold the keys that a process needs, out of those in PREGO_KEYS_DIR, and no others.\n\nThe processes are " + strings.Join(keyset.Processes(), ", ") + ".",
		Args: cobra.ExactArgs(2),
		RunE: withConfig(func(_ *cobra.Command, cfg config.Config, args []string) error {
			return keyset.Share(cfg.KeysDir, args[0], args[1], group)
		}),
	}
	cmd.Flags().IntVar(&group, "group", -1, "number of the group that the files are for")
	return cmd
}
