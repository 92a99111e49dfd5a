package cli

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
)

// remainingText reports what an instance waits for.
func remainingText(i api.RemainingInstance) string {
	text := fmt.Sprintf("instance %s of group %s %s", i.InstanceId, i.GroupName, i.State)
	switch {
	case i.Reason != nil && *i.Reason != "":
		text += ", no place" + why(i.Reason, i.Message)
	case i.Leaving:
		text += ", being replaced"
	default:
		text += ", waits for its org's limit"
	}
	if i.StopsFirst {
		text += ", stops before its replacement starts"
	}
	return text
}

// remainingTenantText reports what a tenant waits for.
func remainingTenantText(t api.RemainingTenant) string {
	text := fmt.Sprintf("tenant %s (%s) %s", t.Slug, t.TenantId, t.State)
	switch {
	case t.MoveState != nil:
		return text + ", its move is " + *t.MoveState + why(t.Reason, t.Message)
	case t.Reason != nil:
		return text + ", not moved" + why(t.Reason, t.Message)
	}
	return text + ", waits for its turn"
}

var watchMaintenance = Watch[api.Maintenance]{
	Use: "maintenance-watch SERVER", Short: "Follow the emptying of a server", Path: "/v1/servers/{server}/maintenance", Again: "prego server maintenance-watch {server}",
	Line: func(d api.Maintenance) string {
		return fmt.Sprintf("%-22s %s  %s", d.ServerId, d.Status, deref(d.Message))
	},
	Doing: func(d api.Maintenance) string { return fmt.Sprintf("%s of %s is %s", d.Kind, d.ServerId, d.Status) },
	Rests: func(d api.Maintenance) bool { return server.MaintenanceStatus(d.Status).Ended() },
	Wanted: func(_ *call, d api.Maintenance) bool {
		return server.MaintenanceStatus(d.Status) == server.MaintenanceDone
	},
	Is: func(d api.Maintenance) standing {
		return standing{fmt.Sprintf("%s of server %s", d.Kind, d.ServerId), string(d.Status), d.Reason, d.Message}
	},
	Done: func(_ *call, d api.Maintenance) string {
		return fmt.Sprintf("%s of server %s is %s", d.Kind, d.ServerId, d.Status)
	},
}

// mostDestinations bounds the questions about where tenants would go.
const mostDestinations = 50

// destinations shows where tenants would be moved to as things are now, each by itself.
func destinations(in *call, i impact.Impact) error {
	asked := 0
	for _, a := range i.Affected {
		if a.Kind != "tenant" {
			continue
		}
		if asked++; asked > mostDestinations {
			fmt.Fprintf(in.w, "… and %d more things\n", len(i.Affected)-mostDestinations)
			break
		}
		var r api.WhatIfResult
		body := object{"tenant_id": a.ID, "change": object{"cordon": []string{in.args["server_id"]}}}
		if err := in.client.Do(in.Context(), http.MethodPost, "/v1/placements/what-if", nil, body, &r); err != nil {
			return err
		}
		fmt.Fprintf(in.w, "tenant %s would go: %s\n", cmp.Or(a.Name, a.ID), placeText(r.Changed.Line))
	}
	return nil
}

var maintenanceColumns = computed(map[string]func(api.Maintenance) string{
	"moved": func(d api.Maintenance) string {
		text := fmt.Sprintf("%d of %d instances", d.Total-d.Left, d.Total)
		if d.TenantsTotal > 0 {
			text = fmt.Sprintf("%d of %d tenants, ", d.TenantsTotal-d.TenantsLeft, d.TenantsTotal) + text
		}
		return text
	},
})

var showMaintenance = hook{watch: watchMaintenance, after: more(func(in *call, d api.Maintenance) error {
	for _, t := range d.Tenants {
		fmt.Fprintln(in.w, "  "+remainingTenantText(t))
	}
	for _, i := range d.Instances {
		fmt.Fprintln(in.w, "  "+remainingText(i))
	}
	return nil
})}

// installPatches puts several servers in one wave.
var installPatches = hook{watch: watchMaintenance, body: func(in *call, body object) (any, error) {
	if wave := in.Flag("wave"); wave.Value.String() == "" && in.Flags().NArg() > 1 {
		if err := wave.Value.Set("wave-" + time.Now().UTC().Format("20060102-150405")); err != nil {
			return nil, err
		}
		fmt.Fprintf(in.ErrOrStderr(), "wave %s: prego patch-wave show %s\n", wave.Value, wave.Value)
	}
	if wave := in.text("wave"); wave != "" {
		body["wave"] = wave
	}
	return body, nil
}}
