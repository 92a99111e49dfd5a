package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// What a light host leaves on its disk when it was built into an image.
const (
	recipePath = "/etc/prego-image/recipe.json"
	markerPath = "/etc/prego-image.json"
)

// buildImage does what the builder's scripts do on a real host: it records the image's
// contents, cleans up, and powers off. If it fails, it stays on.
func (h *processHost) buildImage(ctx context.Context) error {
	h.setPhase("building an image")
	if h.plan.buildFails {
		return fmt.Errorf("building the image failed")
	}
	var cc cloudConfig
	if err := yaml.Unmarshal([]byte(h.user), &cc); err != nil {
		return fmt.Errorf("user_data: %w", err)
	}
	for _, f := range cc.WriteFiles {
		content, err := decodeContent(f.Content, f.Encoding)
		if err != nil {
			return fmt.Errorf("write_files %s: %w", f.Path, err)
		}
		if err := h.writeFile(f.Path, content, f.Permissions); err != nil {
			return err
		}
	}
	if err := sleep(ctx, h.sim.cfg.Profile.Stage); err != nil {
		return err
	}
	recipe, err := os.ReadFile(filepath.Join(h.root(), recipePath))
	if err != nil {
		return err
	}
	if err := h.writeFile(markerPath, recipe, "0644"); err != nil {
		return err
	}
	// What the seal script removes.
	if err := os.RemoveAll(filepath.Join(h.root(), filepath.Dir(recipePath))); err != nil {
		return err
	}
	for _, f := range cc.WriteFiles {
		_ = os.Remove(filepath.Join(h.root(), filepath.Clean("/"+f.Path)))
	}
	return h.shutdown() // it powers itself off
}
