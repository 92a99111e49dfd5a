package workflows

import (
	"context"
	"errors"

	"go.temporal.io/api/serviceerror"
)

// attempt does something, and has it repeated later if Temporal did not take it and may.
func (c *Client) attempt(ctx context.Context, what string, do func(context.Context) error) error {
	err := do(ctx)
	if c.NotTaken != nil && mayPass(err) {
		c.NotTaken(what, func(ctx context.Context) error {
			if err := do(ctx); mayPass(err) {
				return err
			}
			return nil // it was taken, or never will be
		})
	}
	return err
}

// mayPass reports whether the same request may be taken later.
func mayPass(err error) bool {
	var invalid *serviceerror.InvalidArgument
	var denied *serviceerror.PermissionDenied
	var gone *serviceerror.NotFound
	return err != nil && !errors.As(err, &invalid) && !errors.As(err, &denied) && !errors.As(err, &gone)
}
