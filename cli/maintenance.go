package cli

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

var maintenanceTable = Table[api.Maintenance]{
	ID: "server_id", Columns: "server_id, kind, status, moved, reason, message, why",
	More: "requested_by: by, deadline_at: deadline, replacement_id: replacement, keep_tenants, run_url: run, created_at, started_at, finished_at",
	Computed: map[string]func(api.Maintenance) any{
		"moved": func(d api.Maintenance) any {
			text := fmt.Sprintf("%d of %d instances", d.Total-d.Left, d.Total)
			if d.TenantsTotal > 0 {
				text = fmt.Sprintf("%d of %d tenants, ", d.TenantsTotal-d.TenantsLeft, d.TenantsTotal) + text
			}
			return text
		},
	},
}

var showMaintenance = Show[api.Maintenance]{
	Use: "maintenance-status SERVER…", Short: "Show how far the emptying of servers is", Path: "/v1/servers/{server}/maintenance", Table: maintenanceTable,
	After: func(in *call, d api.Maintenance) {
		for _, i := range d.Instances {
			fmt.Fprintln(in.w, "  "+remainingText(i))
		}
	},
	Watch: watchMaintenance,
}

// remainingText says about an instance what it waits for.
func remainingText(i api.RemainingInstance) string {
	text := i.InstanceId + " " + i.State
	switch {
	case i.Reason != nil && *i.Reason != "":
		text += ", no place" + reasons(i.Reason, i.Message)
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

var watchMaintenance = Watch[api.Maintenance]{
	Use: "maintenance-watch SERVER", Short: "Follow the emptying of a server", Path: "/v1/servers/{server}/maintenance", Again: "prego server maintenance-watch {server}",
	Lines: func(d api.Maintenance) []line {
		text := fmt.Sprintf("%-22s %s  %s", d.ServerId, d.Status, deref(d.Message))
		return []line{{key: text, at: time.Now(), text: text}}
	},
	Doing: func(d api.Maintenance) string { return fmt.Sprintf("%s of %s is %s", d.Kind, d.ServerId, d.Status) },
	Rests: func(d api.Maintenance) bool { return server.MaintenanceStatus(d.Status).Ended() },
	Outcome: func(_ *call, d api.Maintenance) error {
		if server.MaintenanceStatus(d.Status) != server.MaintenanceDone {
			return fmt.Errorf("%s of server %s is %s%s", d.Kind, d.ServerId, d.Status, reasons(d.Reason, d.Message))
		}
		return nil
	},
	Done: func(_ *call, d api.Maintenance) string {
		return fmt.Sprintf("%s of server %s is %s", d.Kind, d.ServerId, d.Status)
	},
}

func serverMaintenance(kind server.MaintenanceKind) Action[api.Maintenance] {
	var in server.MaintenanceRequest
	var timeout time.Duration
	var wave string
	short := map[server.MaintenanceKind]string{
		server.MaintenanceDrain:   "Cordon servers and move their instances and tenants to others",
		server.MaintenanceReboot:  "Restart servers after their instances and tenants have moved",
		server.MaintenanceResize:  "Resize servers after their instances and tenants have moved; the provider switches them off for minutes",
		server.MaintenancePatch:   "Install security updates on servers after their instances and tenants have moved; they are rebooted if they need it",
		server.MaintenanceReplace: "Replace servers by new ones, after their instances and tenants have moved",
	}[kind]
	destroys := ""
	if kind == server.MaintenanceReplace {
		destroys = "deletes server"
	}
	return Action[api.Maintenance]{
		Use: string(kind) + " SERVER…", Short: short, Path: "/v1/servers/{server}/" + string(kind), Destroys: destroys,
		Example: fmt.Sprintf("  prego server %s app-7%s --timeout 30m --watch", kind, map[server.MaintenanceKind]string{server.MaintenanceResize: " --type cx43"}[kind]),
		Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
			if kind == server.MaintenanceResize {
				f.StringVar(&in.ServerType, "type", "", "type of the provider's, with a disk that is not smaller (required)")
				required(cmd, "type")
			}
			f.StringVar(&in.Reason, "reason", "", "reason for the timeline")
			f.DurationVar(&timeout, "timeout", 0, "how long moving may take (default: as long as it takes)")
			if kind == server.MaintenancePatch {
				f.StringVar(&wave, "wave", "", "wave that the servers are shown in afterwards (default: a new one, if there are several)")
			}
			if kind != server.MaintenanceReplace {
				f.BoolVar(&in.KeepTenants, "keep-tenants", false, "move instances only; tenants stay, and are down during a reboot")
			}
		},
		Body: func(v *call) (any, error) {
			in.TimeoutSeconds = int(timeout / time.Second)
			if kind == server.MaintenancePatch && wave == "" && v.Flags().NArg() > 1 {
				wave = "wave-" + time.Now().UTC().Format("20060102-150405")
				fmt.Fprintf(v.ErrOrStderr(), "wave %s: prego patch-wave show %s\n", wave, wave)
			}
			in.Wave = prego.PatchWaveID(wave)
			if in == (server.MaintenanceRequest{}) {
				return nil, nil //nolint:nilnil // no body
			}
			return in, nil
		},
		Table: maintenanceTable, Watch: watchMaintenance,
		Say: func(_ *call, d api.Maintenance) string {
			return fmt.Sprintf("accepted: %s of server %s, %d instances, %d tenants", d.Kind, d.ServerId, d.Total, d.TenantsTotal)
		},
	}
}

func serverMaintenanceCancel() Action[api.Maintenance] {
	return Action[api.Maintenance]{
		Use: "maintenance-cancel SERVER…", Short: "Cancel maintenance of servers; what has moved stays where it is", Method: http.MethodDelete, Path: "/v1/servers/{server}/maintenance",
		Table: maintenanceTable,
		Say: func(_ *call, d api.Maintenance) string {
			return fmt.Sprintf("cancelled: %s of server %s", d.Kind, d.ServerId)
		},
	}
}
