package cli

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prego/prego/api"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// defaultAPI is where prego-lab dev serves the API.
const defaultAPI = "http://127.0.0.1:8080"

// environment documents the variables, for help.
const environment = `Environment, each weaker than the flag and stronger than the context:
  PREGO_API_URL      the API (default ` + defaultAPI + `)
  PREGO_TOKEN        the token; PREGO_TOKEN_FILE names a file that holds it
  PREGO_CONTEXT      the context to use instead of the current one
  XDG_CONFIG_HOME    contexts are in prego/config.yaml below it (default ~/.config)
  NO_COLOR           when set, nothing is coloured; neither with TERM=dumb

Exit status: 0 done; 1 wrong usage, no answer from the API, or interrupted; 2 refused
by the API; 3 the watched operation did not succeed. exec ends with the status of the
command that it ran.`

// place is a context: an API and a token.
type place struct {
	Name      string `yaml:"-" json:"name"`
	API       string `yaml:"api_url" json:"api_url"`
	Token     string `yaml:"token,omitempty" json:"-"`
	TokenFile string `yaml:"token_file,omitempty" json:"token_file,omitempty"`
}

// settings are the contents of the file with the contexts.
type settings struct {
	Current  string           `yaml:"current"`
	Contexts map[string]place `yaml:"contexts"`
	file     string
}

// load reads the file. A missing one is empty.
func (c *CLI) load() (*settings, error) {
	dir := c.Getenv("XDG_CONFIG_HOME")
	if home := c.Getenv("HOME"); dir == "" && home != "" {
		dir = filepath.Join(home, ".config")
	}
	s := &settings{Contexts: map[string]place{}}
	if dir == "" {
		return s, nil
	}
	s.file = filepath.Join(dir, "prego", "config.yaml")
	b, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = yaml.Unmarshal(b, s)
	}
	if err != nil {
		return nil, usagef("%s: %w", s.file, err)
	}
	return s, nil
}

// save replaces the file atomically. Only its owner can read it: it holds tokens.
func (s *settings) save() error {
	if s.file == "" {
		return usagef("contexts need a configuration directory: set HOME or XDG_CONFIG_HOME")
	}
	b, err := yaml.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(s.file), "config-*") // it has mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), s.file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// known rejects an unknown context.
func (s *settings) known(name string) error {
	if _, ok := s.Contexts[name]; ok {
		return nil
	}
	return usagef("there is no context %q%s", name, suggest(name, s.names()))
}

func (s *settings) names() []string { return slices.Sorted(maps.Keys(s.Contexts)) }

// chosen is the context selected by flags, environment or file; empty for none.
func (c *CLI) chosen(s *settings) (place, error) {
	name, err := cmp.Or(c.context, c.Getenv("PREGO_CONTEXT")), error(nil)
	if name != "" {
		err = s.known(name)
	}
	name = cmp.Or(name, s.Current)
	p := s.Contexts[name]
	p.Name = name
	return p, err
}

// API returns the API's URL as configured by flags, environment or context, in this order.
func (c *CLI) API() (string, error) {
	base, _, err := c.place()
	return base, err
}

func (c *CLI) place() (base string, p place, err error) {
	s, err := c.load()
	if err == nil {
		p, err = c.chosen(s)
	}
	base = cmp.Or(c.api, c.Getenv("PREGO_API_URL"), p.API, defaultAPI)
	return base, p, cmp.Or(err, checkURL(base))
}

// checkURL refuses what cannot be the URL of an API.
func checkURL(base string) error {
	u, err := url.Parse(base)
	switch {
	case err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		return nil
	case strings.Contains(base, "://"):
		return usagef("%q is not the URL of an API: it must begin with http:// or https:// and a host", base)
	}
	scheme, host := "https", base
	if h, _, err := net.SplitHostPort(base); err == nil {
		host = h
	}
	if ip := net.ParseIP(host); host == "localhost" || ip.IsLoopback() {
		scheme = "http"
	}
	return usagef("%q is not the URL of an API: write %s://%s", base, scheme, base)
}

// Client returns a client as configured by flags, environment or context, in this
// order.
func (c *CLI) Client() (*Client, error) {
	base, p, err := c.place()
	if err != nil {
		return nil, err
	}
	token, file := "", c.tokenFile
	if file == "" {
		if token, file = c.Getenv("PREGO_TOKEN"), c.Getenv("PREGO_TOKEN_FILE"); token != "" {
			file = ""
		}
	}
	if token == "" && file == "" && base == p.API { // a context's token is only sent to its API
		token, file = p.Token, p.TokenFile
	}
	if file != "" {
		if token, err = readSecret(nil, file); err != nil {
			return nil, err
		}
	}
	if token == "" {
		return nil, usagef("no token for %s: run prego login, or set PREGO_TOKEN or PREGO_TOKEN_FILE; prego token create creates one", base)
	}
	return NewClient(base, token), nil
}

// maxSecret limits the length of a secret, in bytes.
const maxSecret = 8 << 10

// readSecret reads the first line of a file, or of standard input. Secrets are never
// flags: those appear in the list of processes and in shell histories.
func readSecret(stdin io.Reader, file string) (string, error) {
	from, name := stdin, "standard input"
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return "", usagef("%w", err)
		}
		defer func() { _ = f.Close() }()
		from, name = f, file
	}
	line, err := bufio.NewReader(io.LimitReader(from, maxSecret)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", usagef("%s: %w", name, err)
	}
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return "", usagef("%s holds no password or token in its first line", name)
	}
	return line, nil
}

func contextCommand(c *CLI) *cobra.Command {
	cmd := &cobra.Command{Use: "context", Short: "Manage the APIs that commands call"}
	change := func(use, short, example string, run func(s *settings, name string) (string, error)) *cobra.Command {
		return &cobra.Command{
			Use: use + " NAME", Short: short, Example: "  prego context " + example, Args: exactly("NAME"),
			ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
				s, err := c.load()
				if err != nil {
					return nil, cobra.ShellCompDirectiveError
				}
				return s.names(), cobra.ShellCompDirectiveNoFileComp
			},
			RunE: func(cmd *cobra.Command, args []string) error {
				s, err := c.load()
				if err != nil {
					return err
				}
				said, err := run(s, args[0])
				if err == nil {
					err = s.save()
				}
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), said)
				}
				return err
			},
		}
	}
	cmd.AddCommand(
		change("add", "Add a context, with --api-url and --token-file, or change it", "add prod --api-url https://prego.example.com --token-file ~/prod.token", func(s *settings, name string) (string, error) {
			p := place{API: cmp.Or(c.api, c.Getenv("PREGO_API_URL"), defaultAPI), TokenFile: c.tokenFile}
			if err := checkURL(p.API); err != nil {
				return "", err
			}
			if old := s.Contexts[name]; p.TokenFile == "" && old.API == p.API {
				p.Token, p.TokenFile = old.Token, old.TokenFile
			}
			s.Contexts[name] = p
			s.Current = cmp.Or(s.Current, name)
			return fmt.Sprintf("context %s calls %s", name, p.API), nil
		}),
		change("use", "Make a context the current one", "use prod", func(s *settings, name string) (string, error) {
			s.Current = name
			return "now using context " + name, s.known(name)
		}),
		change("delete", "Delete a context and its token", "delete staging", func(s *settings, name string) (string, error) {
			err := s.known(name)
			delete(s.Contexts, name)
			if s.Current == name {
				s.Current = ""
			}
			return "deleted context " + name, err
		}),
		contextList(c),
	)
	child(cmd, "delete").Annotations = map[string]string{Harms: "true"}
	return cmd
}

func contextList(c *CLI) *cobra.Command {
	table := &api.Table{ID: "name", List: api.Columns("name, current, api_url: api, token")}
	cmd := &cobra.Command{Use: "list", Short: "List the contexts", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		s, err := c.load()
		if err != nil {
			return err
		}
		p := c.printer(cmd, true)
		var all []map[string]any
		for _, name := range s.names() {
			one := s.Contexts[name]
			one.Name = name
			token := cmp.Or(one.TokenFile, map[bool]string{true: "stored"}[one.Token != ""])
			all = append(all, map[string]any{"name": name, "current": name == s.Current, "api_url": one.API, "token": token})
			raw, err := json.Marshal(one)
			if err != nil {
				return err
			}
			p.keep(raw)
		}
		if p.forPeople() {
			return partsIn(p, table, all)
		}
		return p.flush(table.ID)
	}}
	columnFlags(cmd.Flags(), table.List)
	return cmd
}
