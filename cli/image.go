package cli

import (
	"fmt"
	"slices"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// imageWatch follows an image until it reaches one of the given statuses.
func imageWatch(wanted ...server.ImageStatus) Watch[api.GoldenImage] {
	return Watch[api.GoldenImage]{
		Use: "watch IMAGE", Short: "Follow an image until its operations are done", Path: "/v1/images/{image}", Again: "prego image watch {image}",
		Lines: func(g api.GoldenImage) []line {
			text := string(g.ImageId+"  ") + string(g.Status) + why(g.Reason, g.Message)
			return []line{{key: text, text: text}}
		},
		Doing: func(g api.GoldenImage) string { return string(g.Status) },
		Rests: func(g api.GoldenImage) bool { return server.ImageStatus(g.Status).Rests() },
		Outcome: func(in *call, g api.GoldenImage) error {
			if len(wanted) == 0 || slices.Contains(wanted, server.ImageStatus(g.Status)) {
				return nil
			}
			return fmt.Errorf("image %s is %s%s", g.ImageId, g.Status, why(g.Reason, g.Message))
		},
	}
}
