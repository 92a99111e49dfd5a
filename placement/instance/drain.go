package instance

import (
	"cmp"
	"slices"

	"github.com/prego/prego"
)

// DrainState is the input of the next step of a server's drain.
type DrainState struct {
	// Instances are the instances on the server that are not stopped.
	Instances []DrainInstance
	// Limit is how many instances of one org drains may move concurrently.
	Limit int
	// Elsewhere counts the instances of an org that drains of other servers move now.
	Elsewhere map[prego.OrgID]int
}

// DrainInstance is an instance on a server that is being emptied.
type DrainInstance struct {
	ID      string
	Number  int64
	GroupID prego.GroupID
	OrgID   prego.OrgID
	Leaving bool // already given up to its group
	Going   bool // it drains or has failed: it stops in any case
}

// PlanDrain picks the instances of a server that their groups must replace next. ScheduleGroup handles them: it
// starts the replacements and stops the old ones within the group's max_surge and max_unavailable. Here an org's
// limit holds over all drains, and its groups take turns, so that a group without a place does not keep the others
// waiting. Calling it again after the step was taken returns the next one.
func PlanDrain(s DrainState) (leave []string) {
	moving := map[prego.OrgID]int{}
	turn := map[prego.GroupID]int{} // instances of a group that leave
	var stay []DrainInstance
	for _, i := range s.Instances {
		switch {
		case i.Going: // it is not moved: its group replaces it as it would anyway
		case i.Leaving:
			moving[i.OrgID]++
			turn[i.GroupID]++
		default:
			stay = append(stay, i)
		}
	}
	slices.SortFunc(stay, func(a, b DrainInstance) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.ID, b.ID))
	})
	for len(stay) > 0 {
		next := -1
		for n, i := range stay {
			if moving[i.OrgID]+s.Elsewhere[i.OrgID] < s.Limit && (next < 0 || turn[i.GroupID] < turn[stay[next].GroupID]) {
				next = n
			}
		}
		if next < 0 {
			break
		}
		i := stay[next]
		moving[i.OrgID]++
		turn[i.GroupID]++
		leave = append(leave, i.ID)
		stay = slices.Delete(stay, next, next+1)
	}
	return leave
}
