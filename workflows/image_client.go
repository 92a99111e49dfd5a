package workflows

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// EnsureImageBuild starts the run that builds an image unless it is running.
func (c *Client) EnsureImageBuild(ctx context.Context, imageID prego.ImageID) (bool, error) {
	return c.start(ctx, server.ImageBuildWorkflowID(imageID), string("Build image "+imageID), BuildImage, ImageInput{ImageID: imageID})
}

// EnsureImageDelete starts the run that deletes an image unless it is running.
func (c *Client) EnsureImageDelete(ctx context.Context, imageID prego.ImageID) (bool, error) {
	return c.start(ctx, server.ImageDeleteWorkflowID(imageID), string("Delete image "+imageID), DeleteImage, ImageInput{ImageID: imageID})
}

// CancelImageBuild asks a build to stop and to clean up. Success if it has already
// ended.
func (c *Client) CancelImageBuild(ctx context.Context, imageID prego.ImageID) error {
	return c.cancel(ctx, server.ImageBuildWorkflowID(imageID))
}
