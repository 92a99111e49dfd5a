package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const agentReleaseColumns = `version, serial, sha256, rings, status, reason, message, created_by, created_at, started_at, finished_at`

const sqlNewAgentRelease = `
INSERT INTO agent_releases (version, serial, sha256, document, signature, rings, created_by) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING RETURNING ` + agentReleaseColumns

const sqlSameAgentRelease = `SELECT ` + agentReleaseColumns + ` FROM agent_releases WHERE version = $1 AND document = $2 AND rings = $3`

// CreateAgentRelease stores a release of the agent without starting it. Repeating the request returns the existing
// release. Another release with that version or serial is CodeStackReleaseExists.
func (s *Store) CreateAgentRelease(ctx context.Context, r server.CreateAgentReleaseRequest, said server.AgentReleaseSaid, by string) (server.AgentRelease, error) {
	made, err := find[server.AgentRelease](ctx, s.pool, sqlNewAgentRelease, said.Version, said.Serial, said.SHA256, said.Signed.Document, said.Signed.Signature, r.Rings, by)
	if err == nil && made == nil {
		rings, merr := json.Marshal(r.Rings)
		if merr != nil {
			return server.AgentRelease{}, merr
		}
		if made, err = find[server.AgentRelease](ctx, s.pool, sqlSameAgentRelease, said.Version, said.Signed.Document, string(rings)); err == nil && made == nil {
			err = prego.Errorf(prego.CodeStackReleaseExists, "there is another release of the agent with version %s or serial %d", said.Version, said.Serial)
		}
	}
	return deref(made), err
}

const sqlGetAgentRelease = `SELECT ` + agentReleaseColumns + ` FROM agent_releases WHERE version = $1`

func noSuchAgentRelease(version string) error {
	return prego.Errorf(prego.CodeStackReleaseNotFound, "there is no release %q of the agent", version)
}

// GetAgentRelease reads a release, or CodeStackReleaseNotFound.
func (s *Store) GetAgentRelease(ctx context.Context, version string) (server.AgentRelease, error) {
	return get[server.AgentRelease](ctx, s.pool, noSuchAgentRelease(version), sqlGetAgentRelease, version)
}

// AgentReleases is the list of releases of the agent.
var AgentReleases = Listing[server.AgentRelease]{
	what: "releases of the agent", from: `SELECT ` + agentReleaseColumns + ` FROM agent_releases`,
	filters: map[string]string{"version": "version", "status": "status"},
	sorts:   map[string]string{"created_at": "created_at"},
	id:      "version",
}

const sqlAgentReleaseServers = `
SELECT v.server_id, v.ring, v.status, v.message, s.agent_version, v.offered_at, v.finished_at
FROM agent_release_servers v JOIN servers s ON s.server_id = v.server_id WHERE v.version = $1 ORDER BY v.ring, v.server_id`

// AgentReleaseServers returns the servers of a release, by rings.
func (s *Store) AgentReleaseServers(ctx context.Context, version string) ([]server.AgentReleaseServer, error) {
	return collect[server.AgentReleaseServer](ctx, s, "servers of the agent's release "+version, sqlAgentReleaseServers, version)
}

const (
	sqlHoldAgentRelease = sqlGetAgentRelease + ` FOR NO KEY UPDATE`
	sqlAgentServers     = `SELECT server_id FROM servers WHERE status = 'active' AND agent_version <> ''`
	sqlEnrolAgents      = `
INSERT INTO agent_release_servers (version, server_id, ring) SELECT $1, t.server_id, t.ring FROM unnest($2::text[], $3::int[]) t (server_id, ring) ON CONFLICT DO NOTHING`
	sqlAgentReleaseStatus = `
UPDATE agent_releases SET status = $2, reason = $3, message = $4, updated_at = now(), started_at = CASE WHEN $2 = 'rolling' THEN COALESCE(started_at, now()) ELSE started_at END,
    finished_at = CASE WHEN $2 IN ('done', 'cancelled') THEN now() END WHERE version = $1 RETURNING ` + agentReleaseColumns
	sqlAgentReleaseSkips = `
UPDATE agent_release_servers SET status = 'skipped', message = $2, finished_at = now() WHERE version = $1 AND status IN ('pending', 'offered')`
	sqlAgentReleaseGoesOn = `
UPDATE agent_release_servers SET status = 'skipped', message = status || ': ' || message WHERE version = $1 AND status IN ('back', 'refused', 'silent')`
)

// SteerAgentRelease starts, pauses, resumes or cancels a release of the agent; to is the resulting status. An
// impossible change is CodeInvalidTransition. A resumed release leaves out the servers that stopped it: to retry
// there, sign the agent again.
func (s *Store) SteerAgentRelease(ctx context.Context, version string, to server.ReleaseStatus, by string) (out server.AgentRelease, err error) {
	err = s.inTx(ctx, "the agent's release "+version, func(tx *txn) error {
		r, err := get[server.AgentRelease](ctx, tx, noSuchAgentRelease(version), sqlHoldAgentRelease, version)
		if err != nil || r.Status == to {
			out = r
			return err
		}
		from := map[server.ReleaseStatus][]server.ReleaseStatus{
			server.ReleaseRolling: {server.ReleaseCreated, server.ReleasePaused, server.ReleaseStopped}, server.ReleasePaused: {server.ReleaseRolling},
			server.ReleaseCancelled: {server.ReleaseCreated, server.ReleaseRolling, server.ReleasePaused, server.ReleaseStopped},
		}
		if !slices.Contains(from[to], r.Status) {
			return prego.Errorf(prego.CodeInvalidTransition, "release %s of the agent is %s", version, r.Status)
		}
		if r.Status == server.ReleaseCreated && to == server.ReleaseRolling {
			enrolAgents(ctx, tx, r)
		}
		if r.Status == server.ReleaseStopped && to == server.ReleaseRolling {
			tx.run(ctx, sqlAgentReleaseGoesOn, version)
		}
		if to == server.ReleaseCancelled {
			tx.run(ctx, sqlAgentReleaseSkips, version, "cancelled by "+by)
		}
		out = oneIn[server.AgentRelease](ctx, tx, sqlAgentReleaseStatus, version, to, "", fmt.Sprintf("%s by %s", to, by))
		return nil
	})
	if isViolation(err, "agent_releases_open") {
		return out, prego.Errorf(prego.CodeInvalidTransition, "another release of the agent is open: let it end, or cancel it")
	}
	return out, err
}

func enrolAgents(ctx context.Context, tx *txn, r server.AgentRelease) {
	ids := valuesIn[prego.ServerID](ctx, tx, sqlAgentServers)
	servers := make([]server.BenchServer, len(ids))
	for i, id := range ids {
		servers[i] = server.BenchServer{ServerID: id, Tenants: []prego.TenantID{prego.TenantID(id)}} // a percentage is of servers
	}
	var names []string
	var rings []int
	for id, ring := range server.AssignRings(server.StackReleaseName("agent "+r.Version), r.Rings, servers) {
		names, rings = append(names, string(id)), append(rings, ring)
	}
	tx.run(ctx, sqlEnrolAgents, r.Version, names, rings)
}

const (
	sqlRollingAgentRelease = `SELECT version FROM agent_releases WHERE status = 'rolling'`
	sqlAgentsLate          = `
INSERT INTO agent_release_servers (version, server_id, ring) SELECT $1, server_id, $2 FROM servers
WHERE status = 'active' AND agent_version NOT IN ('', $1) ON CONFLICT DO NOTHING`
	sqlAgentsGone = `
UPDATE agent_release_servers v SET status = 'skipped', message = 'the server is ' || s.status, finished_at = now()
FROM servers s WHERE s.server_id = v.server_id AND v.version = $1 AND s.status NOT IN ('active', 'failed') AND v.status IN ('pending', 'offered')`
	sqlAgentsSilent = `
UPDATE agent_release_servers v SET status = 'silent', message = 'it told nothing within ' || make_interval(secs => $2) || '; its agent is ' || s.agent_version || ', ' || s.agent_status, finished_at = now()
FROM servers s WHERE s.server_id = v.server_id AND v.version = $1 AND v.status = 'offered' AND v.offered_at < now() - make_interval(secs => $2)`
	sqlAgentsOf = `SELECT v.server_id, v.ring, v.status, v.message, s.agent_status AS agent_version, v.offered_at, v.finished_at
FROM agent_release_servers v JOIN servers s ON s.server_id = v.server_id WHERE v.version = $1 ORDER BY v.ring, v.server_id`
	sqlHoldOffered = `SELECT server_id FROM servers WHERE server_id = ANY ($1) ORDER BY server_id FOR NO KEY UPDATE`
	// A server being emptied or rebooted has its turn afterwards.
	sqlOfferAgent = `
UPDATE agent_release_servers v SET status = 'offered', offered_at = now() WHERE version = $1 AND server_id = ANY ($2) AND status = 'pending'
  AND NOT EXISTS (SELECT FROM server_maintenances d WHERE d.server_id = v.server_id AND d.finished_at IS NULL)`
	sqlAgentReleaseMessage = `UPDATE agent_releases SET message = $2, updated_at = now() WHERE version = $1 AND message <> $2`
	sqlHaltAgentRelease    = `UPDATE agent_release_servers SET status = 'pending', offered_at = NULL WHERE version = $1 AND status = 'offered'`
)

// StepAgentRelease continues the active release of the agent, if any. It offers the release to servers of the present
// ring, as many concurrently as the limits allow. It stops the release when a host refused it, rolled back or did not
// report in time; then no other server is offered it.
func (s *Store) StepAgentRelease(ctx context.Context, limits server.AgentReleaseLimits) (changed bool, err error) {
	version, err := value[string](ctx, s.pool, sqlRollingAgentRelease)
	if err != nil {
		return false, failed("releases of the agent", ifNoRows(err, nil))
	}
	err = s.inTx(ctx, "the agent's release "+version, func(tx *txn) error {
		r, err := one[server.AgentRelease](ctx, tx, sqlHoldAgentRelease, version)
		if err != nil || r.Status != server.ReleaseRolling {
			return err
		}
		tx.run(ctx, sqlAgentsLate, version, len(r.Rings)-1)
		tx.run(ctx, sqlAgentsGone, version)
		tx.run(ctx, sqlAgentsSilent, version, limits.Within.Seconds())
		servers := manyIn[server.AgentReleaseServer](ctx, tx, sqlAgentsOf, version)
		now := valueIn[time.Time](ctx, tx, sqlNow)
		p := planAgents(r, servers, limits, now)
		if changed = p.status != r.Status || len(p.offer) > 0; p.status == server.ReleaseStopped {
			tx.run(ctx, sqlHaltAgentRelease, version)
		}
		if len(p.offer) > 0 {
			// A maintenance also locks the server, so one of the two sees the other.
			if _, err := values[string](ctx, tx, sqlHoldOffered, prego.Strings(p.offer)); err != nil {
				return err
			}
			tx.run(ctx, sqlOfferAgent, version, prego.Strings(p.offer))
		}
		if p.status != r.Status {
			tx.run(ctx, sqlAgentReleaseStatus, version, p.status, p.reason, p.message)
			return nil
		}
		tx.run(ctx, sqlAgentReleaseMessage, version, p.message)
		return nil
	})
	return changed, err
}

// agentPlan is the next step of a release of the agent.
type agentPlan struct {
	status  server.ReleaseStatus
	reason  prego.Reason
	message string
	offer   []prego.ServerID
}

var whyAgentsStop = map[server.AgentReleaseStatus]prego.Reason{
	server.AgentBack: server.ReasonAgentWentBack, server.AgentRefused: server.ReasonAgentRefused, server.AgentSilent: server.ReasonHeartbeatsEnded,
}

func planAgents(r server.AgentRelease, servers []server.AgentReleaseServer, limits server.AgentReleaseLimits, now time.Time) agentPlan {
	ring, left, offered := -1, 0, 0
	var ended time.Time
	for _, v := range servers {
		if reason := whyAgentsStop[v.Status]; reason != "" {
			return agentPlan{status: server.ReleaseStopped, reason: reason, message: fmt.Sprintf("server %s: %s", v.ServerID, v.Message)}
		}
		switch v.Status {
		case server.AgentPending, server.AgentOffered:
			left++
			if ring < 0 {
				ring = v.Ring
			}
			if v.Status == server.AgentOffered {
				offered++
			}
		case server.AgentUpdated:
			if v.FinishedAt != nil && ring < 0 && v.FinishedAt.After(ended) {
				ended = *v.FinishedAt
			}
		case server.AgentBack, server.AgentRefused, server.AgentSilent, server.AgentSkipped:
		}
	}
	if left == 0 {
		return agentPlan{status: server.ReleaseDone, message: fmt.Sprintf("%d servers", len(servers))}
	}
	p := agentPlan{status: r.Status, message: fmt.Sprintf("ring %s: %d of %d servers left", r.Rings[ring].Name, left, len(servers))}
	soak := 0
	for _, before := range r.Rings[:ring] {
		soak = max(soak, before.SoakSeconds)
	}
	if until := ended.Add(time.Duration(soak) * time.Second); now.Before(until) {
		p.message += "; the previous ring soaks until " + until.UTC().Format(time.RFC3339)
		return p
	}
	for _, v := range servers {
		if v.Status == server.AgentPending && v.Ring == ring && offered < limits.Servers {
			p.offer, offered = append(p.offer, v.ServerID), offered+1
		}
	}
	return p
}

const (
	sqlAckAgentUpdate = `
UPDATE agent_release_servers v SET status = CASE $3 WHEN 'good' THEN 'done' ELSE $3 END, message = $4, finished_at = now()
FROM agent_releases r WHERE v.version = r.version AND r.serial = $2 AND v.server_id = $1 AND $3 IN ('good', 'back', 'refused') AND v.status IN ('offered', 'pending', 'silent')
RETURNING r.version`
	sqlAgentUpdate = `
SELECT r.document, r.signature FROM agent_release_servers v JOIN agent_releases r ON r.version = v.version
WHERE v.server_id = $1 AND v.status = 'offered' AND r.serial <> $2 ORDER BY r.serial DESC LIMIT 1`
)

// AckAgentUpdate records a host's report on the release of the agent that it tried last, and returns the release to
// try; nil for none.
func (s *Store) AckAgentUpdate(ctx context.Context, id prego.ServerID, report server.AgentReport) (wanted *server.SignedRelease, err error) {
	err = s.inTx(ctx, "the agent of "+string(id), func(tx *txn) error {
		version := findIn[struct{ Version string }](ctx, tx, sqlAckAgentUpdate, id, report.Serial, report.Status, report.Reason)
		if version != nil {
			e := server.Event{ServerID: id, Step: server.StepAgentUpdated, Message: fmt.Sprintf("%s: %s %s", version.Version, report.Status, report.Reason), Actor: prego.ActorSystem}
			tx.check(addEvent(ctx, tx, e, ""))
		}
		wanted = findIn[server.SignedRelease](ctx, tx, sqlAgentUpdate, id, report.Serial)
		return nil
	})
	return wanted, err
}

const sqlAgentOffers = `
SELECT v.server_id, r.serial FROM agent_release_servers v JOIN agent_releases r ON r.version = v.version WHERE v.status = 'offered' ORDER BY 1`

// AgentOffers returns the servers that must try a release of the agent now.
func (s *Store) AgentOffers(ctx context.Context) ([]server.AgentOffer, error) {
	return collect[server.AgentOffer](ctx, s, "offers of agents", sqlAgentOffers)
}

const sqlAgentVersions = `SELECT agent_version AS version, count(*)::int AS n FROM servers WHERE status = 'active' AND agent_version <> '' GROUP BY 1 ORDER BY 1`

// AgentVersions counts the active servers by the version of their agent.
func (s *Store) AgentVersions(ctx context.Context) ([]server.AgentVersionCount, error) {
	return collect[server.AgentVersionCount](ctx, s, "versions of agents", sqlAgentVersions)
}
