package workflows

import (
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

const (
	// snapshotPatience is the time limit for copying a builder's disk.
	snapshotPatience = 45 * time.Minute
	// verifyPatience is the time limit for booting a server from the image, including
	// retries.
	verifyPatience = 2 * time.Hour
	verifyPoll     = 10 * time.Second
	// cleanupPatience is how long a clean-up is tried before it is left to the
	// reconciler.
	cleanupPatience = time.Hour
)

// ImageInput names the image; everything else is in its row.
type ImageInput struct {
	ImageID prego.ImageID `json:"image_id"`
}

// BuildImageResult is the result of a build.
type BuildImageResult struct {
	ImageID prego.ImageID `json:"image_id"`
	Rotated []string      `json:"rotated,omitempty"` // older images that were deleted
}

// BuildImage builds a golden image: a builder installs and pulls, cleans up and powers off; its
// disk is copied; a server is booted from the copy; only then does the image become current.
// However the run ends, the builder and the booted server are deleted, and so is an image that must
// not be used.
func BuildImage(ctx workflow.Context, in ImageInput) (BuildImageResult, error) {
	b := &buildImage{ref: activities.ImageRef{ImageID: in.ImageID}}
	err := b.end(ctx, b.run(ctx))
	return BuildImageResult{ImageID: in.ImageID, Rotated: b.rotated}, err
}

type buildImage struct {
	ref     activities.ImageRef
	plan    activities.ImagePlan
	rotated []string
	// published means that servers are created from the image: it stays after any failure.
	published bool

	steps *activities.Images // nil: names the activities
}

func (b *buildImage) run(ctx workflow.Context) error {
	var s story
	s.row(ctx, &b.plan, b.steps.PlanImage, b.ref)
	s.found(ctx, AttrRegion.ValueSet(string(b.plan.Region)), AttrOutcome.ValueSet(string(b.plan.Status)))
	if s.err != nil || b.plan.Status.Rests() || b.plan.Status == server.ImageDeleting {
		return s.err
	}
	if !b.plan.Snapshot {
		s.err = b.build(ctx)
	}
	// Before the verification: the builder is no longer needed, and it is billed.
	s.step(call(ctx, "delete the builder", cleanupPatience), b.steps.DropBuilder, b.ref)
	if s.err == nil {
		s.err = b.verify(ctx)
	}
	s.step(write(ctx, "make the image current"), b.steps.PublishImage, b.ref)
	if s.err != nil {
		return s.err
	}
	b.published = true
	return b.rotate(ctx)
}

// build creates the builder, waits until it has finished, and copies its disk.
func (b *buildImage) build(ctx workflow.Context) error {
	h, err := b.builder(ctx)
	if err != nil {
		return err
	}
	built := activities.BuiltInput{ImageID: b.ref.ImageID, ProviderServerID: h.ProviderServerID}
	b.details(ctx, "the builder installs and pulls")
	err = do(long(call(ctx, "wait until the builder has powered itself off", b.plan.BuildTimeout)), nil, b.steps.AwaitBuilt, built)
	switch {
	case err == nil:
	case passThrough(ctx, err):
		return err
	case errType(err) == activities.ErrTypeGone:
		return &stepError{reason: prego.ReasonBuilderLost, text: "the builder is gone: " + errorMessage(err)}
	default:
		return &stepError{reason: prego.ReasonBuildTimeout, text: fmt.Sprintf("the builder did not finish within %s: %s", b.plan.BuildTimeout, errorMessage(err))}
	}
	b.details(ctx, "copying the builder's disk")
	err = do(long(call(ctx, "take a snapshot of the builder", snapshotPatience)), nil, b.steps.CopyBuilder, built)
	if err != nil && !passThrough(ctx, err) {
		return &stepError{reason: prego.ReasonSnapshotFailed, text: errorMessage(err)}
	}
	return err
}

// builder tries the candidates until one is created.
func (b *buildImage) builder(ctx workflow.Context) (h server.Handle, _ error) {
	refusal := "no machine type is configured for builders in region " + string(b.plan.Region)
	// A restarted run continues the current attempt, and so keeps its builder.
	first := max(b.plan.BaseAttempt, 1)
	for i := first - 1; i < len(b.plan.Candidates); i++ {
		c := b.plan.Candidates[i]
		b.details(ctx, "making the builder, "+c.String())
		err := do(call(ctx, "make the builder, "+c.String(), callTotal), &h, b.steps.MakeBuilder, activities.BuilderInput{ImageID: b.ref.ImageID, Attempt: i + 1, Candidate: c})
		switch {
		case err == nil || passThrough(ctx, err):
			return h, err
		case errType(err) == activities.ErrTypeCandidate:
			refusal = errorMessage(err)
		default:
			return h, &stepError{reason: prego.ReasonBuilderNotMade, text: errorMessage(err)}
		}
	}
	return h, &stepError{reason: prego.ReasonBuilderNotMade, text: refusal}
}

// verify boots a server from the image, like any other server, and deletes it again.
func (b *buildImage) verify(ctx workflow.Context) error {
	b.details(ctx, "booting a server from the image")
	if err := do(write(ctx, "write the row of the server that is booted from it"), nil, b.steps.PrepareVerification, b.ref); err != nil {
		if passThrough(ctx, err) {
			return err
		}
		return &stepError{reason: prego.ReasonVerificationFailed, text: errorMessage(err)}
	}
	child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID: server.ProvisionWorkflowID(prego.ServerID(b.plan.Verifier)), WorkflowExecutionTimeout: verifyPatience, WaitForCancellation: true,
		ParentClosePolicy: enumspb.PARENT_CLOSE_POLICY_REQUEST_CANCEL, StaticSummary: string("Boot a server from image " + b.ref.ImageID),
	})
	err := workflow.ExecuteChildWorkflow(child, ProvisionServer, ProvisionServerInput{ServerID: prego.ServerID(b.plan.Verifier), Generation: 1}).Get(child, nil)
	// The row decides: another run may already have brought up the server.
	for began := workflow.Now(ctx); ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var v activities.VerifierState
		if err := do(write(ctx, "read the server that was booted from it"), &v, b.steps.ReadVerifier, b.ref); err != nil {
			return err
		}
		switch {
		case v.Active:
			return b.takeDown(ctx)
		case v.Failed, workflow.Now(ctx).Sub(began) > verifyPatience:
			text := v.Message
			if text == "" && err != nil {
				text = errorMessage(err)
			}
			return &stepError{reason: prego.ReasonVerificationFailed, text: "no server became active from it: " + text}
		}
		if err := sleep(ctx, verifyPoll, "another run provisions the server"); err != nil {
			return err
		}
	}
}

// takeDown deletes the server booted from the image, if there is one.
func (b *buildImage) takeDown(ctx workflow.Context) error {
	var there bool
	if err := do(write(ctx, "give up the server that was booted from it"), &there, b.steps.GiveUpVerifier, b.ref); err != nil || !there {
		return err
	}
	child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID: server.DecommissionWorkflowID(prego.ServerID(b.plan.Verifier)), ParentClosePolicy: enumspb.PARENT_CLOSE_POLICY_ABANDON, StaticSummary: "Take down " + b.plan.Verifier,
	})
	err := workflow.ExecuteChildWorkflow(child, DecommissionServer, DecommissionServerInput{ServerID: prego.ServerID(b.plan.Verifier)}).Get(child, nil)
	if temporal.IsWorkflowExecutionAlreadyStartedError(err) {
		return nil // the reconciler was faster and finishes the deletion
	}
	return err
}

// rotate deletes images beyond the number to keep. An image that can't be deleted now is left to
// the reconciler, which starts its deletion again.
func (b *buildImage) rotate(ctx workflow.Context) error {
	if err := do(write(ctx, "give up old images"), &b.rotated, b.steps.RotateImages, b.ref); err != nil {
		return err
	}
	for _, id := range b.rotated {
		child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
			WorkflowID: server.ImageDeleteWorkflowID(prego.ImageID(id)), ParentClosePolicy: enumspb.PARENT_CLOSE_POLICY_ABANDON, StaticSummary: "Delete image " + id,
		})
		err := workflow.ExecuteChildWorkflow(child, DeleteImage, ImageInput{ImageID: prego.ImageID(id)}).Get(child, nil)
		if err != nil && temporal.IsCanceledError(err) {
			return err
		}
	}
	return nil
}

// end deletes everything that a failed build left. It runs to completion even if the
// run was cancelled.
func (b *buildImage) end(ctx workflow.Context, err error) error {
	if err == nil {
		b.details(ctx, "done")
		setOutcome(ctx, "ready")
		return nil
	}
	if b.published {
		return err
	}
	cleanup, _ := workflow.NewDisconnectedContext(ctx)
	failed, ok := err.(*stepError) //nolint:errorlint // returned bare by the steps
	if !ok {
		failed = &stepError{reason: prego.ReasonFailedInternal, text: errorMessage(err)}
		if temporal.IsCanceledError(err) {
			failed = &stepError{reason: prego.ReasonBuildCancelled, text: "the build was cancelled"}
		}
	}
	b.details(cleanup, fmt.Sprintf("ending as %s: %s", failed.reason, failed.text))
	var s story
	for _, undo := range []func(workflow.Context) error{
		func(ctx workflow.Context) error {
			return do(call(ctx, "delete the builder", cleanupPatience), nil, b.steps.DropBuilder, b.ref)
		},
		b.takeDown,
		func(ctx workflow.Context) error {
			return do(call(ctx, "delete the copied snapshots", cleanupPatience), nil, b.steps.DiscardSnapshots, b.ref)
		},
	} {
		if e := undo(cleanup); e != nil {
			s.step(write(cleanup, "clean-up incomplete: left to the reconciler"), b.steps.NoteLeftover,
				activities.ImageFailure{ImageID: b.ref.ImageID, Reason: failed.reason, Message: errorMessage(e)})
		}
	}
	s.step(write(cleanup, "mark the image failed: "+string(failed.reason)), b.steps.FailImage,
		activities.ImageFailure{ImageID: b.ref.ImageID, Reason: failed.reason, Message: failed.text})
	return s.failed(cleanup, err, failed)
}

// passThrough are errors that are not a step's own: the row has moved on, or the run
// was cancelled.
func passThrough(ctx workflow.Context, err error) bool {
	return isSuperseded(err) || ctx.Err() != nil || temporal.IsCanceledError(err)
}

func (b *buildImage) details(ctx workflow.Context, text string) {
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** (%s in %s): %s", b.ref.ImageID, b.plan.BaseImage, b.plan.Region, text))
}

// DeleteImage deletes a retired image. It continues until the image is deleted.
func DeleteImage(ctx workflow.Context, in ImageInput) error {
	var steps *activities.Images
	ref := activities.ImageRef{ImageID: in.ImageID}
	var plan activities.ImagePlan
	var s story
	s.row(ctx, &plan, steps.PlanImage, ref)
	if plan.Status != server.ImageDeleting {
		return s.err
	}
	s.step(call(ctx, "delete it at the provider", releasePatience), steps.DiscardSnapshots, ref)
	s.step(write(ctx, "mark the image deleted"), steps.ImageIsDeleted, ref)
	return s.err
}
