package cli

import (
	"fmt"

	"github.com/prego/prego/api"
)

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
