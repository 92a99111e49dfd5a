package cli

import (
	"fmt"

	"github.com/prego/prego/api"
)

var patchWaveColumns = computed(map[string]func(api.PatchWave) string{
	"state": func(w api.PatchWave) string {
		return map[bool]string{true: "running", false: "ended"}[w.FinishedAt == nil]
	},
	"took": func(w api.PatchWave) string {
		if w.FinishedAt == nil {
			return ""
		}
		return w.FinishedAt.Sub(w.CreatedAt).Round(1e9).String()
	},
})

func showWave(in *call, w api.PatchWave) error {
	if members := deref(w.Members); len(members) > 0 {
		fmt.Fprintln(in.w)
		if err := parts(in.printer, "PatchWaveServer", members); err != nil {
			return err
		}
	}
	if steps := deref(w.Timeline); len(steps) > 0 {
		fmt.Fprintln(in.w)
		return parts(in.printer, "PatchWaveStep", steps)
	}
	return nil
}
