package cli

import (
	"time"

	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// computers compute the columns that no field holds, by schema.
var computers = map[string]computer{
	"ActivationStats": activationColumns, "AgentRelease": agentReleaseColumns, "AuditEntry": auditColumns,
	"BackupPolicy": backupPolicyColumns, "Maintenance": maintenanceColumns, "Fleet": fleetColumns,
	"Instance": instanceColumns, "LimitRequest": limitRequestColumns, "OrgQuota": quotaColumns, "ProcessGroup": groupColumns, "Server": serverColumns,
	"StackRelease": releaseColumns, "Tenant": tenantColumns,
}

// hooks are what the program adds to commands of the contract, by their words. An image whose build is cancelled has
// failed, as requested.
var hooks = map[string]hook{
	"agent release cancel": {watch: watchAgentRelease}, "agent release create": createAgentRelease,
	"agent release pause": {watch: watchAgentRelease}, "agent release show": showAgentRelease,
	"agent release start": {watch: watchAgentRelease}, "backup create": {watch: watchBackup},
	"backup policy get": {after: more(showPolicyChanges)},
	"backup show":       {watch: watchBackup}, "volume backup create": {watch: watchVolumeBackup},
	"volume backup show": {watch: watchVolumeBackup},
	"backup space show":  {after: more(showBackupSpace)}, "console": {say: said(consoleLink)},
	"invitation create": {say: said(invitationLink)},
	"container logs":    printed, "container repair": {wait: 16 * time.Minute, say: said(repaired)},
	"decision replay": {say: said(replayText)}, "decision show": {after: more(showDecision)},
	"domain claim": {say: said(recordsText)}, "domain create": {say: said(recordsText)}, "exec": exec,
	"fleet action": showAction, "fleet attach": attachPolicy, "fleet create": createFleet,
	"fleet map": {say: said(mapText)}, "fleet node-create": fleetAction, "fleet replace": fleetAction,
	"fleet resize": resizeFleet, "fleet scale-in": fleetAction, "fleet scale-out": fleetAction,
	"fleet show": {after: fleetPolicies}, "fleet update": updateFleet, "group create": createGroup,
	"group deploy": deployGroup, "group restart": {watch: groupWatch}, "group resume": {watch: groupWatch},
	"group rollback": {watch: groupWatch}, "group scale": {watch: groupWatch}, "group show": {watch: groupWatch},
	"image build": {watch: imageWatch(server.ImageReady)}, "image show": {watch: imageWatch()},
	"image delete": {watch: imageWatch(server.ImageDeleted, server.ImageFailed)}, "instance logs": printed,
	"ledger list": untracked, "operation show": {watch: watchOperation}, "patch-wave show": {after: showWave},
	"placement override": override, "placement simulate": simulate, "placement what-if": whatIf,
	"placement-pool associate": poolsOf, "placement-pool default": defaultPool, "placement-pool dissociate": poolsOf,
	"policy create": createPolicy, "policy update": updatePolicy, "quota set": setQuota, "limit-request create": setQuota,
	"rebalance plan": planRebalance, "rebalance show": showMoves, "rebalance start": startRebalance,
	"registry rotate": {after: more(showRegistries)}, "release cancel": {watch: watchRelease},
	"release create": createRelease, "release pause": {watch: watchRelease}, "release resume": {watch: watchRelease},
	"release show": showRelease, "release start": {watch: watchRelease}, "restore create": createRestore,
	"server create": {watch: watchServer(server.Active)}, "server delete": {watch: watchServer(server.Terminated)},
	"server drain": {watch: watchMaintenance, tried: destinations}, "server maintenance-status": showMaintenance,
	"server import": {say: said(importText)}, "server lose": {watch: watchServer(server.Terminated)},
	"server patch": installPatches, "server reboot": {watch: watchMaintenance},
	"server replace": {watch: watchMaintenance}, "server resize": {watch: watchMaintenance},
	"server retry": {watch: watchServer(server.Active)}, "server show": showServer, "tenant cancel": cancelTenant,
	"tenant clone":  {watch: watchTenant(tenantIs(tenant.Active))},
	"tenant create": {watch: watchTenant(tenantIs(tenant.Active))}, "tenant mail set": setMail,
	"tenant mail unset": {wait: siteWait}, "tenant move": {watch: watchMove}, "tenant move-show": {watch: watchMove},
	"tenant password": {wait: siteWait, after: passwordOnce}, "tenant reactivate": tenantChanges,
	"tenant resume": tenantChanges, "tenant retry": {watch: watchTenant(tenantIs(tenant.Active))},
	"tenant show": showTenant, "tenant storage-quota": storageQuota, "tenant suspend": tenantChanges,
	"tenant terminate": tenantChanges, "tenant user add": addUser, "volume create": createVolume,
	"whoami": whoami,
}
