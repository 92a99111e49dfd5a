package cli

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

var imageTable = Table[api.GoldenImage]{
	ID: "image_id", Columns: "image_id, base_image: base, status, current, provider_image_id: snapshot, size_gb, created_at: age, reason", Spare: "snapshot, size, age, base",
	More: "message, architecture, region, builder_type, builder_location, containers, recipe_hash: recipe, agent_sha256: agent, stack_sha256: stack, workflow_id, created_by, created_at",
}

// imageWatch follows an image until it has one of some statuses.
func imageWatch(wanted ...server.ImageStatus) Watch[api.GoldenImage] {
	return Watch[api.GoldenImage]{
		Use: "watch IMAGE", Short: "Follow an image until its operations are done", Path: "/v1/images/{image}", Again: "prego image watch {image}",
		Lines: func(g api.GoldenImage) []line {
			text := string(g.ImageId+"  ") + string(g.Status) + reasons(g.Reason, g.Message)
			return []line{{key: text, text: text}}
		},
		Doing: func(g api.GoldenImage) string { return string(g.Status) },
		Rests: func(g api.GoldenImage) bool { return server.ImageStatus(g.Status).Rests() },
		Outcome: func(in *call, g api.GoldenImage) error {
			if len(wanted) == 0 || slices.Contains(wanted, server.ImageStatus(g.Status)) {
				return nil
			}
			return fmt.Errorf("image %s is %s%s", g.ImageId, g.Status, reasons(g.Reason, g.Message))
		},
	}
}

func imageCommand(c *CLI) *cobra.Command {
	var in server.BuildImageRequest
	accepted := func(_ *call, g api.GoldenImage) string {
		return fmt.Sprintf("accepted: image %s is %s, workflow %s", g.ImageId, g.Status, g.WorkflowId)
	}
	return c.group("image", "Manage golden images, which servers are created from",
		Action[api.GoldenImage]{
			Use: "build", Short: "Build an image, verify it on a server, and make it current", Path: "/v1/images", Table: imageTable, Say: accepted, Watch: imageWatch(server.ImageReady),
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&in.Debian, "debian", "", "Debian release, like 13 (default: that of the configured image)")
				pick(f, &in.Region, "region", "eu", "where it is built; it can be used anywhere", sets["region"])
			},
			Body: func(*call) (any, error) { return in, nil },
		},
		List[api.GoldenImage]{Short: "List images, newest first", Path: "/v1/images", Items: "images", All: true, Filters: "status, region, base: base_image", Values: map[string][]string{"status": words(server.ImageStatuses())}, Sorts: "created_at", Table: imageTable},
		Show[api.GoldenImage]{Use: "show IMAGE…", Short: "Show images", Path: "/v1/images/{image}", Table: imageTable, Watch: imageWatch()},
		imageWatch(),
		Action[api.GoldenImage]{
			Use: "delete IMAGE…", Short: "Delete images that are not current, or cancel their builds", Method: http.MethodDelete, Path: "/v1/images/{image}", Destroys: "deletes image",
			Table: imageTable, Say: accepted, Watch: imageWatch(server.ImageDeleted, server.ImageFailed), // one whose build is cancelled has failed
		},
	)
}
