package prego

import (
	"context"
	"fmt"
	"time"
)

// Duration is a time.Duration that JSON writes as a string like "90s".
type Duration time.Duration

// MarshalText writes the duration as time.Duration.String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("duration: %w", err)
	}
	*d = Duration(v)
	return nil
}

// D returns the duration as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// Sleep waits for a time, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d): //nolint:forbidigo // it waits, and decides nothing
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
