package cli

import (
	"slices"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// imageWatch follows an image until it reaches one of the given statuses.
func imageWatch(wanted ...server.ImageStatus) Watch[api.GoldenImage] {
	return Watch[api.GoldenImage]{
		Use: "watch IMAGE", Short: "Follow an image until its operations are done", Path: "/v1/images/{image}", Again: "prego image watch {image}",
		Line: func(g api.GoldenImage) string {
			return string(g.ImageId+"  ") + string(g.Status) + why(g.Reason, g.Message)
		},
		Doing: func(g api.GoldenImage) string { return string(g.Status) },
		Rests: func(g api.GoldenImage) bool { return server.ImageStatus(g.Status).Rests() },
		Wanted: func(_ *call, g api.GoldenImage) bool {
			return len(wanted) == 0 || slices.Contains(wanted, server.ImageStatus(g.Status))
		},
		Is: func(g api.GoldenImage) standing {
			return standing{"image " + string(g.ImageId), string(g.Status), g.Reason, g.Message}
		},
	}
}
