package server

import (
	"fmt"
	"regexp"
	"time"

	"github.com/prego/prego"
)

// ImageStatus is the status of a golden image.
type ImageStatus string

// The statuses of a golden image.
const (
	ImageBuilding  ImageStatus = "building"  // its builder is created, runs, and is copied
	ImageVerifying ImageStatus = "verifying" // a server is booted from it
	ImageReady     ImageStatus = "ready"
	ImageFailed    ImageStatus = "failed"
	ImageDeleting  ImageStatus = "deleting"
	ImageDeleted   ImageStatus = "deleted"
)

// Rests reports whether nothing works on an image in this status.
func (s ImageStatus) Rests() bool {
	return s == ImageReady || s == ImageFailed || s == ImageDeleted
}

// BuildOutcomes are the reasons of failed builds.
func BuildOutcomes() []prego.Reason {
	return []prego.Reason{
		prego.ReasonBuilderNotMade, prego.ReasonBuilderLost, prego.ReasonBuildTimeout, prego.ReasonSnapshotFailed, prego.ReasonVerificationFailed, prego.ReasonBuildCancelled, prego.ReasonFailedInternal,
	}
}

// GoldenImage is one row of golden_images.
type GoldenImage struct {
	ImageID         prego.ImageID
	Provider        prego.InfraProviderID
	Region          prego.Region // where it was built
	BaseImage       string       // the provider's image that it is built from
	Architecture    string       // x86 or arm
	RecipeHash      string
	AgentSHA256     string
	StackSHA256     string
	Containers      []string // container images in it
	Status          ImageStatus
	Reason          prego.Reason
	Message         string
	Current         bool   // new servers are created from it
	Attempt         int    // builder attempts so far
	ServerType      string `json:"builder_type"`
	Location        string `json:"builder_location"`
	ProviderImageID string
	SizeGB          float64 // billed size
	DiskGB          float64 // the smallest disk that it fits on
	VerifyServerID  prego.ServerID
	CreatedBy       string
	CreatedAt       time.Time
	UpdatedAt       time.Time
	VerifiedAt      *time.Time
	DeletedAt       *time.Time
	Idle            time.Duration // since the last change of the row
}

// WorkflowID is the id of its run: its build, or its deletion.
func (g GoldenImage) WorkflowID() string {
	if g.Status == ImageDeleting {
		return ImageDeleteWorkflowID(g.ImageID)
	}
	return ImageBuildWorkflowID(g.ImageID)
}

// ImageRecipe is what an image is built from, besides the stock image.
type ImageRecipe struct {
	UserData    string // of the builder: scripts and lists, no identity and no secret
	Hash        string // of UserData and the stock image
	AgentSHA256 string
	StackSHA256 string
	Containers  []string
}

// BuildImageRequest is the body of POST /v1/images.
type BuildImageRequest struct {
	Debian string       `json:"debian,omitempty"` // "12" or "13"; empty means the configured image's
	Region prego.Region `json:"region,omitempty"` // where it is built; empty means eu
}

var debianImage = regexp.MustCompile(`^debian-\d{1,2}$`)

// Validate checks the request, and returns the stock image that it means; configured is
// the catalog's.
func (r *BuildImageRequest) Validate(configured string) (baseImage string, err error) {
	if r.Region == "" {
		r.Region = prego.RegionEU
	}
	if !r.Region.Valid() {
		return "", prego.Invalid("region", "must be one of sg, eu, us")
	}
	baseImage = configured
	if r.Debian != "" {
		baseImage = "debian-" + r.Debian
	}
	if !debianImage.MatchString(baseImage) {
		return "", prego.Invalid("debian", fmt.Sprintf("must be the number of a Debian release, like 13: an image can't be built from %q", baseImage))
	}
	return baseImage, nil
}

// ImageBuildWorkflowID is the id of the run that builds an image.
func ImageBuildWorkflowID(imageID prego.ImageID) string { return string("image-build/" + imageID) }

// ImageDeleteWorkflowID is the id of the run that deletes an image.
func ImageDeleteWorkflowID(imageID prego.ImageID) string { return string("image-delete/" + imageID) }

// BuilderServerID is the server id in the labels of an image's builder. The builder is
// not a server of the fleet: it has no row, no token and no agent.
func BuilderServerID(imageID prego.ImageID) string { return string(imageID + "-builder") }

// VerifyServerID is the server booted from an image before it is used.
func VerifyServerID(imageID prego.ImageID) string { return string(imageID + "-verify") }

// SnapshotParams describe a snapshot of a builder's disk.
type SnapshotParams struct {
	Environment      string
	ImageID          prego.ImageID
	ProviderServerID string
	Description      string
	Labels           map[string]string // in addition to the owner's
}

// SnapshotHandle is a snapshot at a provider.
type SnapshotHandle struct {
	ProviderImageID string  `json:"provider_image_id"`
	SizeGB          float64 `json:"size_gb"`
	DiskGB          float64 `json:"disk_gb"`
}

// Labels of snapshots, in addition to the owner's.
const (
	LabelImageID = "prego-image-id"
	LabelRecipe  = "prego-recipe"
	LabelBase    = "prego-base-image"
	LabelAgent   = "prego-agent"
	LabelStack   = "prego-stack"
)

// SnapshotLabels describe an image. A label holds at most 63 characters, so
// digests are shortened.
func (g GoldenImage) SnapshotLabels() map[string]string {
	short := func(digest string) string { return digest[:min(len(digest), 32)] }
	return map[string]string{
		LabelRecipe: short(g.RecipeHash), LabelBase: g.BaseImage, LabelAgent: short(g.AgentSHA256), LabelStack: short(g.StackSHA256),
	}
}
