package placement

import "github.com/prego/prego"

// TaggedServer is a server as a constraint sees it.
type TaggedServer struct {
	ID   string
	Tags []string // lower-case
	Fits bool     // has room for the work
}

// Eligible lists the servers that satisfy the constraint and have room, in the
// order given. When there is none, the code says why (placement-pools,
// "Auctioneer"): CodeCellMismatch only when no server at all satisfies the
// constraint, CodeInsufficientResources only when some do and none has room. It is
// "" otherwise. The constraint is normalized.
func Eligible(servers []TaggedServer, c prego.Constraint) (ids []string, code prego.Code) {
	ids, code = []string{}, prego.CodeCellMismatch
	for _, s := range servers {
		switch {
		case !Satisfies(s.Tags, c):
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
