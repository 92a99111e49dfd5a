package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

func containersPath(server string) string {
	return "/v1/servers/" + url.PathEscape(server) + "/containers"
}

func newContainerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "container", Short: "List, read and repair the containers on a server's host"}
	cmd.AddCommand(containerList(), containerLogs(), containerRepair())
	return cmd
}

func containerList() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list SERVER_ID", Short: "List a server's containers", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output must be table or json, not %q", output)
			}
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var list api.ContainerList
			if err := c.do(cmd.Context(), http.MethodGet, containersPath(args[0]), nil, nil, &list); err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), list.Containers)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintln(w, "CONTAINER\tSTATE\tHEALTH\tRESTARTS\tSINCE\tIMAGE")
			for _, v := range list.Containers {
				since := ""
				if v.StartedAt != nil {
					since = time.Since(*v.StartedAt).Round(time.Second).String()
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", v.Name, v.State, deref(v.Health), v.Restarts, since, v.Image)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

func containerLogs() *cobra.Command {
	var tail int
	var follow bool
	var tenant string
	cmd := &cobra.Command{
		Use: "logs SERVER_ID CONTAINER", Short: "Show what a container writes, without secrets", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			q := url.Values{"tail": {strconv.Itoa(tail)}, "follow": {strconv.FormatBool(follow)}}
			if tenant != "" {
				q.Set("tenant_id", tenant)
			}
			return c.stream(cmd.Context(), http.MethodGet, containersPath(args[0])+"/"+url.PathEscape(args[1])+"/logs", q, nil, func(body io.Reader) error {
				_, err := io.Copy(cmd.OutOrStdout(), body)
				return err
			})
		},
	}
	cmd.Flags().IntVar(&tail, "tail", 100, "lines from the end")
	cmd.Flags().StringVar(&tenant, "tenant", "", "count it as a log stream of this tenant's org")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on as the container writes, for 15 minutes at most")
	return cmd
}

func containerRepair() *cobra.Command {
	return &cobra.Command{
		Use: "repair SERVER_ID", Short: "Make a server's containers what they are declared to be", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			c.http = &http.Client{Timeout: 16 * time.Minute}
			var out api.ContainerRepair
			if err := c.do(cmd.Context(), http.MethodPost, containersPath(args[0])+"/repair", nil, nil, &out); err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if len(out.Repaired) == 0 {
				fmt.Fprintln(w, "all is as declared")
			}
			for _, d := range out.Repaired {
				fmt.Fprintf(w, "repaired %s: %s %s\n", d.Container, d.Kind, deref(d.Detail))
			}
			return nil
		},
	}
}
