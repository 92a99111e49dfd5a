package prego

import (
	"slices"
	"strconv"
	"strings"
)

// Constraint selects servers by their tags: a server satisfies it if it has every tag
// of Require and none of Disallow (placement-pools, "Constraints"). The zero value is
// satisfied by every server. A contradictory constraint is valid, and no server
// satisfies it.
type Constraint struct {
	Require  []string `json:"require,omitempty"`
	Disallow []string `json:"disallow,omitempty"`
}

// Empty reports whether every server satisfies c.
func (c Constraint) Empty() bool { return len(c.Require) == 0 && len(c.Disallow) == 0 }

// Equal reports whether two normalized constraints name the same tags.
func (c Constraint) Equal(o Constraint) bool {
	return SameTags(c.Require, o.Require) && SameTags(c.Disallow, o.Disallow)
}

// SameTags reports whether two lists of lower-case tags name the same ones.
func SameTags(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

// SatisfiedBy reports whether a server with these tags may be used; all tags must be
// lower-case.
func (c Constraint) SatisfiedBy(tags []string) bool {
	for _, t := range c.Require {
		if !slices.Contains(tags, t) {
			return false
		}
	}
	for _, t := range c.Disallow {
		if slices.Contains(tags, t) {
			return false
		}
	}
	return true
}

// Satisfiable reports whether any set of tags satisfies c: Require does, unless
// a required tag is disallowed or there are more than a server may have.
func (c Constraint) Satisfiable() bool {
	return len(c.Require) <= MaxTags && c.SatisfiedBy(c.Require)
}

// Union returns the constraint that combines c and all others, each list sorted: a
// server satisfies it exactly if it satisfies each.
func (c Constraint) Union(others ...Constraint) Constraint {
	require, disallow := slices.Clone(c.Require), slices.Clone(c.Disallow)
	for _, o := range others {
		require, disallow = append(require, o.Require...), append(disallow, o.Disallow...)
	}
	slices.Sort(require)
	slices.Sort(disallow)
	return Constraint{Require: slices.Compact(require), Disallow: slices.Compact(disallow)}
}

// String formats c for people.
func (c Constraint) String() string {
	var parts []string
	if len(c.Require) > 0 {
		parts = append(parts, "require "+strings.Join(c.Require, ", "))
	}
	if len(c.Disallow) > 0 {
		parts = append(parts, "disallow "+strings.Join(c.Disallow, ", "))
	}
	return strings.Join(parts, "; ")
}

// Normalize lower-cases, checks and de-duplicates the tags.
func (c *Constraint) Normalize(field string) error {
	return c.checkTags(field, func(_ string, tags []string) ([]string, error) { return NormalizeTags(tags) })
}

// Validate is Normalize for user input: a tag that is given twice is rejected.
func (c *Constraint) Validate(field string) error { return c.checkTags(field, DistinctTags) }

func (c *Constraint) checkTags(field string, check func(field string, tags []string) ([]string, error)) error {
	for _, l := range []struct {
		name string
		tags *[]string
	}{{"require", &c.Require}, {"disallow", &c.Disallow}} {
		name := l.name
		if field != "" {
			name = field + "." + l.name
		}
		tags, err := check(name, *l.tags)
		if err != nil {
			return withField(name, err)
		}
		if *l.tags = tags; len(tags) == 0 {
			*l.tags = nil
		}
	}
	return nil
}

// StackTag is the tag that stands for a stack (placement-pools, "Where does this leave
// stack?").
const StackTag = "stack:"

// RequireStack adds the tag of a stack to the required ones; "" adds none. The
// constraint must be valid; field names the stack in errors.
func (c *Constraint) RequireStack(field, stack string) error {
	if stack == "" {
		return nil
	}
	tag, err := NormalizeTags([]string{StackTag + stack})
	if err != nil {
		return Invalid(field, "must be printable ASCII without spaces, at most "+strconv.Itoa(MaxTagLen-len(StackTag))+" characters")
	}
	if slices.Contains(c.Require, tag[0]) {
		return nil
	}
	if len(c.Require) == MaxTags {
		return Invalid(field, "is one tag too many: constraint.require holds "+strconv.Itoa(MaxTags)+" already")
	}
	c.Require = append(slices.Clip(c.Require), tag[0])
	return nil
}
