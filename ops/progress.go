package ops

import (
	"fmt"
	"strings"
	"time"
)

// Progress is how far something is that takes a while, such as emptying a server, a move, a release or a restore.
type Progress struct {
	// Kind is drain, reboot, replace, resize or patch of a server; wave, move, restore, release, agent_release,
	// rollout or rebalance.
	Kind        string
	SubjectKind string // what the page of the subject is about
	ID, Name    string // of the subject
	State       string // as its row has it
	// Done and Total count units of work: "steps" if these differ in length. Total is 0 if nothing is counted.
	Unit        string
	Done, Total int
	Running     bool // work is being done; false while it waits or is paused
	Since       time.Time
	Current     []ProgressPart // what is being worked on, at most 3
}

// ProgressPart is a thing that work is being done on.
type ProgressPart struct {
	Kind, ID, Name, State string
}

// steps is the unit of work whose parts take different times.
const steps = "steps"

// ExpectedAt is when it ends if it continues at the pace since its start, nil if that can't be measured.
func (p Progress) ExpectedAt(now time.Time) *time.Time {
	took := now.Sub(p.Since)
	if !p.Running || p.Unit == steps || p.Done <= 0 || p.Done >= p.Total || took <= 0 {
		return nil
	}
	return new(now.Add(took / time.Duration(p.Done) * time.Duration(p.Total-p.Done)))
}

// progressText is what is being done, by kind.
var progressText = map[string]string{
	"drain": "%s is being emptied", "reboot": "%s is being emptied and rebooted",
	"replace": "%s is being emptied and replaced", "resize": "%s is being emptied and resized",
	"patch": "%s gets security updates", "wave": "security updates %s are being installed",
	"move": "%s is moving", "restore": "%s is being restored", "release": "release %s is rolling out",
	"agent_release": "agent %s is rolling out", "rollout": "%s is being deployed",
	"rebalance": "packing plan %s is being carried out",
}

// Message is its progress as a sentence without its expected end.
func (p Progress) Message() string {
	var parts []string
	switch {
	case p.Unit == steps:
		parts = append(parts, strings.ReplaceAll(p.State, "_", " "))
	case p.Total > 0:
		parts = append(parts, fmt.Sprintf("%d of %d %s", p.Done, p.Total, p.Unit))
	}
	if !p.Running && p.Unit != steps {
		parts = append(parts, strings.ReplaceAll(p.State, "_", " "))
	}
	for _, c := range p.Current {
		parts = append(parts, strings.TrimSpace(c.Name+" "+strings.ReplaceAll(c.State, "_", " ")))
	}
	text := fmt.Sprintf(progressText[p.Kind], p.Name)
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}
