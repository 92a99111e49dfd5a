package api

import (
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// BuildImage accepts a build of a golden image.
func (a *API) BuildImage(c echo.Context, _ BuildImageParams) error {
	var in server.BuildImageRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	base, err := in.Validate(a.d.Catalog.Configured.Image)
	if err != nil {
		return err
	}
	if err := a.checkSpec(c.Request().Context(), prego.ProviderHetzner, in.Region, server.Spec{Image: base}); err != nil {
		return err
	}
	g, err := a.d.Store.CreateGoldenImage(c.Request().Context(), server.GoldenImage{
		ImageID: prego.ImageID(newID("img-")), Provider: prego.ProviderHetzner, Region: in.Region, BaseImage: base, Architecture: "x86", CreatedBy: caller(c).By(),
	})
	if err != nil {
		return err
	}
	a.startImage(c, g)
	return accepted(a, c, g, viewOf[GoldenImage])
}

// startImage starts the run of an image that is being built or deleted.
func (a *API) startImage(c echo.Context, g server.GoldenImage) {
	ctx, cancel := startContext(c)
	defer cancel()
	id, start := server.ImageBuildWorkflowID(g.ImageID), a.d.Runs.EnsureImageBuild
	if g.Status == server.ImageDeleting {
		id, start = server.ImageDeleteWorkflowID(g.ImageID), a.d.Runs.EnsureImageDelete
	}
	if _, err := start(ctx, g.ImageID); err != nil {
		a.notStarted(c, id, err)
	}
}

// GetImage shows a golden image.
func (a *API) GetImage(c echo.Context, id ImageID) error {
	return show(c, a.d.Store.GetGoldenImage, id, viewOf[GoldenImage])
}

// ListImages shows a page of golden images, newest first.
func (a *API) ListImages(c echo.Context, _ ListImagesParams) error {
	return list(c, "images", store.Images.In(a.d.Store), viewOf[GoldenImage])
}

// DeleteImage deletes a golden image, or cancels its build.
func (a *API) DeleteImage(c echo.Context, id ImageID, _ DeleteImageParams) error {
	g, err := a.d.Store.RequestImageDelete(c.Request().Context(), id, caller(c).By())
	if err != nil {
		return err
	}
	switch g.Status {
	case server.ImageBuilding, server.ImageVerifying:
		ctx, cancel := startContext(c)
		defer cancel()
		if err := a.d.Runs.CancelImageBuild(ctx, id); err != nil {
			a.d.Log.Warn("build not cancelled", zap.String("image_id", string(id)), zap.String("error", prego.Redact(err.Error())))
			return prego.Errorf(prego.CodeNotReady, "the workflow engine does not answer; try again")
		}
	case server.ImageDeleting:
		a.startImage(c, g)
	case server.ImageReady, server.ImageFailed, server.ImageDeleted:
	}
	return accepted(a, c, g, viewOf[GoldenImage])
}
