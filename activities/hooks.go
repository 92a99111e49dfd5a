package activities

// Hooks call a function around effects, by name, so that tests can kill the process there.
type Hooks struct{ Hook func(point string) } // nil: none

func (h Hooks) hook(point string) {
	if h.Hook != nil {
		h.Hook(point)
	}
}
