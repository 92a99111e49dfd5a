package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

func newImageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Build, list, show and delete golden images, which servers are made from"}
	output := cmd.PersistentFlags().StringP("output", "o", "table", "table or json")
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error {
		if *output != "table" && *output != "json" {
			return fmt.Errorf("--output must be table or json, not %q", *output)
		}
		return nil
	}
	cmd.AddCommand(imageBuild(output), imageList(output), imageShow(output), imageDelete(output))
	return cmd
}

func imageBuild(output *string) *cobra.Command {
	var in server.BuildImageRequest
	var watch bool
	cmd := &cobra.Command{
		Use: "build", Short: "Build an image, boot a server from it, and make servers from it from then on", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var g api.GoldenImage
			if err := c.do(cmd.Context(), http.MethodPost, "/v1/images", nil, in, &g); err != nil {
				return err
			}
			return imageOutcome(cmd, c, g, *output, watch, server.ImageReady)
		},
	}
	cmd.Flags().StringVar(&in.Debian, "debian", "", "Debian release, like 13; empty takes that of the configured image")
	cmd.Flags().StringVar((*string)(&in.Region), "region", "eu", "where it is built; it can be used anywhere")
	cmd.Flags().BoolVar(&watch, "watch", false, "show the progress until the image is ready or failed")
	return cmd
}

// imageOutcome shows what was accepted, or with watch what became of it.
func imageOutcome(cmd *cobra.Command, c *apiClient, g api.GoldenImage, output string, watch bool, wanted server.ImageStatus) error {
	w := cmd.OutOrStdout()
	if watch {
		var err error
		if g, err = c.watchImage(cmd.Context(), cmd, g.ImageId); err != nil {
			return err
		}
	}
	if output == "json" {
		if err := printJSON(w, g); err != nil {
			return err
		}
	} else if !watch {
		fmt.Fprintf(w, "accepted: image %s is %s, workflow %s\n", g.ImageId, g.Status, g.WorkflowId)
	}
	if watch && server.ImageStatus(g.Status) != wanted {
		return &exitError{code: exitOutcome, err: fmt.Errorf("image %s is %s%s", g.ImageId, g.Status, imageReason(g))}
	}
	return nil
}

func imageReason(g api.GoldenImage) string {
	out := ""
	if g.Reason != nil {
		out = ": " + *g.Reason
	}
	if g.Message != nil {
		out += ", " + *g.Message
	}
	return out
}

// watchImage prints what happens to an image until nothing works on it any more.
func (c *apiClient) watchImage(ctx context.Context, cmd *cobra.Command, id string) (api.GoldenImage, error) {
	last := ""
	for {
		var g api.GoldenImage
		if err := c.do(ctx, http.MethodGet, "/v1/images/"+url.PathEscape(id), nil, nil, &g); err != nil {
			return g, err
		}
		if line := string(g.Status) + "  " + strings.TrimPrefix(imageReason(g), ", "); line != last {
			last = line
			fmt.Fprintf(cmd.ErrOrStderr(), "%8.1fs  %s  %s\n", time.Since(g.CreatedAt).Seconds(), g.ImageId, line)
		}
		if server.ImageStatus(g.Status).Rests() {
			return g, nil
		}
		select {
		case <-ctx.Done():
			return g, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func imageList(output *string) *cobra.Command {
	var deleted bool
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List images, newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			q := map[string]string{}
			if deleted {
				q["deleted"] = "true"
			}
			all, err := walk(cmd.Context(), c, "/v1/images", filters(q), limit, func(p api.GoldenImagePage) ([]api.GoldenImage, *string) { return p.Images, p.NextCursor })
			if err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintln(w, "IMAGE\tBASE\tSTATUS\tCURRENT\tSNAPSHOT\tSIZE\tAGE\tREASON")
			for _, g := range all {
				current, size := "", ""
				if g.Current {
					current = "current"
				}
				if g.SizeGb != nil {
					size = fmt.Sprintf("%.1f GB", *g.SizeGb)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.ImageId, g.BaseImage, g.Status, current, deref(g.ProviderImageId), size, time.Since(g.CreatedAt).Round(time.Second), deref(g.Reason))
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&deleted, "deleted", false, "with those that are deleted")
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many")
	return cmd
}

func imageShow(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "show IMAGE_ID", Short: "Show an image", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var g api.GoldenImage
			if err := c.do(cmd.Context(), http.MethodGet, "/v1/images/"+url.PathEscape(args[0]), nil, nil, &g); err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), g)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			current := "no"
			if g.Current {
				current = "yes"
			}
			for _, row := range [][2]string{
				{"image", g.ImageId},
				{"status", string(g.Status) + imageReason(g)},
				{"current", current},
				{"base image", g.BaseImage + " " + g.Architecture},
				{"snapshot", deref(g.ProviderImageId)},
				{"builder", deref(g.BuilderType) + " in " + deref(g.BuilderLocation)},
				{"containers", listOf(g.Containers)},
				{"recipe", deref(g.RecipeHash)},
				{"agent", deref(g.AgentSha256)},
				{"stack", deref(g.StackSha256)},
				{"workflow", g.WorkflowId},
				{"created", g.CreatedAt.Format(time.RFC3339) + " by " + g.CreatedBy},
			} {
				fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
			}
			return w.Flush()
		},
	}
}

func imageDelete(output *string) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use: "delete IMAGE_ID", Short: "Delete an image that is not current, or cancel its build", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var g api.GoldenImage
			if err := c.do(cmd.Context(), http.MethodDelete, "/v1/images/"+url.PathEscape(args[0]), nil, nil, &g); err != nil {
				return err
			}
			wanted := server.ImageDeleted
			if s := server.ImageStatus(g.Status); s == server.ImageBuilding || s == server.ImageVerifying {
				wanted = server.ImageFailed // the build is cancelled
			}
			return imageOutcome(cmd, c, g, *output, watch, wanted)
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "wait until it is gone")
	return cmd
}
