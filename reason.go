package prego

// Reasons of failed and deleted images.
const (
	// ReasonBuilderNotMade: no machine could be had to build on.
	ReasonBuilderNotMade Reason = "builder_not_made"
	// ReasonBuilderLost: the builder was gone before it had finished.
	ReasonBuilderLost Reason = "builder_lost"
	// ReasonBuildTimeout: the builder did not finish in time; it powers itself off when
	// it has, and only then.
	ReasonBuildTimeout Reason = "build_timeout"
	// ReasonSnapshotFailed: the provider did not make the snapshot.
	ReasonSnapshotFailed Reason = "snapshot_failed"
	// ReasonVerificationFailed: no server became active from it.
	ReasonVerificationFailed Reason = "verification_failed"
	// ReasonBuildCancelled: it was deleted during the build.
	ReasonBuildCancelled Reason = "build_cancelled"
	// ReasonGoneAtProvider: the provider no longer has it.
	ReasonGoneAtProvider Reason = "gone_at_provider"
	// ReasonRotated: newer ones took its place.
	ReasonRotated Reason = "rotated"
)

// Reasons of addresses and volumes that are not there. The first two are the
// provider's capacity, never the org's quota (quotas-and-fairness, "Capacity
// constraints vs quota constraints").
const (
	ReasonIPAMExhausted    Reason = "ipam_exhausted"
	ReasonNoCapacityVolume Reason = "no_capacity_volume"
	ReasonProviderRefused  Reason = "provider_refused"
	ReasonNotAttached      Reason = "not_attached" // a volume, where its row has it
	ReasonResourceMissing  Reason = "missing_at_provider"
)

// Reason explains a server's state. Reasons are stable.
type Reason string

// Reasons of failed servers (direct-provisioning §2 "Per-step contracts", §3).
const (
	// ReasonFailedCreate: the provider refused the server permanently, or every
	// candidate and retry was used up.
	ReasonFailedCreate Reason = "failed_create"
	// ReasonFailedBoot: the provider never reported the server as running, or the host
	// reported that its boot failed.
	ReasonFailedBoot Reason = "failed_boot"
	// ReasonFailedHandshake: no agent presented the token in time.
	ReasonFailedHandshake Reason = "failed_handshake"
	// ReasonClockSkew: the host's clock and the control plane's differ by more than
	// tokens and certificates forgive, and nothing set it right in time.
	ReasonClockSkew Reason = "clock_skew"
	// ReasonFailedBootstrap: the token was presented by a second key.
	ReasonFailedBootstrap Reason = "failed_bootstrap"
	// ReasonFailedNoHeartbeat: the agent shook hands and then stayed silent.
	ReasonFailedNoHeartbeat Reason = "failed_no_heartbeat"
	// ReasonFailedContainer: the role's containers did not start. The server is
	// kept for debugging.
	ReasonFailedContainer Reason = "failed_container"
	// ReasonFailedCapacity: no candidate had capacity or quota before the
	// deadline for waiting ran out.
	ReasonFailedCapacity Reason = "failed_capacity"
	// ReasonFailedInternal: provisioning ended for a reason of the control plane's
	// own, after cleaning up.
	ReasonFailedInternal Reason = "failed_internal"
	// ReasonHeartbeatLost: an active server's agent was silent for 300 s.
	ReasonHeartbeatLost Reason = "heartbeat_lost"
	// ReasonServerMissing: the provider no longer has the server of this row.
	ReasonServerMissing Reason = "server_missing"
	// ReasonServerLost: the server that had the tenant's site or database is gone.
	ReasonServerLost Reason = "server_lost"
	// ReasonAwaitingCapacity is the reason of a provisioning server that waits
	// for stock or account quota.
	ReasonAwaitingCapacity Reason = "awaiting_capacity"
	// ReasonAwaitingProvider is the reason of a provisioning server whose create calls failed at the
	// provider (a 5xx, a timeout, a rate limit); they are repeated after a pause.
	ReasonAwaitingProvider Reason = "awaiting_provider"
	// ReasonDecommission is the reason of a draining or terminated server.
	ReasonDecommission Reason = "decommission_requested"
)

// Reasons of tenants, beside the reasons of servers.
const (
	// ReasonFailedPlacement: no placement can ever satisfy the request.
	ReasonFailedPlacement Reason = "failed_placement"
	// ReasonFailedServer: the tenant's own server did not come to life.
	ReasonFailedServer Reason = "failed_server"
	// ReasonFailedSite: the site could not be made or promoted.
	ReasonFailedSite Reason = "failed_site"
	// ReasonFailedApps: an app could not be installed.
	ReasonFailedApps Reason = "failed_apps"
	// ReasonFailedRestore: the backup for its site could not be restored.
	ReasonFailedRestore Reason = "failed_restore"
	// ReasonCancelled: the caller cancelled the provisioning.
	ReasonCancelled Reason = "cancelled"
	// ReasonCellMismatch: no server satisfies the tenant's constraint
	// (placement-pools, "Auctioneer").
	ReasonCellMismatch Reason = "cell_mismatch"
	// ReasonAwaitingSite: the placement holds until a pool site is ready.
	ReasonAwaitingSite Reason = "awaiting_site"
	// ReasonAwaitingEdge: the site is built, and no edge has opened it yet.
	ReasonAwaitingEdge Reason = "awaiting_edge"
	// ReasonBuildingServer: the tenant's own server is being provisioned.
	ReasonBuildingServer Reason = "building_server"
	// ReasonTrialExpired, ReasonGraceOver and ReasonRetentionOver are the timers'.
	ReasonTrialExpired  Reason = "trial_expired"
	ReasonGraceOver     Reason = "grace_period_over"
	ReasonRetentionOver Reason = "retention_over"
)
