package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/workload"
)

const sqlEnvOrg = `SELECT org_id, region FROM envs WHERE env_id = $1 AND deleted_at IS NULL`

// Held, so that the env is not deleted meanwhile.
const sqlShareEnv = `SELECT org_id, region FROM envs WHERE env_id = $1 AND deleted_at IS NULL FOR SHARE`

// inEnv runs f in a transaction that holds the env's org and the env.
func (s *Store) inEnv(ctx context.Context, what string, envID prego.EnvID, f func(tx *txn, org prego.OrgID, region prego.Region) error) error {
	return s.inTx(ctx, what, func(tx *txn) error {
		var org prego.OrgID
		var region prego.Region
		err := tx.QueryRow(ctx, sqlEnvOrg, envID).Scan(&org, &region)
		if err == nil {
			if err = lockOrg(ctx, tx, org); err == nil {
				err = tx.QueryRow(ctx, sqlShareEnv, envID).Scan(&org, &region)
			}
		}
		if err != nil {
			return ifNoRows(err, noSuchEnv(string(envID)))
		}
		return f(tx, org, region)
	})
}

// envExists is for reads, which need no lock.
func (s *Store) envExists(ctx context.Context, envID prego.EnvID) error {
	var org, region string
	err := s.pool.QueryRow(ctx, sqlEnvOrg, envID).Scan(&org, &region)
	return failed(string("env "+envID), ifNoRows(err, noSuchEnv(string(envID))))
}

const routeColumns = `r.route_id, r.org_id, r.env_id, r.group_id, r.hostname, r.listener_scope AS listener, r.listen_port, r.protocol, r.target_port, r.created_by, r.created_at, r.deleted_at,
    COALESCE((SELECT d.status FROM domains d WHERE r.hostname <> '' AND d.org_id = r.org_id AND d.name = r.hostname AND d.deleted_at IS NULL), '') AS hostname_status`

// A name and a port belong to all orgs together: a request for one waits for other requests
// for the same. Names are held before ports.
const sqlHoldHostname = `SELECT pg_advisory_xact_lock(hashtextextended('prego/hostname/' || $1, 0))`

const sqlHoldPort = `SELECT pg_advisory_xact_lock(hashtextextended('prego/port/' || $1, 0))`

const sqlRouteFacts = `
SELECT EXISTS (SELECT FROM process_groups WHERE group_id = $3 AND env_id = $2 AND deleted_at IS NULL),
    EXISTS (SELECT FROM ipv4_allocations WHERE env_id = $2 AND deleted_at IS NULL AND status = 'ready'),
    EXISTS (SELECT FROM routes WHERE deleted_at IS NULL AND hostname = $4 AND hostname <> '' AND org_id = $1 AND listener_scope = $5 AND listen_port = $6)
        OR EXISTS (SELECT FROM domains WHERE deleted_at IS NULL AND name = $4 AND org_id <> $1 AND status = 'verified'),
    EXISTS (SELECT FROM routes WHERE deleted_at IS NULL AND listener_scope = $5 AND listen_port = $6 AND (listener_scope = 'shared_v6' OR env_id = $2)
        AND (protocol = 'tcp' OR $7 = 'tcp')),
    EXISTS (SELECT FROM routes WHERE deleted_at IS NULL AND org_id = $1 AND listener_scope = $5 AND listen_port = $6 AND (listener_scope = 'shared_v6' OR env_id = $2))`

const sqlCreateRoute = `
INSERT INTO routes AS r (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port, protocol, target_port, created_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING ` + routeColumns

// CreateRoute publishes a port of a process group. A port counts once per address
// that the org listens on (quotas-and-fairness, "Route usage"). A hostname is served, and
// counts, once the org has verified it: a claim to it is made with the route.
func (s *Store) CreateRoute(ctx context.Context, r workload.Route, by string) (out workload.Route, err error) {
	err = s.inEnv(ctx, "create route", r.EnvID, func(tx *txn, orgID prego.OrgID, _ prego.Region) error {
		if r.Hostname != "" {
			tx.run(ctx, sqlHoldHostname, r.Hostname)
		}
		tx.run(ctx, sqlHoldPort, fmt.Sprintf("%s/%d", r.Listener, r.ListenPort))
		var group, address, nameTaken, portTaken, oldPort bool
		if err := tx.QueryRow(ctx, sqlRouteFacts, orgID, r.EnvID, r.GroupID, r.Hostname, r.Listener, r.ListenPort, r.Protocol).
			Scan(&group, &address, &nameTaken, &portTaken, &oldPort); err != nil {
			return err
		}
		refuse := func(code prego.Code, field, message string) error {
			return &prego.Error{Code: code, Field: field, Message: message}
		}
		switch {
		case !group:
			return refuse(prego.CodeGroupUnknown, "group_id", "is not a process group of this env")
		case r.Listener == workload.ListenerEnvV4 && !address:
			return refuse(prego.CodeIPv4Required, "listener", "takes an IPv4 address of the env that is ready: enable the add-on first")
		case nameTaken:
			return refuse(prego.CodeHostnameTaken, "hostname", "is served by another route")
		case portTaken:
			return refuse(prego.CodePortTaken, "listen_port", "would be shared with a raw TCP route, which takes all that comes in")
		}
		deltas := []quota.Delta{{Dimension: quota.MaxRoutes, By: 1}}
		if !oldPort {
			deltas = append(deltas, quota.Delta{Dimension: quota.MaxPublicPorts, By: 1})
		}
		tx.check(s.takeQuota(ctx, tx, orgID, deltas...))
		if r.Hostname != "" {
			claim := org.Domain{DomainID: prego.DomainID("dom-" + strings.TrimPrefix(string(r.RouteID), "rte-")), OrgID: orgID, Name: r.Hostname, Token: org.NewDomainToken(), ByRoute: true}
			got(s.claimDomain(ctx, tx, claim, by)).in(tx)
		}
		out = oneIn[workload.Route](ctx, tx, sqlCreateRoute, r.RouteID, orgID, r.EnvID, r.GroupID, r.Hostname, r.Listener, r.ListenPort, r.Protocol, r.TargetPort, by)
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "route.create", Subject: string(r.RouteID), Actor: by}, routePayload(out))
	})
	return out, err
}

func routePayload(r workload.Route) map[string]any {
	return map[string]any{
		"env_id": r.EnvID, "group_id": r.GroupID, "hostname": r.Hostname, "listener": r.Listener, "listen_port": r.ListenPort, "protocol": r.Protocol, "target_port": r.TargetPort,
	}
}

const sqlGetRoute = `SELECT ` + routeColumns + ` FROM routes r WHERE r.env_id = $1 AND r.route_id = $2 AND r.deleted_at IS NULL`

func noSuchRoute(id prego.RouteID) error {
	return prego.Errorf(prego.CodeRouteNotFound, "there is no route %q of this env", id)
}

// GetRoute reads one route of an env, or CodeRouteNotFound.
func (s *Store) GetRoute(ctx context.Context, envID prego.EnvID, id prego.RouteID) (workload.Route, error) {
	if err := s.envExists(ctx, envID); err != nil {
		return workload.Route{}, err
	}
	return get[workload.Route](ctx, s.pool, noSuchRoute(id), sqlGetRoute, envID, id)
}

// Routes is the list of routes.
var Routes = Listing[workload.Route]{
	what: "routes", from: `SELECT ` + routeColumns + ` FROM routes r`,
	live:    `r.deleted_at IS NULL`,
	filters: map[string]string{"route_id": "r.route_id", "env_id": "r.env_id", "org_id": "r.org_id", "group_id": "r.group_id", "hostname": "r.hostname", "protocol": "r.protocol"},
	sorts:   map[string]string{"created_at": "r.created_at", "hostname": "r.hostname"},
	id:      "r.route_id",
}

const sqlDeleteRoute = `
UPDATE routes r SET deleted_at = now() WHERE r.env_id = $1 AND r.route_id = $2 AND r.deleted_at IS NULL RETURNING ` + routeColumns

const sqlDeleteRouteDomain = `
UPDATE domains d SET deleted_at = now(), next_check = NULL, updated_at = now()
WHERE d.org_id = $1 AND d.name = $2 AND d.by_route AND d.deleted_at IS NULL
  AND NOT EXISTS (SELECT FROM routes r WHERE r.org_id = $1 AND r.hostname = $2 AND r.deleted_at IS NULL)
RETURNING ` + domainColumns

// DeleteRoute takes a route down. A name that was claimed with a route goes with the last
// one.
func (s *Store) DeleteRoute(ctx context.Context, envID prego.EnvID, id prego.RouteID, by string) error {
	return s.inEnv(ctx, "delete route", envID, func(tx *txn, orgID prego.OrgID, _ prego.Region) error {
		tx.demands(ctx, "create it again", string(id), sqlOfRoute)
		r := getIn[workload.Route](ctx, tx, noSuchRoute(id), sqlDeleteRoute, envID, id)
		if r.Hostname != "" {
			d, err := find[org.Domain](ctx, tx, sqlDeleteRouteDomain, orgID, r.Hostname)
			if err == nil && d != nil {
				err = domainEvent(ctx, tx, "domain.delete", *d, by)
			}
			if err != nil {
				return err
			}
		}
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "route.delete", Subject: string(id), Actor: by}, routePayload(r))
	})
}

const sqlPublishedRoutes = `
SELECT ` + routeColumns + `, COALESCE(a.address, '') AS address,
    (SELECT jsonb_agg(jsonb_build_object('InstanceID', i.instance_id, 'Host', s.host, 'Port', p -> 'host_port') ORDER BY i.instance_id)
     FROM instances i JOIN servers s ON s.server_id = i.server_id CROSS JOIN LATERAL jsonb_array_elements(i.ports) p
     WHERE i.group_id = r.group_id AND i.state = 'running' AND i.healthy AND (p ->> 'container_port')::integer = r.target_port AND s.host <> '') AS targets
FROM routes r
LEFT JOIN ipv4_allocations a ON r.listener_scope = 'env_v4' AND a.env_id = r.env_id AND a.deleted_at IS NULL AND a.status = 'ready'
WHERE r.deleted_at IS NULL
  AND (r.hostname = '' OR EXISTS (SELECT FROM domains d WHERE d.org_id = r.org_id AND d.name = r.hostname AND d.status = 'verified' AND d.deleted_at IS NULL))
ORDER BY r.route_id`

// PublishedRoutes are all routes with what serves each now, by id. Those with a hostname
// that their org has not verified are left out.
func (s *Store) PublishedRoutes(ctx context.Context) ([]workload.PublishedRoute, error) {
	return collect[workload.PublishedRoute](ctx, s, "published routes", sqlPublishedRoutes)
}
