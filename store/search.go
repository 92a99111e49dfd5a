package store

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops"
)

// searchedNewest bounds among how many of the newest objects of a kind a part of a word is looked for.
const searchedNewest = 20_000

// searched describes how objects of one kind are found. Texts are SQL over the table's alias o.
type searched struct {
	kind   string
	table  string
	id     string
	name   string // id if empty
	status string
	gone   string // a condition, never if empty
	org    string
	within string // the id of the object it is shown within
	newest string // the columns by which the newest are found, with an index unless there are few; without, only whole values are
	fields []searchField
}

// A searchField is a column that may match. Values are lower-case text.
type searchField struct {
	name   string
	column string
	where  string // the condition of the index
	// exact: it has no index for beginnings
	exact bool
	// list: an array with a GIN index
	list bool
}

// A deletion's remains in a row are also found.
const deleted = `o.deleted_at IS NOT NULL`

var searchable = []searched{
	{
		kind: "server", table: "servers", id: "o.server_id", status: "o.status", gone: `o.status = 'terminated'`, newest: "o.created_at",
		fields: []searchField{
			{name: "id", column: "o.server_id"},
			{name: "address", column: "o.host"},
			{name: "address", column: "o.ipv6"},
			{name: "private_address", column: "host(o.private_address)"},
			{name: "provider_id", column: "o.provider_server_id"},
		},
	},
	searchedTenants,
	{kind: "org", table: "orgs", id: "o.org_id", org: "o.org_id", newest: "o.created_at", fields: []searchField{{name: "id", column: "o.org_id"}}},
	{
		kind: "app", table: "apps", id: "o.app_id", name: "o.name", gone: deleted, org: "o.org_id", newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.app_id"}, {name: "name", column: "o.name"}},
	},
	{
		kind: "env", table: "envs", id: "o.env_id", name: "o.name", gone: deleted, org: "o.org_id", newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.env_id"}, {name: "name", column: "o.name"}},
	},
	{
		kind: "group", table: "process_groups", id: "o.group_id", name: "o.name", status: "o.status", gone: deleted, org: "o.org_id", newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.group_id"}, {name: "name", column: "o.name"}},
	},
	{
		kind: "instance", table: "instances", id: "o.instance_id", status: "o.state", gone: `o.state = 'stopped'`, org: "o.org_id", newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.instance_id"}},
	},
	{
		kind: "route", table: "routes", id: "o.route_id", name: "NULLIF(o.hostname, '')", gone: deleted, org: "o.org_id", within: "o.env_id", newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.route_id"}, {name: "hostname", column: "o.hostname"}},
	},
	{
		kind: "ipv4", table: "ipv4_allocations", id: "o.allocation_id", name: "o.name", status: "o.status", gone: deleted, org: "o.org_id", within: "o.env_id", newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.allocation_id"}, {name: "name", column: "o.name"}, {name: "address", column: "o.address"}, {name: "provider_id", column: "o.provider_id"}},
	},
	{
		kind: "volume", table: "volumes", id: "o.volume_id", name: "o.name", status: "o.status", gone: deleted, org: "o.org_id", newest: "o.created_at",
		fields: []searchField{
			{name: "id", column: "o.volume_id"}, {name: "name", column: "o.name"}, {name: "provider_id", column: "o.provider_id"}, {name: "provider_name", column: "o.provider_name", exact: true},
		},
	},
	{
		kind: "attachment", table: "volume_attachments", id: "o.attachment_id", gone: deleted, org: "o.org_id", within: "o.volume_id",
		fields: []searchField{{name: "id", column: "o.attachment_id", exact: true}},
	},
	{
		kind: "domain", table: "domains", id: "o.domain_id", name: "o.name", status: "o.status", gone: deleted, org: "o.org_id", newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.domain_id"}, {name: "hostname", column: "o.name"}},
	},
	{
		kind: "certificate", table: "certificates", id: "o.certificate_id", name: "array_to_string(o.names, ' ')", status: "o.status", gone: `o.status = 'retired'`, org: "o.org_id", newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.certificate_id"}, {name: "hostname", column: "o.names", list: true}, {name: "serial", column: "o.serial"}},
	},
	{
		kind: "snapshot", table: "snapshots", id: "o.snapshot_id", status: "o.status", gone: `o.status = 'deleted'`, org: "o.org_id", within: "o.tenant_id",
		fields: []searchField{{name: "id", column: "o.snapshot_id", exact: true}},
	},
	{
		kind: "backup", table: "backups", id: "o.backup_id", status: "o.state", gone: `o.state = 'deleted'`, org: "o.org_id", within: "COALESCE(o.tenant_id, o.volume_id)",
		fields: []searchField{{name: "id", column: "o.backup_id", exact: true}},
	},
	{
		kind: "restore", table: "restore_jobs", id: "o.job_id", status: "o.status", gone: `o.finished_at IS NOT NULL`, org: "o.org_id", within: "o.tenant_id",
		fields: []searchField{{name: "id", column: "o.job_id", exact: true}},
	},
	{
		kind: "volume_restore", table: "volume_restores", id: "o.restore_id", status: "o.status", gone: `o.finished_at IS NOT NULL`, org: "o.org_id", within: "o.volume_id",
		fields: []searchField{{name: "id", column: "o.restore_id", exact: true}},
	},
	{
		kind: "drill", table: "drills", id: "o.drill_id", status: "o.state", gone: `o.finished_at IS NOT NULL`, org: "o.org_id", within: "COALESCE(o.tenant_id, o.volume_id)",
		fields: []searchField{{name: "id", column: "o.drill_id", exact: true}},
	},
	{
		kind: "move", table: "tenant_moves", id: "o.move_id", status: "o.state", gone: `o.finished_at IS NOT NULL`, org: "o.org_id", within: "o.tenant_id",
		fields: []searchField{{name: "id", column: "o.move_id", exact: true}},
	},
	// An id that a server had at the provider before it was made again, or a network's or firewall's.
	{
		kind: "resource", table: "resources", id: "o.resource_id::text", name: "o.name", status: "o.state", gone: `o.state = 'released'`, within: "o.server_id", newest: "o.resource_id",
		fields: []searchField{{name: "provider_id", column: "o.provider_id"}, {name: "name", column: "o.name"}},
	},
	// Few rows.
	{kind: "fleet", table: "fleets", id: "o.fleet_id", newest: "o.fleet_id", fields: []searchField{{name: "id", column: "o.fleet_id"}}},
	{kind: "policy", table: "policies", id: "o.policy_id", newest: "o.policy_id", fields: []searchField{{name: "id", column: "o.policy_id"}}},
	{kind: "placement_pool", table: "placement_pools", id: "o.pool_id", name: "o.name", newest: "o.created_at", fields: []searchField{{name: "id", column: "o.pool_id"}}},
	{
		kind: "image", table: "golden_images", id: "o.image_id", status: "o.status", gone: `o.status = 'deleted'`, newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.image_id"}, {name: "provider_id", column: "o.provider_image_id"}},
	},
	{
		kind: "network", table: "networks", id: "o.network_id", newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.network_id"}, {name: "provider_id", column: "o.provider_network_id"}},
	},
	{
		kind: "release", table: "stack_releases", id: "o.name", status: "o.status", gone: `o.status = 'cancelled'`, newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.name"}},
	},
	{
		kind: "agent_release", table: "agent_releases", id: "o.version", status: "o.status", gone: `o.status = 'cancelled'`, newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.version"}},
	},
	{
		kind: "rebalance", table: "rebalances", id: "o.rebalance_id", status: "o.state", gone: `o.finished_at IS NOT NULL`, newest: "o.created_at",
		fields: []searchField{{name: "id", column: "o.rebalance_id"}},
	},
	{kind: "patch_wave", table: "patch_waves", id: "o.wave_id", newest: "o.created_at", fields: []searchField{{name: "id", column: "o.wave_id"}}},
	{kind: "registry", table: "(SELECT host, created_at FROM registries WHERE org_id = '')", id: "o.host", newest: "o.created_at", fields: []searchField{{name: "hostname", column: "o.host"}}},
}

// columns are those of ops.Found except for the matched field.
func (k searched) columns() string {
	or := func(text, otherwise string) string {
		if text == "" {
			return otherwise
		}
		return text
	}
	return fmt.Sprintf(`'%[1]s' AS kind, %[2]s AS id, COALESCE(%[3]s, %[2]s) AS name, %[4]s AS status, %[5]s AS gone, COALESCE(%[6]s, '') AS org_id, COALESCE(%[7]s, '') AS within`,
		k.kind, k.id, or(k.name, k.id), or(k.status, `''`), or(k.gone, "false"), or(k.org, `''`), or(k.within, `''`))
}

// beginnings finds values that equal $1 or begin with it, with $2 the limit. The operators are those of
// text_pattern_ops, which compare bytes: so a beginning is a range of an index, in every locale.
func (k searched) beginnings() string {
	var parts []string
	for _, f := range k.fields {
		column, of := f.column, k.table+" o"
		var matches string
		switch {
		case f.list:
			column, of, matches = "v.value", k.table+" o CROSS JOIN LATERAL unnest("+f.column+") v (value)", f.column+" @> ARRAY[$1::text] AND "+f.where+"v.value = $1"
		case f.exact:
			matches = column + " = $1"
		default:
			matches = column + " ~>=~ $1 AND " + column + " ~<~ ($1 || chr(1114111))"
		}
		parts = append(parts, fmt.Sprintf(`(SELECT %[1]s, '%[2]s' AS field, %[3]s AS value, CASE WHEN %[3]s = $1 THEN 0 ELSE 1 END AS rank FROM %[4]s WHERE %[5]s ORDER BY %[3]s USING ~<~ LIMIT $2)`,
			k.columns(), f.name, column, of, matches))
	}
	return strings.Join(parts, " UNION ALL ")
}

// ofObject matches the columns of the objects that are searched.
var ofObject = regexp.MustCompile(`\bo\.\w+`)

// parts finds values that contain $1, with $2 the limit, among the newest.
func (k searched) parts() string {
	values := make([]string, len(k.fields))
	for i, f := range k.fields {
		column := f.column
		if f.list {
			column = "array_to_string(" + column + ", ' ')"
		}
		values[i] = fmt.Sprintf("(%d, '%s', %s)", i, f.name, column)
	}
	columns := k.columns()
	needed := strings.Join(slices.Compact(slices.Sorted(slices.Values(ofObject.FindAllString(columns+strings.Join(values, " "), -1)))), ", ")
	return fmt.Sprintf(`SELECT %s, v.field, v.value, 2 AS rank FROM (SELECT %s FROM %s o ORDER BY %s DESC LIMIT %d) o
CROSS JOIN LATERAL (SELECT f.field, f.value FROM (VALUES %s) f (n, field, value) WHERE strpos(f.value, $1) > 0 ORDER BY f.n LIMIT 1) v LIMIT $2`,
		columns, needed, k.table, k.newest, searchedNewest, strings.Join(values, ", "))
}

// Search finds objects by ids, names and addresses, including deleted ones, and reports whether there
// are more. Beginnings are found with indexes, however many objects there are.
func (s *Store) Search(ctx context.Context, q ops.SearchQuery) (found []ops.Found, more bool, err error) {
	text := strings.TrimSuffix(strings.ToLower(q.Text), ".") // the root's dot of a name
	found, err = s.searchBy(ctx, q, text, searched.beginnings)
	if err != nil {
		return nil, false, err
	}
	if len(q.Kinds) == 0 || slices.Contains(q.Kinds, "operation") {
		op, err := s.Operation(ctx, text)
		switch {
		case err == nil:
			found = append(found, ops.Found{Kind: "operation", ID: op.ID, Name: op.ID, Field: "workflow_id", Value: op.ID, Status: string(op.Status), Gone: op.Status != ops.OperationRunning})
		case prego.CodeOf(err) != prego.CodeOperationNotFound:
			return nil, false, err
		}
	}
	if len([]rune(text)) >= 3 && len(found) <= q.Limit {
		parts, err := s.searchBy(ctx, q, text, func(k searched) string {
			if k.newest == "" {
				return ""
			}
			return k.parts()
		})
		if err != nil {
			return nil, false, err
		}
		found = append(found, parts...)
	}
	found = ranked(found)
	return found[:min(len(found), q.Limit)], len(found) > q.Limit, nil
}

// searchBy runs one statement per kind, all in one round trip.
func (s *Store) searchBy(ctx context.Context, q ops.SearchQuery, text string, statement func(searched) string) (found []ops.Found, err error) {
	b := &pgx.Batch{}
	for _, k := range searchable {
		if len(q.Kinds) > 0 && !slices.Contains(q.Kinds, k.kind) || k.org == "" && access.OfCustomer(ctx) {
			continue
		}
		if sql := statement(k); sql != "" {
			queueRows(b, &found, sql, text, q.Limit+1)
		}
	}
	if b.Len() == 0 {
		return nil, nil
	}
	return found, failed("search", s.pool.SendBatch(ctx, b).Close())
}

// ranked sorts by quality of the match, existing objects first, and has each object once.
func ranked(found []ops.Found) []ops.Found {
	slices.SortStableFunc(found, func(a, b ops.Found) int {
		gone := map[bool]int{true: 1}
		return cmp.Or(a.Rank-b.Rank, gone[a.Gone]-gone[b.Gone])
	})
	type key struct{ kind, id string }
	seen := map[key]bool{}
	return slices.DeleteFunc(found, func(f ops.Found) bool {
		k := key{f.Kind, f.ID}
		again := seen[k]
		// The ledger's row of an object that was itself found adds nothing.
		if f.Kind == "resource" && f.Within != "" {
			again = again || seen[key{"server", f.Within}]
		}
		seen[k] = true
		return again
	})
}
