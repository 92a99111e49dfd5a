package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prego/prego/api"
)

// movedBetween names a place by the servers that hold or will hold a tenant.
func movedBetween(ids ...*string) string {
	var out []string
	for _, id := range ids {
		if id != nil && *id != "" && !slices.Contains(out, *id) {
			out = append(out, *id)
		}
	}
	return strings.Join(out, ", ")
}

var watchMove = Watch[api.Move]{
	Path: "/v1/tenants/{tenant}/moves/{move}", Again: "prego tenant move-show {tenant} {move} --watch",
	Line:  func(m api.Move) string { return fmt.Sprintf("%-22s %s  %s", m.MoveId, m.State, deref(m.Message)) },
	Doing: func(m api.Move) string { return fmt.Sprintf("the move of %s is %s", m.TenantId, m.State) },
	// It is done for the tenant once it is open; the previous server is cleared later.
	Rests:  func(m api.Move) bool { return m.State.Ended() || m.OpenedAt != nil },
	Wanted: func(_ *call, m api.Move) bool { return m.OpenedAt != nil },
	Is: func(m api.Move) standing {
		return standing{fmt.Sprint("the move of tenant ", m.TenantId), string(m.State), m.Reason, m.Message}
	},
	Done: func(_ *call, m api.Move) string {
		text := fmt.Sprintf("tenant %s moved from %s to %s", m.TenantId, movedBetween(&m.FromServerId, m.FromShardId, m.FromPoolId), movedBetween(m.ToServerId, m.ToShardId, m.ToPoolId))
		if m.DowntimeMs != nil {
			text += fmt.Sprintf("; it could not be written to for %d ms", *m.DowntimeMs)
		}
		return text
	},
}
