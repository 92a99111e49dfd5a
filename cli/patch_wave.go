package cli

import (
	"errors"

	"github.com/prego/prego/api"
)

func showWave(in *call) error {
	members := below("PatchWaveServer", func(w api.PatchWave) []api.PatchWaveServer { return deref(w.Members) })
	steps := below("PatchWaveStep", func(w api.PatchWave) []api.PatchWaveStep { return deref(w.Timeline) })
	return errors.Join(members(in), steps(in))
}
