package console

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// plainly is a command whose flags are called like their fields.
func plainly(words string) cliLine { return cliLine{Words: words} }

// sure is one that asks for a confirmation.
func sure(words string) cliLine { return cliLine{Words: words, Yes: true} }

// flags are a command's words and the flags that are not called like their fields.
func flags(words string, by ...map[string]string) cliLine {
	l := cliLine{Words: words, Flags: map[string]string{}}
	for _, m := range by {
		maps.Copy(l.Flags, m)
	}
	return l
}

// wordless is for what needs no flag: a secret, which the command asks for, or what its words say.
func wordless(any) []string { return []string{} }

// ofSpec are the flags of a server's spec, and ofFleet those of a fleet.
var (
	ofProvider = map[string]string{"infra_provider": "--provider"}
	ofSpec     = map[string]string{"spec.server_type": "--type", "spec.tags": "--tag"}
	ofFleet    = map[string]string{
		"max_size": "--max", "min_size": "--min", "patch_window.schedule": "--patch-window", "patch_window.seconds": "--patch-window-for",
		"workload_disk_bytes": "--workload-disk", "workload_memory_bytes": "--workload-memory",
	}
	ofMove    = map[string]string{"to_server_id": "--to", "to_shard_id": "--shard", "to_pool_id": "--pool"}
	ofTenant  = map[string]string{"data_residency": "--residency", "expected_users": "--users", "storage_quota_gb": "--storage-gb"}
	ofSize    = map[string]string{"size_bytes": "--size"}
	ofRoute   = map[string]string{"hostname": "--host", "listen_port": "--port", "target_port": "--target"}
	ofBackups = map[string]string{"keep_daily": "--days", "keep_weekly": "--weeks", "keep_monthly": "--months"}
	ofGroup   = map[string]string{
		"spec.cpu_request": "--cpu", "spec.memory_limit_bytes": "--memory", "spec.disk_request_bytes": "--disk", "spec.ports": "--port", "spec.volumes": "--volume",
		"spec.health.port": "--health-port", "spec.health.interval_seconds": "--health-interval", "spec.health.timeout_seconds": "--health-timeout",
		"spec.health.retries": "--health-retries", "spec.health.start_period_seconds": "--health-start-period",
	}
	ofWhatIf = map[string]string{
		"change.plan": "--to-plan", "change.region": "--to-region", "change.constraint.require": "--to-require", "change.constraint.disallow": "--to-disallow",
		"change.add_server.role": "--add-server", "change.add_server.region": "--add-region", "change.add_server.network_id": "--add-network", "change.add_server.server_type": "--add-type",
		"change.add_server.tags": "--add-tag", "change.add_server.capacity": "", "change.dedicated_redis": "", "request.override.force_app_server_id": "", "request.override.force_db_shard_id": "", "request.override.ignore_constraint": "", "request.override.reason": "", "request.parent_org_id": "", "request.stack": "", "request.dedicated_redis": "",
	}
)

// cliLines are the commands of operations. TestCommandsDoTheSame runs each of them and compares
// what it asks the API for with what the form does. There are no verbs for patchServer,
// patchTenant and putSitePoolPolicy.
var cliLines = map[string]cliLine{
	// Servers and what runs on them.
	"createServer":      flags("server create {server_id}", ofProvider, ofSpec),
	"importServer":      flags("server import {server_id}", ofProvider, map[string]string{"tags": "--tag"}),
	"cordonServer":      plainly("server cordon {server_id}"),
	"uncordonServer":    plainly("server uncordon {server_id}"),
	"drainServer":       plainly("server drain {server_id}"),
	"cancelMaintenance": plainly("server maintenance-cancel {server_id}"),
	"rebootServer":      plainly("server reboot {server_id}"),
	"installPatches":    plainly("server patch {server_id}"),
	"resizeServer":      flags("server resize {server_id}", map[string]string{"server_type": "--type"}),
	"replaceServer":     {Words: "server replace {server_id}", Flags: map[string]string{"keep_tenants": ""}, Yes: true},
	"retryServer":       plainly("server retry {server_id}"),
	"repairContainers":  plainly("container repair {server_id}"),
	"execOnServer":      {Words: "exec {server_id} {kind}", Rest: "args"},
	"loseServer":        sure("server lost {server_id}"),
	"deleteServer":      sure("server delete {server_id}"),
	"reconcile":         plainly("reconcile"),
	"refreshCatalog":    plainly("catalog refresh"),
	"rotateRegistries":  plainly("registry rotate"),
	"deleteImageDigest": plainly("registry unpin {image}"),
	"putRegistry":       {Words: "registry set {host}", As: map[string]as{"password": wordless}},
	"deleteRegistry":    sure("registry delete {host}"),
	"buildImage":        plainly("image build"),
	"deleteImage":       sure("image delete {image_id}"),

	// Tenants.
	"createTenant":       flags("tenant create {slug}", ofTenant),
	"suspendTenant":      plainly("tenant suspend {tenant_id}"),
	"resumeTenant":       plainly("tenant resume {tenant_id}"),
	"cancelTenant":       plainly("tenant cancel {tenant_id}"),
	"reactivateTenant":   plainly("tenant reactivate {tenant_id}"),
	"retryTenant":        plainly("tenant retry {tenant_id}"),
	"terminateTenant":    sure("tenant terminate {tenant_id}"),
	"cloneTenant":        plainly("tenant clone {tenant_id} {slug}"),
	"unmuteTenant":       plainly("tenant unmute {tenant_id}"),
	"createMove":         flags("tenant move {tenant_id}", ofMove),
	"cancelMove":         plainly("tenant move-cancel {tenant_id} {move_id}"),
	"setAdminPassword":   plainly("tenant password {tenant_id}"),
	"addTenantUser":      {Words: "tenant user add {tenant_id} {email}", As: map[string]as{"password": userPassword}},
	"putStorageQuota":    plainly("tenant storage-quota {tenant_id}"),
	"putTenantMail":      {Of: mailing},
	"deleteTenantMail":   plainly("tenant mail unset {tenant_id}"),
	"createTenantDomain": plainly("domain create {tenant_id} {name}"),
	"createDomain":       plainly("domain claim {org_id} {name}"),
	"checkDomain":        plainly("domain check {domain_id}"),
	"deleteDomain":       sure("domain delete {domain_id}"),
	"renewCertificate":   plainly("certificate renew {certificate_id}"),
	"overridePlacement":  flags("placement override {tenant_id}", map[string]string{"force_app_server_id": "--app-server", "force_db_shard_id": "--db-shard"}),
	"whatIf":             {Words: "placement what-if", Flags: ofWhatIf, As: map[string]as{"request.tenant_id": anybody}},

	// Snapshots, backups, restores and drills.
	"createSnapshot":      plainly("snapshot create {tenant_id}"),
	"deleteSnapshot":      sure("snapshot delete {tenant_id} {snapshot_id}"),
	"createBackup":        plainly("backup create {tenant_id}"),
	"holdBackup":          plainly("backup hold {tenant_id} {backup_id}"),
	"releaseBackup":       plainly("backup release {tenant_id} {backup_id}"),
	"deleteBackup":        sure("backup delete {tenant_id} {backup_id}"),
	"createRestore":       {Of: restoring},
	"createDrill":         plainly("drill create {tenant_id}"),
	"putBackupPolicy":     flags("backup policy set {owner}", ofBackups),
	"deleteBackupPolicy":  sure("backup policy delete {owner}"),
	"holdBackups":         plainly("backup policy hold {owner}"),
	"releaseBackups":      plainly("backup policy release {owner}"),
	"createVolumeBackup":  plainly("volume backup create {volume_id}"),
	"holdVolumeBackup":    plainly("volume backup hold {volume_id} {backup_id}"),
	"releaseVolumeBackup": plainly("volume backup release {volume_id} {backup_id}"),
	"deleteVolumeBackup":  sure("volume backup delete {volume_id} {backup_id}"),
	"createVolumeRestore": sure("volume restore create {volume_id} {backup_id}"),
	"createVolumeDrill":   plainly("volume drill create {volume_id}"),

	// Fleets, policies and pools.
	"createFleet":               flags("fleet create {fleet_id}", ofProvider, ofSpec, ofFleet),
	"updateFleet":               flags("fleet update {fleet_id}", ofSpec, ofFleet, map[string]string{"constraint.require": "", "constraint.disallow": ""}),
	"deleteFleet":               sure("fleet delete {fleet_id}"),
	"createFleetAction":         {Of: acting},
	"cancelFleetAction":         plainly("fleet cancel {fleet_id} {seq}"),
	"attachPolicy":              {Words: "fleet attach {fleet_id} {policy_id}", As: map[string]as{"enabled": unlessDisabled}},
	"detachPolicy":              plainly("fleet detach {fleet_id} {policy_id}"),
	"createPolicy":              {Words: "policy create {policy_id} --type {type} --spec -", Input: "spec"},
	"putPolicy":                 {Words: "policy update {policy_id} --spec -", Input: "spec"},
	"deletePolicy":              sure("policy delete {policy_id}"),
	"putWarmPool":               plainly("pool warm set {region} {plan} {target}"),
	"refillSitePool":            plainly("pool refill {server_id}"),
	"createPlacementPool":       plainly("placement-pool create {name}"),
	"putPlacementPool":          plainly("placement-pool update {pool}"),
	"deletePlacementPool":       sure("placement-pool delete {pool}"),
	"setDefaultPlacementPool":   plainly("placement-pool default {pool}"),
	"unsetDefaultPlacementPool": plainly("placement-pool default {pool} --unset"),
	"associatePlacementPool":    plainly("placement-pool associate {org_id} {pool}"),
	"dissociatePlacementPool":   plainly("placement-pool dissociate {org_id} {pool}"),
	"createRebalance":           {Words: "rebalance start --plan -", Input: "plan"},
	"cancelRebalance":           plainly("rebalance cancel {rebalance_id}"),

	// Orgs and what they run.
	"putOrg":           flags("org set {org_id}"),
	"setOrgQuota":      plainly("quota set {org_id} {dimension} {limit}"),
	"unsetOrgQuota":    plainly("quota unset {org_id} {dimension}"),
	"setBackupLimit":   flags("backup space set {org_id}", map[string]string{"limit_bytes": "--limit"}),
	"unsetBackupLimit": plainly("backup space unset {org_id}"),
	"createApp":        plainly("app create {name}"),
	"deleteApp":        sure("app delete {app_id}"),
	"createEnv":        plainly("env create {name} --app {app_id}"),
	"deleteEnv":        sure("env delete {env_id}"),
	"enableIPv4":       plainly("ipv4 enable {env_id}"),
	"disableIPv4":      sure("ipv4 disable {env_id}"),
	"createRoute":      flags("route create {env_id}", ofRoute),
	"deleteRoute":      sure("route delete {env_id} {route_id}"),
	"createGroup":      {Of: grouping},
	// The flags of group deploy change the present release; the form says the whole of the next one.
	"deployGroup":   {Words: "group deploy {group_id} --file -", Input: "spec"},
	"scaleGroup":    plainly("group scale {group_id} {replicas}"),
	"rollBackGroup": flags("group rollback {group_id}", map[string]string{"release": "--to"}),
	"restartGroup":  plainly("group restart {group_id}"),
	"pauseGroup":    plainly("group pause {group_id}"),
	"resumeGroup":   plainly("group resume {group_id}"),
	"deleteGroup":   sure("group delete {group_id}"),
	"createVolume":  flags("volume create {org_id} {name}", ofSize),
	"growVolume":    flags("volume grow {volume_id}", ofSize),
	"attachVolume":  flags("volume attach {volume_id} {group_id}", map[string]string{"mount_path": "--mount"}),
	"detachVolume":  plainly("volume detach {volume_id} {attachment_id}"),
	"cloneVolume":   flags("volume clone {volume_id} {name}", ofSize),
	"deleteVolume":  {Words: "volume delete {volume_id}", Flags: map[string]string{"no_final_backup_reason": "--no-final-backup"}, Yes: true},

	// Releases.
	"createRelease":      {Words: "release create {name}", As: map[string]as{"apps": pairs("--apps"), "rings": rings}},
	"startRelease":       plainly("release start {name}"),
	"pauseRelease":       plainly("release pause {name}"),
	"resumeRelease":      plainly("release resume {name}"),
	"cancelRelease":      plainly("release cancel {name}"),
	"startAgentRelease":  plainly("agent release start {version}"),
	"pauseAgentRelease":  plainly("agent release pause {version}"),
	"cancelAgentRelease": plainly("agent release cancel {version}"),
}

// mailing says whether to use STARTTLS, which the command does unless it is told otherwise.
func mailing(body object) cliLine {
	l := cliLine{Words: "tenant mail set {tenant_id}", As: map[string]as{"password": wordless}}
	if body.at("tls") == nil {
		l.Words += " --tls=false"
	}
	return l
}

// anybody is the tenant of a request that is not there yet; the command can't give it another id.
func anybody(v any) []string {
	if v == "what-if" {
		return []string{}
	}
	return nil
}

// userPassword says whether a user is given a password, which is what happens by itself.
func userPassword(v any) []string {
	if v == "none" {
		return []string{"--no-password"}
	}
	return []string{}
}

// unlessDisabled says of a policy that it is not to be enabled.
func unlessDisabled(v any) []string {
	if v == false {
		return []string{"--disabled"}
	}
	return []string{}
}

// pairs are a flag for each name and value of an object.
func pairs(flag string) as {
	return func(v any) []string {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		args := []string{}
		for _, name := range slices.Sorted(maps.Keys(m)) {
			args = append(args, flag, listed(name+"="+flat(m[name])))
		}
		return args
	}
}

// rings are those of a release as the command makes them: tenants first, then shares of the
// servers, then the rest, with the same time in between.
func rings(v any) []string {
	list, ok := v.([]any)
	if !ok || len(list) < 2 {
		return nil
	}
	args, shares := []string{}, 0
	soak, _ := list[0].(map[string]any)["soak_seconds"].(json.Number)
	for i, e := range list {
		r, ok := e.(map[string]any)
		if !ok {
			return nil
		}
		name, _ := r["name"].(string)
		tenants, _ := r["tenants"].([]any)
		percent, share := r["percent"].(json.Number)
		waits, _ := r["soak_seconds"].(json.Number)
		switch {
		case i == len(list)-1:
			if name != "rest" || share || tenants != nil || waits != "" {
				return nil
			}
		case waits != soak:
			return nil
		case i == 0 && name == "canary" && tenants != nil && !share:
			for _, t := range tenants {
				args = append(args, "--canary", flat(t))
			}
		case share && tenants == nil:
			args = append(args, "--ring", listed(name+"="+percent.String()))
			shares++
		default:
			return nil
		}
	}
	if shares == 0 {
		return nil
	}
	if soak != "" {
		args = append(args, "--soak", soak.String()+"s")
	}
	return args
}

// restoring is from a backup or a snapshot, or elsewhere after a loss.
func restoring(body object) cliLine {
	if body.at("elsewhere") == true {
		return cliLine{Words: "restore elsewhere {tenant_id}", Flags: map[string]string{"snapshot_id": ""}, As: map[string]as{"elsewhere": wordless}}
	}
	l := cliLine{Words: "restore create {tenant_id} {backup_id}", Flags: map[string]string{"snapshot_id": ""}, As: map[string]as{"elsewhere": wordless}, Yes: true}
	if body.at("snapshot_id") != nil {
		l.Words, l.Flags = "restore create {tenant_id} {snapshot_id}", map[string]string{"backup_id": ""}
	}
	return l
}

// actions are the verbs of fleets' actions, and their flags by input.
var actions = map[string]struct {
	verb  string
	flags map[string]string
	yes   bool
}{
	"CLUSTER_SCALE_OUT": {"scale-out", map[string]string{"count": "--count", "regions": "--region"}, false},
	"CLUSTER_SCALE_IN":  {"scale-in", map[string]string{"count": "--count"}, true},
	"CLUSTER_RESIZE":    {"resize", map[string]string{"min_step": "--min-step", "min_size": "--min", "max_size": "--max"}, true},
	"CLUSTER_REPLACE":   {"replace", map[string]string{"max_surge": "--max-surge", "grace_period": "--grace-period"}, true},
	"NODE_CREATE":       {"node-create", map[string]string{"region": "--region"}, false},
}

// acting is the verb of a fleet's action.
func acting(body object) cliLine {
	kind, _ := body.at("action").(string)
	verb, ok := actions[kind]
	if !ok {
		verb = actions["CLUSTER_SCALE_OUT"]
	}
	return cliLine{
		Words: "fleet " + verb.verb + " {fleet_id}", Yes: verb.yes,
		As: map[string]as{"action": wordless, "inputs": func(v any) []string {
			inputs, ok := v.(map[string]any)
			if !ok {
				return nil
			}
			args := []string{}
			for _, name := range slices.Sorted(maps.Keys(inputs)) {
				v := inputs[name]
				flag := verb.flags[name]
				switch {
				case verb.verb == "resize" && name == "adjustment_type":
					flag, v = map[string]string{"EXACT_CAPACITY": "--to", "CHANGE_IN_CAPACITY": "--by", "CHANGE_IN_PERCENTAGE": "--percent"}[flat(v)], inputs["number"]
				case verb.verb == "resize" && name == "number" && inputs["adjustment_type"] != nil:
					continue
				case verb.verb == "resize" && name == "strict" && v == false:
					args = append(args, "--best-effort")
					continue
				case name == "grace_period":
					v = flat(v) + "s"
				}
				if flag == "" || v == nil {
					return nil
				}
				args = append(args, cliLine{Flags: map[string]string{name: flag}}.arguments(name, v)...)
			}
			return args
		}},
	}
}

// grouping is with flags if they can say what the first release is, and otherwise with its spec.
func grouping(body object) cliLine {
	l := cliLine{Words: "group create {env_id} {name}", Flags: ofGroup, Rest: "spec.command"}
	text := func(field string) string { s, _ := body.at(field).(string); return s }
	check, args := text("spec.health.kind"), []string{}
	path, port, command := text("spec.health.path"), body.at("spec.health.port"), body.at("spec.health.command")
	switch {
	case check == "http" && path != "" && command == nil:
		args = []string{"--health-http", path}
	case check == "tcp" && port != nil && path == "" && command == nil:
		args = []string{"--health-tcp", flat(port)}
	case check == "command" && command != nil && path == "" && port == nil:
		var list []string
		if all, ok := command.([]string); ok {
			for _, e := range all {
				list = append(list, listed(e))
			}
		}
		args = []string{"--health-command", strings.Join(list, ",")}
	case body.at("spec.health") != nil:
		check = "none of the flags'"
	}
	l.As = map[string]as{"spec.health.kind": func(any) []string { return args }, "spec.health.path": wordless, "spec.health.command": wordless}
	if check == "tcp" {
		l.As["spec.health.port"] = wordless
	}
	whole := body.at("spec.start_timeout_seconds") != nil || check == "none of the flags'"
	for _, f := range []string{"spec.image", "spec.memory_limit_bytes", "spec.cpu_request"} { // the flags have values of their own
		whole = whole || body.at(f) == nil
	}
	if whole && body.at("spec") != nil {
		return cliLine{Words: "group create {env_id} {name} --file -", Input: "spec"}
	}
	return l
}
