package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	osexec "os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

// programVersion is the answer of prego version.
type programVersion struct {
	Version    string `json:"version"`
	Commit     string `json:"commit,omitempty"`
	Go         string `json:"go"`
	API        string `json:"api_url"`
	APIVersion string `json:"api_version,omitempty"`
}

func versionCommand(c *CLI) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the versions of the program and of the API", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			base, err := c.API()
			if err != nil {
				return err
			}
			v := programVersion{Version: cmp.Or(cmd.Root().Version, "dev"), API: base}
			if b, ok := debug.ReadBuildInfo(); ok {
				v.Go = b.GoVersion
				for _, s := range b.Settings {
					switch {
					case s.Key == "vcs.revision":
						v.Commit = s.Value
					case s.Key == "vcs.modified" && s.Value == "true":
						v.Commit += ", modified"
					}
				}
			}
			text := base
			ctx, cancel := context.WithTimeout(cmd.Context(), completion)
			defer cancel()
			caller, err := c.caller(ctx)
			if err != nil {
				text += ", version unknown: " + err.Error()
			} else {
				v.APIVersion = caller.ApiVersion
				text += ", version " + v.APIVersion
			}
			p := c.printer(cmd, false)
			if p.forPeople() {
				p.pairs(p.w, [2]string{"prego", v.Version}, [2]string{"commit", v.Commit}, [2]string{"go", v.Go},
					[2]string{"api", text})
				return nil
			}
			raw, err := json.Marshal(v)
			if err != nil {
				return err
			}
			p.keep(raw)
			return p.flush("version")
		},
	}
}

// caller asks the API who the caller is.
func (c *CLI) caller(ctx context.Context) (out api.Caller, err error) {
	client, err := c.Client()
	if err == nil {
		err = client.Do(ctx, http.MethodGet, "/v1/whoami", nil, nil, &out)
	}
	return out, err
}

// callerText shows who the caller is, and to which API.
func callerText(in *call, who api.Caller) (string, error) {
	_, p, err := in.place()
	if err != nil {
		return "", err
	}
	if strings.TrimSuffix(p.API, "/") != in.client.Base {
		p.Name = "" // it is not used
	}
	var granted []string
	for _, g := range who.Grants {
		granted = append(granted, g.AccessRole+" on "+cmp.Or(string(g.OrgId), "the installation"))
	}
	expires := ""
	if at := who.ExpiresAt; at != nil {
		expires = at.Format(time.RFC3339) + ", in " + age(at.Sub(in.Now()))
	}
	var out strings.Builder
	in.pairs(&out, [2]string{"name", who.Name}, [2]string{"principal", who.PrincipalId},
		[2]string{"access", strings.Join(granted, ", ")}, [2]string{"token", who.CredentialName},
		[2]string{"expires", expires}, [2]string{"context", p.Name},
		[2]string{"api", in.client.Base + ", version " + who.ApiVersion})
	return strings.TrimSpace(out.String()), nil
}

var whoami = hook{say: func(in *call) (string, error) {
	var who api.Caller
	if err := decode(in.answer, &who); err != nil {
		return "", err
	}
	return callerText(in, who)
}}

// browse opens a URL in the browser of a desktop.
func browse(ctx context.Context, u string) error {
	return osexec.CommandContext(ctx, "xdg-open", u).Run()
}

func openCommand(c *CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use: "open [NOUN [NAME]]", Short: "Open a page of the console in the browser",
		Long: "Print the URL of the console's page of an object, of a noun's list, or of everything, and open it\n" +
			"in the browser where there is a display. With --login the link also logs you in, once and within five minutes.",
		Example: "  prego open tenant acme-eu\n  prego open server\n  prego open --login",
	}
	cmd.Flags().Bool("login", false, "log in to the console with it")
	c.run(cmd, "", func(in *call) (func() error, error) {
		page, err := in.page(in.rest)
		if err != nil {
			return nil, err
		}
		u := in.client.Base + page
		if in.is("login") {
			var l api.ConsoleLogin
			if err := in.client.Do(in.Context(), http.MethodPost, "/v1/console-logins", nil, nil, &l); err != nil {
				return nil, err
			}
			u = consoleLink(in, l) + "&next=" + url.QueryEscape(page)
		}
		fmt.Fprintln(in.w, u)
		if in.Width(in.OutOrStdout()) == 0 || in.Getenv("DISPLAY")+in.Getenv("WAYLAND_DISPLAY") == "" {
			return nil, nil
		}
		if err := in.Browse(in.Context(), u); err != nil && !errors.Is(err, osexec.ErrNotFound) {
			return nil, fmt.Errorf("xdg-open: %w", err)
		}
		return nil, nil
	})
	cmd.Args = cobra.ArbitraryArgs
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return pages(), cobra.ShellCompDirectiveNoFileComp
		}
		return c.names(cmd, args[0], map[string]string{}), cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// pages are the nouns with pages in the console.
func pages() (nouns []string) {
	for v := range api.EachVerb {
		if words := verbWords(v); v.Page && len(words) > 1 {
			nouns = append(nouns, strings.Join(words[:len(words)-1], " "))
		}
	}
	slices.Sort(nouns)
	return slices.Compact(nouns)
}

// page is the path of the console's page for a noun and names, or for a noun.
func (in *call) page(words []string) (string, error) {
	if len(words) == 0 {
		return "/console", nil
	}
	for v := range api.EachVerb {
		use := verbWords(v)
		noun := use[:len(use)-1]
		if !v.Page || len(noun) == 0 || len(words) < len(noun) || !slices.Equal(words[:len(noun)], noun) {
			continue
		}
		names := usageOf(strings.Join(strings.Fields(v.Use)[len(noun):], " ")).names
		if given := words[len(noun):]; len(given) == len(names) {
			_, err := in.begin(names, given, func(*call) (func() error, error) { return nil, nil })
			for _, a := range v.Args {
				in.args[a.Field] = in.args[strings.ToLower(a.Name)]
			}
			return in.path("/console" + strings.TrimPrefix(v.Path, "/v1")), err
		}
	}
	nouns := pages()
	for n := min(2, len(words)); n > 0; n-- {
		if noun := strings.Join(words[:n], " "); slices.Contains(nouns, noun) {
			return "", usagef("the console has no page of %q; prego open %s NAME opens one of its objects",
				strings.Join(words, " "), noun)
		}
	}
	return "", usagef("the console has no page of %q%s; it has pages of %s", words[0], suggest(words[0], nouns),
		strings.Join(nouns, ", "))
}
