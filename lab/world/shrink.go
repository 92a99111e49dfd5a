package world

// Shrink finds a short log of faults with which a seed still fails: it leaves out larger and then smaller parts of it,
// while fails returns true. It plays the seed a limited number of times.
func Shrink(faults []Fault, most int, fails func(only map[string]bool) bool) []Fault {
	only := func(fs []Fault) map[string]bool {
		out := map[string]bool{}
		for _, f := range fs {
			out[key(f)] = true
		}
		return out
	}
	try := func(fs []Fault) bool {
		if most == 0 {
			return false
		}
		most--
		return fails(only(fs))
	}
	if try(nil) {
		return nil
	}
	for part := (len(faults) + 1) / 2; part > 0 && len(faults) > 1; {
		shorter := false
		for i := 0; i < len(faults); i += part {
			rest := append(append([]Fault{}, faults[:i]...), faults[min(i+part, len(faults)):]...)
			if len(rest) < len(faults) && try(rest) {
				faults, shorter = rest, true
				break
			}
		}
		if !shorter {
			if part == 1 {
				break
			}
			part = (part + 1) / 2
		}
	}
	return faults
}
