package api

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/cost"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/org"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// shownTypes are the types of the contract that show an area's type, and the fields that handlers add.
var shownTypes = []struct {
	view, of any
	added    string
}{
	{ServiceAccount{}, access.Account{}, ""},
	{Token{}, access.Issued{}, "token_id"},
	{CreatedToken{}, access.Issued{}, "progress_url secret token_id"},
	{LoginSession{}, access.Issued{}, "login_id"},
	{Grant{}, access.Granted{}, ""},
	{AccessRole{}, access.CustomRole{}, "built_in except"},
	{User{}, access.Person{}, "grants"},
	{Tenant{}, tenant.Tenant{}, "allocation backup_due_since certificate cost decision last_drill last_restorable loss run_url site_health site_url storage timeline uptime workflow_id"},
	{TenantSummary{}, tenant.Listed{}, "site_url"},
	{TenantEvent{}, tenant.Event{}, ""},
	{Decision{}, tenant.Decision{}, "decision_log policy"},
	{Allocation{}, tenant.Allocation{}, "decision"},
	{Registry{}, server.Registry{}, ""},
	{ImageDigest{}, server.ImageDigest{}, ""},
	{Move{}, tenant.Move{}, "operation"},
	{Snapshot{}, tenant.Snapshot{}, "operation"},
	{RestoreJob{}, tenant.RestoreJob{}, "operation"},
	{Backup{}, tenant.Backup{}, "operation verified"},
	{VolumeBackup{}, tenant.Backup{}, "operation verified"},
	{VolumeRestore{}, workload.VolumeRestore{}, "operation"},
	{LastRestorable{}, tenant.Restorable{}, "verified"},
	{SiteHealth{}, tenant.SiteHealth{}, ""},
	{Uptime{}, tenant.Uptime{}, "uptime_pct"},
	{TenantLoss{}, tenant.Loss{}, "lost_minutes"},
	{Fleet{}, server.Fleet{}, "run_url"},
	{FleetMapServer{}, server.FleetTile{}, ""},
	{FleetMapGroup{}, server.FleetTile{}, ""},
	{Policy{}, server.FleetPolicy{}, ""},
	{FleetAction{}, server.FleetAction{}, "operation run_url"},
	{ServerSample{}, server.Sample{}, ""},
	{ServerSummary{}, server.Server{}, ""},
	{Server{}, server.Server{}, "agent cost holds maintenance provider run_url timeline"},
	{Agent{}, server.Server{}, "first_seen_at last_heartbeat_at tags_differ version"},
	{ProviderServer{}, server.Server{}, "ipv4 network"},
	{Event{}, server.Event{}, ""},
	{ServerSpec{}, server.Spec{}, ""},
	{PackageUpdate{}, server.PackageUpdate{}, ""},
	{AgentRelease{}, server.AgentRelease{}, "servers"},
	{App{}, workload.App{}, ""},
	{Env{}, workload.Env{}, ""},
	{Attention{}, attention.Item{}, ""},
	{AuditEntry{}, ops.AuditEntry{}, "encoding hash new old prev_hash"},
	{AuditVerification{}, ops.AuditVerification{}, "ok"},
	{BackupPolicy{}, tenant.BackupPolicy{}, "changes hold keep_daily keep_monthly keep_weekly next owner source spread_seconds"},
	{BackupSpace{}, tenant.BackupSpace{}, "over source"},
	{Certificate{}, tenant.Certificate{}, "operation orders"},
	{CertificateOrder{}, tenant.CertificateOrder{}, ""},
	{LedgerResource{}, cost.Resource{}, "owner price_known price_month"},
	{Domain{}, org.Domain{}, "records"},
	{Drill{}, tenant.Drill{}, ""},
	{VolumeDrill{}, tenant.Drill{}, "entries"},
	{FeedEvent{}, ops.Event{}, ""},
	{ProcessGroup{}, workload.Group{}, "operation run_url"},
	{Instance{}, workload.Instance{}, "cpu_request disk_request_bytes image memory_limit_bytes"},
	{Rollout{}, workload.Rollout{}, "spec_digest"},
	{GoldenImage{}, server.GoldenImage{}, "operation"},
	{Maintenance{}, server.Maintenance{}, "instances operation run_url tenants"},
	{RemainingTenant{}, server.RemainingTenant{}, ""},
	{RemainingInstance{}, server.RemainingInstance{}, ""},
	{AttachedPolicy{}, server.Attachment{}, ""},
	{FleetActionStep{}, server.FleetStep{}, ""},
	{AgentReleaseServer{}, server.AgentReleaseServer{}, "ring"},
	{ReleaseServer{}, server.BenchUpdate{}, "offline_seconds ring sites"},
	{ScalingEvent{}, tenant.ScalingEvent{}, "run_url"},
	{DomainRecord{}, org.DomainRecord{}, ""},
	{PeersBehind{}, server.PeersState{}, ""},
	{ServerUse{}, server.Use{}, ""},
	{Patches{}, server.Patches{}, "since state told_at"},
	{Container{}, server.ContainerInfo{}, ""},
	{ContainerDrift{}, server.ContainerDrift{}, ""},
	{CatalogLocation{}, server.OfferedLocation{}, "ipv4 region"},
	{CatalogServerType{}, server.OfferedType{}, "locations"},
	{CatalogImage{}, server.OfferedImage{}, ""},
	{QueueComing{}, placement.ComingAt{}, ""},
	{AttentionSubject{}, attention.Subject{}, ""},
	{AttentionAction{}, attention.Action{}, ""},
	{PatchedServer{}, server.Patched{}, ""},
	{AuditProblem{}, ops.AuditProblem{}, ""},
	{TenantBackupSpace{}, tenant.BackupsOfTenant{}, ""},
	{FleetPlannedStep{}, server.FleetStep{}, ""},
	{ReleaseRing{}, server.ReleaseRing{}, ""},
	{InstancePort{}, workload.PortBinding{}, ""},
	{PeriodPrice{}, server.PeriodPrice{}, ""},
	{WarmPool{}, tenant.WarmPool{}, ""},
	{SitePoolPolicy{}, tenant.SitePoolPolicy{}, ""},
	{Provider{}, server.Provider{}, ""},
	{ResidencyZone{}, server.ResidencyZone{}, ""},
	{CapacityDefault{}, server.CapacityDefault{}, ""},
	{Cost{}, server.Cost{}, ""},
	{Operation{}, ops.Operation{}, "href target"},
	{Org{}, org.Org{}, ""},
	{PatchWave{}, server.PatchWave{}, "members timeline"},
	{PatchWaveServer{}, server.PatchWaveServer{}, ""},
	{PatchWaveStep{}, server.PatchWaveStep{}, ""},
	{PlacementPool{}, prego.PlacementPool{}, "disallow org_ids require"},
	{WarmPool{}, tenant.WarmPool{}, ""},
	{SitePool{}, tenant.SitePool{}, ""},
	{QueueEntry{}, placement.Expectation{}, ""},
	{OrgQuota{}, org.Quota{}, "headroom source"},
	{OrgEvent{}, org.Event{}, ""},
	{Rebalance{}, server.Rebalance{}, "moves"},
	{RebalanceMove{}, server.RebalanceMove{}, ""},
	{StackRelease{}, server.StackRelease{}, "operation run_url servers"},
	{SearchResult{}, ops.Found{}, "href"},
	{Route{}, workload.Route{}, ""},
	{IPv4{}, workload.IPv4Allocation{}, "operation"},
	{Volume{}, workload.Volume{}, "last_restorable operation"},
	{VolumeAttachment{}, workload.VolumeAttachment{}, ""},
	{Command{}, server.AuditedCommand{}, ""},
}

// setAll gives everything in a value a value that is not zero.
func setAll(v reflect.Value, depth int) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(1, 0)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		setAll(v.Elem(), depth)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		if depth > 0 {
			setAll(v.Index(0), depth-1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		setAll(key, depth)
		if depth > 0 {
			setAll(value, depth-1)
		}
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for _, f := range v.Fields() {
			if f.CanSet() && depth > 0 {
				setAll(f, depth-1)
			}
		}
	default:
	}
}

// TestViewsShowAllOfTheirTypes holds each view against the contract: a field is filled from the area's type, or it is
// one that a handler adds; and no field's name is one of a secret.
func TestViewsShowAllOfTheirTypes(t *testing.T) {
	t.Parallel()
	for _, s := range shownTypes {
		from, to := reflect.New(reflect.TypeOf(s.of)).Elem(), reflect.New(reflect.TypeOf(s.view)).Elem()
		setAll(from, 4)
		fill(to, from)
		var missing []string
		for i := range to.NumField() {
			name, _, _ := strings.Cut(to.Type().Field(i).Tag.Get("json"), ",")
			if to.Field(i).IsZero() {
				missing = append(missing, name)
			}
			require.False(t, reflect.Indirect(to.Field(i)).Kind() == reflect.String && !slices.Contains(strings.Fields(s.added), name) && slices.ContainsFunc(hiddenWords, func(word string) bool { return strings.Contains(name, word) }), "%s.%s", to.Type(), name)
		}
		slices.Sort(missing)
		if strings.Join(missing, " ") != s.added {
			t.Errorf("%s of %s: %s", to.Type(), from.Type(), strings.Join(missing, " "))
		}
	}
}

var hiddenWords = []string{"password", "secret", "token", "sealed", "private_key", "request_hash"}

// TestOnlyMissingPricesAreMentioned: a tenant's cost says how many prices are missing only if some are.
func TestOnlyMissingPricesAreMentioned(t *testing.T) {
	t.Parallel()
	require.Nil(t, tenantCostView(&cost.PerMonth{Currency: "EUR"}).Unpriced)
	require.Equal(t, 2, *tenantCostView(&cost.PerMonth{Currency: "EUR", Unpriced: 2}).Unpriced)
}
