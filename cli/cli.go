// Package cli is the program's verbs for callers of the API. A verb is data: a noun's
// file lists its requests and its table's columns, and List, Show, Action and Watch
// make the commands, so that all nouns have the same flags, forms of output and exit
// statuses.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/prego/prego/api"
)

// CLI makes the commands. Its environment can be replaced in tests.
type CLI struct {
	Getenv func(string) string
	Now    func() time.Time
	// Width is the width of a stream's terminal in columns; 0 if it is none.
	Width func(stream any) int
	// Browse opens a URL in a browser.
	Browse func(ctx context.Context, url string) error

	context, api, tokenFile string // the flags of all verbs
}

// New returns a CLI on this process's terminal. getenv reads the environment.
func New(getenv func(string) string) *CLI {
	return &CLI{Getenv: getenv, Now: time.Now, Browse: browse, Width: func(stream any) int {
		f, ok := stream.(*os.File)
		if !ok || !term.IsTerminal(int(f.Fd())) {
			return 0
		}
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width <= 0 {
			return 80
		}
		return width
	}}
}

// secret reads a token, on a terminal without showing it.
func (c *CLI) secret(stdin io.Reader, file string) (string, error) {
	f, ok := stdin.(*os.File)
	if file != "" || !ok || c.Width(stdin) == 0 {
		return readSecret(stdin, file)
	}
	b, err := term.ReadPassword(int(f.Fd()))
	if err != nil {
		return "", err
	}
	return readSecret(strings.NewReader(string(b)), "")
}

// AddTo adds the verbs to a program.
func (c *CLI) AddTo(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&c.context, "context", "", "context to use (see prego context)")
	f.StringVar(&c.api, "api-url", "", "URL of the API")
	f.StringVar(&c.tokenFile, "token-file", "", "file that holds the token")
	root.Long = cmp.Or(root.Long, root.Short+".\n\n"+environment)
	for _, p := range api.Purposes {
		root.AddGroup(&cobra.Group{ID: p.Title, Title: p.Title + ":"})
	}
	root.SetHelpCommandGroupID("Installation")
	root.SetCompletionCommandGroupID("Installation")
	for _, cmd := range []*cobra.Command{
		contextCommand(c), loginCommand(c), logoutCommand(c), statusCommand(c), catalogCommand(c), costCommand(c), eventsCommand(c),
		versionCommand(c), openCommand(c),
	} {
		root.AddCommand(c.top(cmd))
	}
	c.addVerbs(root)
	c.noun(root, []string{"server"}).AddCommand(serverSamples(c))
	c.noun(root, []string{"audit"}).AddCommand(auditVerify(c))
	for noun, watch := range map[string]watcher{
		"server": watchServer(""), "tenant": watchTenant(nil), "group": groupWatch, "image": imageWatch(), "release": watchRelease, "agent release": watchAgentRelease, "rebalance": watchRebalance,
	} {
		c.noun(root, strings.Fields(noun)).AddCommand(watch.command(c))
	}
	root.InitDefaultCompletionCmd()
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			var names []string
			cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
			return usagef("%w%s", err, suggest("--"+unknown.GetSpecifiedName(), names))
		}
		return err
	})
	c.finish(root)
}

// Run runs a verb against an API, given the words of its command line.
func (c *Client) Run(ctx context.Context, out io.Writer, words ...string) error {
	env := map[string]string{"PREGO_API_URL": c.Base, "PREGO_TOKEN": c.Token}
	root := &cobra.Command{Use: "prego", SilenceUsage: true, SilenceErrors: true}
	cli := New(func(name string) string { return env[name] })
	cli.Width = func(any) int { return 0 }
	cli.AddTo(root)
	root.SetOut(out)
	root.SetErr(out)
	root.SetArgs(words)
	return root.ExecuteContext(ctx)
}

// top is a command of the program itself, with what all of them have.
func (c *CLI) top(cmd *cobra.Command) *cobra.Command {
	for _, p := range api.Purposes {
		if slices.Contains(p.Commands, cmd.Name()) {
			cmd.GroupID = p.Title
		}
	}
	return formed(cmd)
}

// formed adds the output flag to a command and its subcommands.
func formed(cmd *cobra.Command) *cobra.Command {
	cmd.PersistentFlags().VarP(&choice{to: new("table"), of: []string{"table", "json", "yaml"}}, "output", "o", "form of output: table, json or yaml")
	return cmd
}

// finish gives all commands the same behaviour: an unknown verb ends with a suggestion, ls is list, and flags with a
// closed set of values complete.
func (c *CLI) finish(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		c.finish(sub)
	}
	if cmd.Name() == "list" {
		cmd.Aliases = append(cmd.Aliases, "ls")
	}
	if cmd.HasSubCommands() {
		check := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args)
			}
			if check == nil {
				return nil
			}
			return check(cmd, args)
		}
		if cmd.Run == nil && cmd.RunE == nil {
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { c.completeFlag(cmd, f) })
	cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) { c.completeFlag(cmd, f) })
}

func oneOrOther(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// choice is a flag's value from a closed set, or several of them.
type choice struct {
	to   *string
	of   []string
	many bool
	set  func(string) // also called with the value
}

func (v *choice) String() string {
	if v.to == nil {
		return ""
	}
	return *v.to
}

func (v *choice) Set(s string) error {
	parts := []string{s}
	if v.many {
		parts = strings.Split(s, ",")
	}
	for _, part := range parts {
		if !slices.Contains(v.of, part) {
			return fmt.Errorf("must be %s%s", oneOrOther(v.of), suggest(part, v.of))
		}
	}
	if *v.to = s; v.set != nil {
		v.set(s)
	}
	return nil
}

func (v *choice) Type() string { return "string" }

// required marks flags as required.
func required(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
}

// Report prints an error as the program's last words, and returns its exit status.
func Report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var exit *Exit
	if !errors.As(err, &exit) || exit.Err != nil {
		fmt.Fprintln(w, "prego:", err)
	}
	return exitCode(err)
}

func words[S ~string](of []S) []string {
	out := make([]string, len(of))
	for i, w := range of {
		out[i] = string(w)
	}
	return out
}
