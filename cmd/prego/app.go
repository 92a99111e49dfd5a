package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

func newAppCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "app", Short: "Apps of orgs"}
	output := outputFlag(cmd)
	cmd.AddCommand(
		appCreate(output), appList(output),
		showOne(output, "show APP_ID", "Show an app", "/v1/apps/", appTable),
		deleteOne("delete APP_ID", "Delete an app that has no envs", "/v1/apps/"),
	)
	return cmd
}

func newEnvCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "env", Short: "Envs of apps, each in a region"}
	output := outputFlag(cmd)
	cmd.AddCommand(
		envCreate(output), envList(output),
		showOne(output, "show ENV_ID", "Show an env", "/v1/envs/", envTable),
		deleteOne("delete ENV_ID", "Delete an env that nothing is in", "/v1/envs/"),
	)
	return cmd
}

func appTable(w io.Writer, apps []api.App) {
	fmt.Fprintln(w, "APP\tORG\tNAME\tMADE BY\tAT")
	for _, a := range apps {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", a.AppId, a.OrgId, a.Name, a.CreatedBy, a.CreatedAt.Format(time.RFC3339))
	}
}

func envTable(w io.Writer, envs []api.Env) {
	fmt.Fprintln(w, "ENV\tAPP\tORG\tNAME\tREGION\tMADE BY\tAT")
	for _, e := range envs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.EnvId, e.AppId, e.OrgId, e.Name, e.Region, e.CreatedBy, e.CreatedAt.Format(time.RFC3339))
	}
}

// printed writes things as a table, or what is asked for.
func printed[T any](cmd *cobra.Command, output string, v any, table func(io.Writer, []T), rows []T) error {
	if output == "json" {
		return printJSON(cmd.OutOrStdout(), v)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
	table(w, rows)
	return w.Flush()
}

// oneOf asks the API for one thing and prints it.
func oneOf[T any](cmd *cobra.Command, output, method, path string, header http.Header, in any, table func(io.Writer, []T)) error {
	c, err := newAPIClient()
	if err != nil {
		return err
	}
	var v T
	if err := c.send(cmd.Context(), method, path, nil, header, in, &v); err != nil {
		return err
	}
	return printed(cmd, output, v, table, []T{v})
}

func showOne[T any](output *string, use, short, path string, table func(io.Writer, []T)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return oneOf(cmd, *output, http.MethodGet, path+url.PathEscape(args[0]), nil, nil, table)
		},
	}
}

func deleteOne(use, short, path string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, path+url.PathEscape(args[0]), nil, nil, nil); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted\n", args[0])
			return nil
		},
	}
}

// keyFlag lets a request be repeated; what it answers is the header.
func keyFlag(cmd *cobra.Command) func() http.Header {
	key := cmd.Flags().String("idempotency-key", "", "with the same key the same request makes nothing twice")
	return func() http.Header {
		h := http.Header{}
		if *key != "" {
			h.Set("Idempotency-Key", *key)
		}
		return h
	}
}

func appCreate(output *string) *cobra.Command {
	var org string
	cmd := &cobra.Command{Use: "create NAME --org ORG_ID", Short: "Make an app of an org", Args: cobra.ExactArgs(1)}
	header := keyFlag(cmd)
	cmd.Flags().StringVar(&org, "org", "", "whose app it is")
	_ = cmd.MarkFlagRequired("org") // it is defined above
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return oneOf(cmd, *output, http.MethodPost, "/v1/apps", header(), api.CreateApp{OrgId: org, Name: args[0]}, appTable)
	}
	return cmd
}

func appList(output *string) *cobra.Command {
	var org string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List apps, newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			all, err := walk(cmd.Context(), c, "/v1/apps", filters(map[string]string{"org_id": org}), limit,
				func(p api.AppPage) ([]api.App, *string) { return p.Apps, p.NextCursor })
			if err != nil {
				return err
			}
			return printed(cmd, *output, all, appTable, all)
		},
	}
	cmd.Flags().StringVar(&org, "org", "", "only of this org")
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many")
	return cmd
}

func envCreate(output *string) *cobra.Command {
	var app, region string
	cmd := &cobra.Command{Use: "create NAME --app APP_ID --region REGION", Short: "Make an env of an app", Args: cobra.ExactArgs(1)}
	header := keyFlag(cmd)
	cmd.Flags().StringVar(&app, "app", "", "whose env it is")
	cmd.Flags().StringVar(&region, "region", "", "sg, eu or us")
	_ = cmd.MarkFlagRequired("app") // it is defined above, as is the next
	_ = cmd.MarkFlagRequired("region")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in := api.CreateEnv{Name: args[0], Region: api.Region(region)}
		return oneOf(cmd, *output, http.MethodPost, "/v1/apps/"+url.PathEscape(app)+"/envs", header(), in, envTable)
	}
	return cmd
}

func envList(output *string) *cobra.Command {
	var app string
	var limit int
	cmd := &cobra.Command{
		Use: "list --app APP_ID", Short: "List an app's envs, newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			all, err := walk(cmd.Context(), c, "/v1/apps/"+url.PathEscape(app)+"/envs", url.Values{}, limit,
				func(p api.EnvPage) ([]api.Env, *string) { return p.Envs, p.NextCursor })
			if err != nil {
				return err
			}
			return printed(cmd, *output, all, envTable, all)
		},
	}
	cmd.Flags().StringVar(&app, "app", "", "whose envs")
	_ = cmd.MarkFlagRequired("app") // it is defined above
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many")
	return cmd
}
