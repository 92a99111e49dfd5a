package prego

// Names of the metrics that deploy/alerts.yaml watches, shared by code and alerts.
const (
	MetricQuotaRejections   = "prego_quota_rejections_total"              // counter: endpoint, dimension
	MetricOrgQuotaUsage     = "prego_org_quota_usage"                     // gauge: org, dimension
	MetricOrgQuotaLimit     = "prego_org_quota_limit"                     // gauge: org, dimension
	MetricOrgQuotaRatio     = "prego_org_quota_usage_ratio"               // gauge: org, dimension
	MetricOrgQuotaReadAge   = "prego_org_quota_read_age_seconds"          // gauge
	MetricOrgQuotaDrift     = "prego_org_quota_drifted_orgs"              // gauge
	MetricGroupsUnscheduled = "prego_groups_unschedulable"                // gauge: reason
	MetricInstanceSchedule  = "prego_instance_schedule_seconds"           // histogram
	MetricSitesByStorage    = "prego_sites_by_storage_level"              // gauge: level
	MetricUnmeasured        = "prego_site_measurements_failed_total"      // counter
	MetricAilingHosts       = "prego_agentgw_ailing_hosts_total"          // counter: what
	MetricCatalogRefreshed  = "prego_catalog_refreshed_timestamp_seconds" // gauge: provider
	MetricCatalogProblems   = "prego_catalog_problems"                    // gauge: provider, kind
	MetricCostMonth         = "prego_cost_month"                          // gauge: kind, currency
	MetricCostMonthIdle     = "prego_cost_month_idle"                     // gauge: kind, currency
	MetricUntracked         = "prego_untracked_resources"                 // gauge: kind
	MetricUnpriced          = "prego_cost_unpriced_resources"             // gauge
	MetricCostsCounted      = "prego_cost_counted_timestamp_seconds"      // gauge
	MetricImageBuilds       = "prego_image_builds_total"                  // counter: outcome
	MetricBackups           = "prego_backups_total"                       // counter: kind, outcome
	MetricBenchUpdates      = "prego_bench_updates_total"                 // counter: outcome
	MetricBackupsLate       = "prego_backups_late"                        // gauge
	MetricDrillsFailed      = "prego_drills_failed"                       // gauge
	MetricDrillsLate        = "prego_drills_late"                         // gauge
	MetricTenantsLost       = "prego_tenants_lost"                        // gauge
	MetricBackupObjects     = "prego_backup_objects_mismatched"           // gauge: what
	MetricBackupsOver       = "prego_backup_orgs_over_limit"              // gauge
	MetricMaintenancesStuck = "prego_server_maintenances_stuck"           // gauge: kind, status
	MetricUnpatched         = "prego_servers_unpatched"                   // gauge: region, role
	MetricCertificateEnds   = "prego_certificate_expires_seconds"         // gauge
	MetricCertificateTries  = "prego_certificate_attempts_total"          // counter: outcome
	MetricCertificates      = "prego_certificates"                        // gauge: state
	MetricImageFallbacks    = "prego_image_fallbacks_total"               // counter
	MetricLookedAt          = "prego_look_timestamp_seconds"              // gauge: look
	MetricLookInterval      = "prego_look_interval_seconds"               // gauge: look
	MetricLookFailing       = "prego_look_failing"                        // gauge: look
)

// Metrics maps those names to their labels.
func Metrics() map[string][]string {
	return map[string][]string{
		MetricQuotaRejections:   {"endpoint", "dimension"},
		MetricOrgQuotaUsage:     {"org", "dimension"},
		MetricOrgQuotaLimit:     {"org", "dimension"},
		MetricOrgQuotaRatio:     {"org", "dimension"},
		MetricOrgQuotaReadAge:   {},
		MetricOrgQuotaDrift:     {},
		MetricGroupsUnscheduled: {"reason"},
		MetricInstanceSchedule:  {},
		MetricSitesByStorage:    {"level"},
		MetricUnmeasured:        {},
		MetricAilingHosts:       {"what"},
		MetricCostMonth:         {"kind", "currency"},
		MetricCostMonthIdle:     {"kind", "currency"},
		MetricUntracked:         {"kind"},
		MetricUnpriced:          {},
		MetricCostsCounted:      {},
		MetricCatalogRefreshed:  {"provider"},
		MetricCatalogProblems:   {"provider", "kind"},
		MetricImageBuilds:       {"outcome"},
		MetricBackups:           {"kind", "outcome"},
		MetricBenchUpdates:      {"outcome"},
		MetricBackupsLate:       {},
		MetricDrillsFailed:      {},
		MetricDrillsLate:        {},
		MetricTenantsLost:       {},
		MetricBackupObjects:     {"what"},
		MetricBackupsOver:       {},
		MetricMaintenancesStuck: {"kind", "status"},
		MetricUnpatched:         {"region", "role"},
		MetricCertificateEnds:   {},
		MetricCertificateTries:  {"outcome"},
		MetricCertificates:      {"state"},
		MetricImageFallbacks:    {},
		MetricLookedAt:          {"look"},
		MetricLookInterval:      {"look"},
		MetricLookFailing:       {"look"},
	}
}
