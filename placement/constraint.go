package placement

import (
	"errors"
	"fmt"

	"github.com/prego/prego"
)

// ConstraintDocument is the JSON input of `prego plan constraint`: servers and a constraint.
type ConstraintDocument struct {
	Servers    []DocTaggedServer `json:"servers"`
	Constraint *prego.Constraint `json:"constraint"` // null means any server
}

// DocTaggedServer is a server with tags.
type DocTaggedServer struct {
	ID   string   `json:"id"`
	Tags []string `json:"tags"`
	Fits *bool    `json:"fits"` // null means true
}

// ConstraintAnswer lists the servers that may run the work, as JSON; Error is null if there are any.
type ConstraintAnswer struct {
	Eligible []string    `json:"eligible"`
	Error    *prego.Code `json:"error"`
}

// Build checks the document and returns its parts, with tags in lower case.
func (d ConstraintDocument) Build() ([]TaggedServer, prego.Constraint, error) {
	var constraint prego.Constraint
	if d.Constraint != nil {
		constraint = *d.Constraint
	}
	if err := constraint.Normalize("constraint"); err != nil {
		return nil, constraint, err
	}
	c, seen := &checker{}, make(map[string]bool, len(d.Servers))
	servers := make([]TaggedServer, 0, len(d.Servers))
	for i, v := range d.Servers {
		at := fmt.Sprintf("servers[%d]", i)
		c.id(seen, at+".id", v.ID)
		tags, err := prego.NormalizeTags(v.Tags)
		var invalid *prego.Error
		if errors.As(err, &invalid) {
			c.fault(at+".tags", invalid.Message)
		}
		servers = append(servers, TaggedServer{ID: v.ID, Tags: tags, Fits: v.Fits == nil || *v.Fits})
	}
	return servers, constraint, c.err
}

// TaggedServer is a server as a constraint sees it.
type TaggedServer struct {
	ID   string
	Tags []string // lower-case
	Fits bool     // has room for the work
}

// Eligible lists the servers that satisfy the constraint and have room, in the given order. If there is none, the
// code gives the reason (placement-pools, "Auctioneer"): CodeCellMismatch if no server at all satisfies the
// constraint, CodeInsufficientResources if some do and none has room. Otherwise it is "". The constraint is
// normalized.
func Eligible(servers []TaggedServer, c prego.Constraint) (ids []string, code prego.Code) {
	ids, code = []string{}, prego.CodeCellMismatch
	for _, s := range servers {
		switch {
		case !c.SatisfiedBy(s.Tags):
		case s.Fits:
			ids = append(ids, s.ID)
		default:
			code = prego.CodeInsufficientResources
		}
	}
	if len(ids) > 0 {
		code = ""
	}
	return ids, code
}

// NewConstraintAnswer formats the result of Eligible.
func NewConstraintAnswer(ids []string, code prego.Code) ConstraintAnswer {
	a := ConstraintAnswer{Eligible: ids}
	if code != "" {
		a.Error = &code
	}
	return a
}
