package app

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/cloudinit"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workflows"
)

// newImages creates the steps of golden images.
func newImages(p *Process, servers *activities.Servers, runs *workflows.Client) (*activities.Images, error) {
	agent, err := p.agentDigest()
	if err != nil {
		return nil, err
	}
	stack, err := p.cfg.Worker.Stack()
	if err != nil {
		return nil, err
	}
	w := p.cfg.Worker
	metrics := activities.NewImageMetrics(p.reg)
	servers.Metrics.ImageFallbacks = metrics.Fallback
	return &activities.Images{
		Store: p.db, Servers: servers, Runs: runs, Keep: imagesKept, BuildTimeout: w.ImageBuildTimeout, Poll: p.cfg.Hetzner.Poll * builderPolls,
		Metrics: metrics, Log: p.log.Named("images"),
		Recipe: func(base string) (server.ImageRecipe, error) {
			return recipe(stack, w.ImageContainers, w.ContainerImage, base, agent)
		},
	}, nil
}

// imagesKept is the number of verified images of a kind: the current image and its predecessor.
const imagesKept = 2

// builderPolls is how much less often a builder is checked than an action: it takes
// minutes.
const builderPolls = 5

// recipe is what an image is built from now.
func recipe(stack server.Stack, containers []string, benchImage, base, agent string) (server.ImageRecipe, error) {
	document, err := json.Marshal(stack)
	if err != nil {
		return server.ImageRecipe{}, fmt.Errorf("stack: %w", err)
	}
	switch {
	case len(containers) == 1 && containers[0] == "stack":
		containers = stack.Images(benchImage)
	case len(containers) == 1 && containers[0] == "none":
		containers = nil
	}
	containers = slices.Compact(slices.Sorted(slices.Values(containers)))
	userData, hash, err := cloudinit.RenderImage(cloudinit.ImageInput{BaseImage: base, Containers: containers})
	if err != nil {
		return server.ImageRecipe{}, err
	}
	sum := sha256.Sum256(append(document, benchImage...))
	return server.ImageRecipe{UserData: userData, Hash: hash, AgentSHA256: agent, StackSHA256: hex.EncodeToString(sum[:]), Containers: containers}, nil
}
