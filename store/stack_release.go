package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
)

const releaseColumns = `name, image, apps, rings, status, reason, message, current, created_by, created_at, started_at, finished_at`

const sqlNewRelease = `
INSERT INTO stack_releases (name, image, apps, rings, created_by) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO NOTHING RETURNING ` + releaseColumns

// CreateStackRelease keeps a release to be rolled out; nothing happens yet. Repeating it returns
// the existing release, another of that name is CodeStackReleaseExists.
func (s *Store) CreateStackRelease(ctx context.Context, r server.CreateStackReleaseRequest, by string) (server.StackRelease, error) {
	apps := r.Apps
	if apps == nil {
		apps = map[string]string{}
	}
	made, err := find[server.StackRelease](ctx, s.pool, sqlNewRelease, r.Name, r.Image, apps, r.Rings, by)
	if err != nil || made != nil {
		return deref(made), err
	}
	there, err := s.GetStackRelease(ctx, r.Name)
	same := func(a, b server.ReleaseRing) bool {
		return a.Name == b.Name && a.Percent == b.Percent && a.SoakSeconds == b.SoakSeconds && slices.Equal(a.Tenants, b.Tenants)
	}
	if err == nil && (there.Image != r.Image || !maps.Equal(there.Apps, apps) || !slices.EqualFunc(there.Rings, r.Rings, same)) {
		err = prego.Errorf(prego.CodeStackReleaseExists, "there is another release %s, of %s", r.Name, there.Image)
	}
	return there, err
}

const sqlGetRelease = `SELECT ` + releaseColumns + ` FROM stack_releases WHERE name = $1`

func noSuchRelease(name server.StackReleaseName) error {
	return prego.Errorf(prego.CodeStackReleaseNotFound, "there is no release %q", name)
}

// GetStackRelease reads one, or CodeStackReleaseNotFound.
func (s *Store) GetStackRelease(ctx context.Context, name server.StackReleaseName) (server.StackRelease, error) {
	return get[server.StackRelease](ctx, s.pool, noSuchRelease(name), sqlGetRelease, name)
}

// StackReleases is the list of releases.
var StackReleases = Listing[server.StackRelease]{
	what: "releases", from: `SELECT ` + releaseColumns + ` FROM stack_releases`,
	filters: map[string]string{"name": "name", "status": "status"},
	sorts:   map[string]string{"created_at": "created_at"},
	id:      "name",
}

const benchColumns = `v.release, v.server_id, v.ring, v.status, v.phase, v.reason, v.message, v.from_image, v.started_at, v.finished_at,
    (SELECT count(*)::int FROM stack_release_sites t WHERE t.release = v.release AND t.server_id = v.server_id AND t.tenant_id <> '') AS site_count,
    COALESCE((SELECT max(EXTRACT(EPOCH FROM COALESCE(t.opened_at, v.finished_at, now()) - t.offline_at))::float8 FROM stack_release_sites t WHERE t.release = v.release AND t.server_id = v.server_id), 0) AS offline`

const sqlReleaseServers = `SELECT ` + benchColumns + ` FROM stack_release_servers v WHERE v.release = $1 ORDER BY v.ring, v.server_id`

// StackReleaseServers are the servers of a release, by rings.
func (s *Store) StackReleaseServers(ctx context.Context, name server.StackReleaseName) ([]server.BenchUpdate, error) {
	return collect[server.BenchUpdate](ctx, s, fmt.Sprintf("servers of release %s", name), sqlReleaseServers, name)
}

const (
	sqlHoldRelease = sqlGetRelease + ` FOR NO KEY UPDATE`
	// An imported server runs its own containers.
	sqlBenchServers = `
SELECT s.server_id, ARRAY(SELECT a.tenant_id FROM tenant_allocations a WHERE a.app_server_id = s.server_id AND a.released_at IS NULL ORDER BY 1) AS tenants
FROM servers s WHERE s.role IN ('app', 'node') AND s.status = 'active' AND s.purpose <> 'import_existing'`
	sqlEnrol = `
INSERT INTO stack_release_servers (release, server_id, ring) SELECT $1, t.server_id, t.ring FROM unnest($2::text[], $3::int[]) t (server_id, ring) ON CONFLICT DO NOTHING`
	sqlReleaseStatus = `
UPDATE stack_releases SET status = $2, reason = $3, message = $4, updated_at = now(), started_at = CASE WHEN $2 = 'rolling' THEN COALESCE(started_at, now()) ELSE started_at END,
    finished_at = CASE WHEN $2 IN ('done', 'cancelled') THEN now() END
WHERE name = $1 RETURNING ` + releaseColumns
)

const undoRelease = "pause or cancel it: sites that were not migrated yet stay as they are"

// demandsRelease demands the acceptance of the time that a release takes sites away.
func (t *txn) demandsRelease(ctx context.Context, name server.StackReleaseName) {
	i := impact.Impact{Undo: undoRelease, Seconds: t.lasted(ctx, "release")}
	t.demandsAs(ctx, i, string(name), sqlOfRelease)
}

// StartStackRelease starts the rollout of a release: every server gets its ring. While another
// one is open it is CodeInvalidTransition.
func (s *Store) StartStackRelease(ctx context.Context, name server.StackReleaseName, by string) (out server.StackRelease, err error) {
	err = s.inTx(ctx, fmt.Sprintf("start release %s", name), func(tx *txn) error {
		r, err := get[server.StackRelease](ctx, tx, noSuchRelease(name), sqlHoldRelease, name)
		if err != nil {
			return err
		}
		switch r.Status {
		case server.ReleaseRolling:
			out = r
			return nil
		case server.ReleaseCreated:
		case server.ReleasePaused, server.ReleaseStopped, server.ReleaseDone, server.ReleaseCancelled:
			return prego.Errorf(prego.CodeInvalidTransition, "release %s is %s; only a paused or stopped release can be resumed", name, r.Status)
		}
		servers := manyIn[server.BenchServer](ctx, tx, sqlBenchServers)
		var ids []string
		var rings []int
		for id, ring := range server.AssignRings(name, r.Rings, servers) {
			ids, rings = append(ids, string(id)), append(rings, ring)
		}
		tx.run(ctx, sqlEnrol, name, ids, rings)
		tx.demandsRelease(ctx, name)
		out = oneIn[server.StackRelease](ctx, tx, sqlReleaseStatus, name, server.ReleaseRolling, "", fmt.Sprintf("%d servers, started by %s", len(ids), by))
		return nil
	})
	if isViolation(err, "stack_releases_open") {
		return out, prego.Errorf(prego.CodeInvalidTransition, "another release is being rolled out: let it end, or cancel it")
	}
	return out, err
}

const (
	sqlReleaseRetries = `
UPDATE stack_release_servers SET status = CASE WHEN status = 'broken' THEN 'updating' ELSE 'pending' END, reason = CASE WHEN status = 'broken' THEN reason ELSE '' END,
    message = CASE WHEN status = 'broken' THEN message ELSE '' END, undoing = status = 'broken', finished_at = NULL, updated_at = now()
WHERE release = $1 AND status IN ('rolled_back', 'broken')`
	sqlReleaseBroken = `SELECT server_id FROM stack_release_servers WHERE release = $1 AND status = 'broken' ORDER BY 1 LIMIT 1`
	sqlReleaseSkips  = `UPDATE stack_release_servers SET status = 'skipped', message = 'the release was cancelled', finished_at = now(), updated_at = now() WHERE release = $1 AND status = 'pending'`
)

const (
	// Rings whose servers were all lost or deleted before they had the release.
	lostRings = `empty AS (SELECT ring, count(*) AS servers FROM stack_release_servers WHERE release = $1
    GROUP BY ring HAVING bool_and(status = 'skipped'))`

	sqlFillRing = `
WITH ` + lostRings + `, first AS (SELECT ring, servers FROM empty ORDER BY ring LIMIT 1)
UPDATE stack_release_servers v SET ring = f.ring, updated_at = now() FROM first f
WHERE v.release = $1 AND v.server_id IN (SELECT n.server_id FROM stack_release_servers n JOIN first ON n.ring > first.ring
    WHERE n.release = $1 AND n.status = 'pending' ORDER BY n.ring, n.server_id LIMIT (SELECT servers FROM first))`
	sqlCloseRings = `
WITH ` + lostRings + `
UPDATE stack_release_servers v SET ring = p.ring, updated_at = now()
FROM (SELECT max(ring) AS ring FROM stack_release_servers WHERE release = $1 AND status = 'done') p
WHERE v.release = $1 AND v.ring IN (SELECT ring FROM empty) AND p.ring IS NOT NULL`
)

// PauseStackRelease starts no more servers; servers that are being updated finish.
func (s *Store) PauseStackRelease(ctx context.Context, name server.StackReleaseName, by string) (server.StackRelease, error) {
	return s.steerRelease(ctx, name, server.ReleasePaused, "paused by "+by, func(r server.StackRelease) bool { return r.Status == server.ReleaseRolling }, nil)
}

// ResumeStackRelease continues a release that was paused, or that stopped: servers that
// went back are updated again, and those whose way back failed try it again. In a ring that lost all
// its servers, servers of the rings after it take their places; without any, it counts as part of the
// last ring that has the release.
func (s *Store) ResumeStackRelease(ctx context.Context, name server.StackReleaseName, by string) (server.StackRelease, error) {
	return s.steerRelease(ctx, name, server.ReleaseRolling, "resumed by "+by, func(r server.StackRelease) bool {
		return r.Status == server.ReleasePaused || r.Status == server.ReleaseStopped
	}, func(tx *txn) error {
		tx.run(ctx, sqlReleaseRetries, name)
		tx.demandsRelease(ctx, name)
		if filled, err := changed(ctx, tx, sqlFillRing, name); err != nil || filled {
			return err
		}
		tx.run(ctx, sqlCloseRings, name)
		return nil
	})
}

// CancelStackRelease ends a release: servers that have it keep it, servers that are being
// updated are let go of by their runs, and no more start. While a server's way back has failed, that comes first.
func (s *Store) CancelStackRelease(ctx context.Context, name server.StackReleaseName, by string) (server.StackRelease, error) {
	return s.steerRelease(ctx, name, server.ReleaseCancelled, "cancelled by "+by, func(r server.StackRelease) bool { return r.Status != server.ReleaseDone }, func(tx *txn) error {
		tx.run(ctx, sqlReleaseGone, name)
		broken, err := value[string](ctx, tx, sqlReleaseBroken, name)
		if err == nil {
			return prego.Errorf(prego.CodeInvalidTransition, "server %s could not return to its previous release: resume this release to retry that", broken)
		}
		if !isNoRows(err) {
			return err
		}
		tx.run(ctx, sqlReleaseSkips, name)
		return nil
	})
}

func (s *Store) steerRelease(ctx context.Context, name server.StackReleaseName, to server.ReleaseStatus, message string, from func(server.StackRelease) bool, also func(*txn) error) (out server.StackRelease, err error) {
	err = s.inTx(ctx, fmt.Sprintf("release %s", name), func(tx *txn) error {
		r, err := get[server.StackRelease](ctx, tx, noSuchRelease(name), sqlHoldRelease, name)
		switch {
		case err != nil:
			return err
		case r.Status == to:
			out = r
			return nil
		case !from(r):
			return prego.Errorf(prego.CodeInvalidTransition, "release %s is %s", name, r.Status)
		}
		if also != nil {
			if err := also(tx); err != nil {
				return err
			}
		}
		out = oneIn[server.StackRelease](ctx, tx, sqlReleaseStatus, name, to, "", message)
		return nil
	})
	return out, err
}

// serverLost holds for a server s that no longer answers, serverGone also for a draining or terminated server.
const (
	serverLost = `s.status_reason IN ('server_missing', 'server_lost')`
	serverGone = `(s.status IN ('draining', 'terminated') OR ` + serverLost + `)`
)

const (
	sqlReleaseLate = `
INSERT INTO stack_release_servers (release, server_id, ring) SELECT $1, s.server_id, $2 FROM servers s
WHERE s.role IN ('app', 'node') AND s.status = 'active' AND s.purpose <> 'import_existing' AND s.bench_image <> $3 ON CONFLICT DO NOTHING`
	// A server that is gone is waited for no more, in any state. A silent server may come back with its
	// sites in maintenance: it stays broken.
	sqlReleaseGone = `
UPDATE stack_release_servers v SET status = 'skipped', phase = '', message = 'the server is ' || CASE WHEN ` + serverLost + ` THEN 'lost' ELSE s.status END,
    finished_at = now(), updated_at = now()
FROM servers s WHERE s.server_id = v.server_id AND v.release = $1
  AND (v.status = 'pending' AND s.status <> 'active' OR v.status IN ('updating', 'broken') AND ` + serverGone + `)`
	sqlReleaseState = `
SELECT v.server_id, v.ring, v.status, v.reason, v.message, v.finished_at,
    s.agent_status = 'connected' AND NOT s.closing AND NOT EXISTS (SELECT FROM server_maintenances d WHERE d.server_id = v.server_id AND d.finished_at IS NULL) AS ready,
    ARRAY(SELECT t.org_id FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id WHERE a.app_server_id = v.server_id AND a.released_at IS NULL AND has_site(t.state)) AS orgs
FROM stack_release_servers v JOIN servers s ON s.server_id = v.server_id WHERE v.release = $1 ORDER BY v.ring, v.server_id`
	sqlBeginBench = `
UPDATE stack_release_servers SET status = 'updating', phase = 'waiting', undoing = false, try = try + 1, reason = '', message = '', started_at = now(), finished_at = NULL, updated_at = now()
WHERE release = $1 AND server_id = $2 AND status = 'pending'`
	sqlCloseBench = `
UPDATE servers SET cordoned_at = COALESCE(cordoned_at, now()), closing = true, updated_at = now() WHERE server_id = $1 AND status = 'active' AND NOT closing RETURNING bench_image`
	sqlBenchFrom      = `UPDATE stack_release_servers SET from_image = $3 WHERE release = $1 AND server_id = $2`
	sqlReleaseCurrent = `UPDATE stack_releases SET current = name = $1 WHERE current <> (name = $1)`
	sqlReleaseLooked  = `UPDATE stack_releases SET message = $2, updated_at = now() WHERE name = $1`
)

// releaseServer is a server of a release, as a look at that sees it.
type releaseServer struct {
	ServerID   prego.ServerID
	Ring       int
	Status     server.BenchStatus
	Reason     prego.Reason
	Message    string
	FinishedAt *time.Time
	Ready      bool // it may begin
	Orgs       []prego.OrgID
}

// StepStackRelease decides the next step for a release: which servers start, within the limits,
// and whether it has stopped or is done. Repeating it returns the servers whose runs must be
// under way.
func (s *Store) StepStackRelease(ctx context.Context, name server.StackReleaseName, limits server.StackReleaseLimits) (out server.StackReleaseStep, err error) {
	err = s.inTx(ctx, fmt.Sprintf("release %s", name), func(tx *txn) error {
		r := getIn[server.StackRelease](ctx, tx, noSuchRelease(name), sqlHoldRelease, name)
		if r.Status == server.ReleaseRolling {
			tx.run(ctx, sqlReleaseLate, name, len(r.Rings)-1, r.Image)
		}
		tx.run(ctx, sqlReleaseGone, name)
		servers := manyIn[releaseServer](ctx, tx, sqlReleaseState, name)
		step := releaseStep{tx: tx, release: r, servers: servers, limits: limits}
		if r.Status == server.ReleaseRolling {
			err = step.roll(ctx)
		}
		out = step.result()
		return err
	})
	return out, err
}

// releaseStep is a look at a release under way.
type releaseStep struct {
	tx      *txn
	release server.StackRelease
	servers []releaseServer
	limits  server.StackReleaseLimits
	began   bool
}

func (p *releaseStep) result() server.StackReleaseStep {
	out := server.StackReleaseStep{Status: p.release.Status, Message: p.release.Message, Began: p.began, Total: len(p.servers)}
	for _, v := range p.servers {
		switch v.Status {
		case server.BenchUpdating:
			out.Updating = append(out.Updating, v.ServerID)
			out.Left++
		case server.BenchPending, server.BenchRolledBack, server.BenchBroken:
			out.Left++
		case server.BenchDone, server.BenchSkipped:
		}
	}
	return out
}

// turn changes the release's status.
func (p *releaseStep) turn(ctx context.Context, to server.ReleaseStatus, reason prego.Reason, message string) (err error) {
	p.release, err = one[server.StackRelease](ctx, p.tx, sqlReleaseStatus, p.release.Name, to, reason, message)
	return err
}

func (p *releaseStep) roll(ctx context.Context) error {
	ring, left := -1, 0
	var ended time.Time // of the rings before
	for _, v := range p.servers {
		switch v.Status {
		case server.BenchRolledBack, server.BenchBroken:
			return p.turn(ctx, server.ReleaseStopped, v.Reason, fmt.Sprintf("server %s: %s", v.ServerID, v.Message))
		case server.BenchPending, server.BenchUpdating:
			left++
			if ring < 0 {
				ring = v.Ring
			}
		case server.BenchDone:
			if (ring < 0 || v.Ring < ring) && v.FinishedAt != nil && v.FinishedAt.After(ended) {
				ended = *v.FinishedAt
			}
		case server.BenchSkipped:
		}
	}
	if message := p.unproven(); message != "" {
		return p.turn(ctx, server.ReleaseStopped, server.ReasonRingUnproven, message)
	}
	if left == 0 {
		if err := p.turn(ctx, server.ReleaseDone, "", fmt.Sprintf("%d servers", len(p.servers))); err != nil {
			return err
		}
		_, err := p.tx.Exec(ctx, sqlReleaseCurrent, p.release.Name)
		return err
	}
	message := fmt.Sprintf("ring %s: %d of %d servers left", p.release.Rings[ring].Name, left, len(p.servers))
	if until, err := p.soaks(ctx, ring, ended); err != nil || !until.IsZero() {
		if err == nil {
			p.release.Message = fmt.Sprintf("%s; the previous ring soaks until %s", message, until.UTC().Format(time.RFC3339))
			_, err = p.tx.Exec(ctx, sqlReleaseLooked, p.release.Name, p.release.Message)
		}
		return err
	}
	waits, err := p.begin(ctx, ring)
	if err != nil {
		return err
	}
	if len(waits) > 0 {
		message += "; not ready: " + strings.Join(waits[:min(len(waits), namedTenants)], ", ")
	}
	p.release.Message = message
	_, err = p.tx.Exec(ctx, sqlReleaseLooked, p.release.Name, message)
	return err
}

// unproven is why nothing may follow on a ring that has ended: no server of it got the release, so that the ring proved
// nothing. "" if there is none.
func (p *releaseStep) unproven() string {
	for begin := 0; begin < len(p.servers); { // by rings
		ring := p.servers[begin].Ring
		end := begin
		for end < len(p.servers) && p.servers[end].Ring == ring {
			end++
		}
		of := p.servers[begin:end]
		begin = end
		if slices.ContainsFunc(of, func(v releaseServer) bool { return v.Status == server.BenchPending || v.Status == server.BenchUpdating }) {
			return "" // no ring after it has begun
		}
		if !slices.ContainsFunc(of, func(v releaseServer) bool { return v.Status == server.BenchDone }) {
			return fmt.Sprintf("ring %s ended without a server that has the release (%s: %s): resume it to try it on servers of the rings after it, or cancel it",
				p.release.Rings[ring].Name, of[0].ServerID, of[0].Message)
		}
	}
	return ""
}

const sqlNow = `SELECT now()`

// soaks is until when a ring has to wait for the previous one, zero if it need not.
func (p *releaseStep) soaks(ctx context.Context, ring int, ended time.Time) (until time.Time, err error) {
	if ring == 0 || ended.IsZero() || slices.ContainsFunc(p.servers, func(v releaseServer) bool { return v.Ring == ring && v.Status != server.BenchPending }) {
		return until, nil
	}
	soak := 0
	for _, r := range p.release.Rings[:ring] {
		soak = max(soak, r.SoakSeconds)
	}
	now, err := value[time.Time](ctx, p.tx, sqlNow)
	if end := ended.Add(time.Duration(soak) * time.Second); err == nil && now.Before(end) {
		until = end
	}
	return until, err
}

// begin starts servers of a ring that the limits have room for, and returns servers that
// can't now.
func (p *releaseStep) begin(ctx context.Context, ring int) (waits []string, err error) {
	sites, ofOrg, under := 0, map[prego.OrgID]int{}, 0
	count := func(v releaseServer) {
		under++
		sites += len(v.Orgs)
		for _, o := range v.Orgs {
			ofOrg[o]++
		}
	}
	for _, v := range p.servers {
		if v.Status == server.BenchUpdating {
			count(v)
		}
	}
	for i, v := range p.servers {
		if v.Status != server.BenchPending || v.Ring != ring {
			continue
		}
		if !v.Ready {
			waits = append(waits, string(v.ServerID))
			continue
		}
		if under > 0 && !p.fits(v, sites, ofOrg) {
			continue
		}
		// A maintenance also locks the server, so one of them sees the other.
		if _, err := value[server.Status](ctx, p.tx, sqlHoldServerStatus, v.ServerID); err != nil {
			return nil, err
		}
		m, err := find[server.Maintenance](ctx, p.tx, sqlOpenMaintenance, v.ServerID)
		if err != nil {
			return nil, err
		}
		if m != nil {
			waits = append(waits, string(v.ServerID))
			continue
		}
		from, err := value[string](ctx, p.tx, sqlCloseBench, v.ServerID)
		if isNoRows(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if ok, err := changed(ctx, p.tx, sqlBeginBench, p.release.Name, v.ServerID); err != nil || !ok {
			return nil, err
		}
		if _, err := p.tx.Exec(ctx, sqlBenchFrom, p.release.Name, v.ServerID, from); err != nil {
			return nil, err
		}
		p.servers[i].Status, p.began = server.BenchUpdating, true
		count(v)
		if err := addEvent(ctx, p.tx, server.Event{ServerID: v.ServerID, Step: server.StepBenchUpdate, Message: fmt.Sprintf("release %s, %s", p.release.Name, p.release.Image), Actor: prego.ActorWorkflow}, ""); err != nil {
			return nil, err
		}
	}
	return waits, nil
}

func (p *releaseStep) fits(v releaseServer, sites int, ofOrg map[prego.OrgID]int) bool {
	if sites+len(v.Orgs) > p.limits.Sites {
		return false
	}
	here := map[prego.OrgID]int{}
	for _, o := range v.Orgs {
		here[o]++
	}
	for o, n := range here {
		if ofOrg[o] > 0 && ofOrg[o]+n > p.limits.OrgSites {
			return false
		}
	}
	return true
}

const sqlQuietReleases = `
SELECT r.name FROM stack_releases r WHERE r.updated_at < now() - make_interval(secs => $1)
  AND (r.status = 'rolling' OR EXISTS (SELECT FROM stack_release_servers v WHERE v.release = r.name AND v.status = 'updating')) ORDER BY 1`

// QuietStackReleases are releases that may have lost their runs.
func (s *Store) QuietStackReleases(ctx context.Context, quiet time.Duration) ([]server.StackReleaseName, error) {
	return collectValues[server.StackReleaseName](ctx, s, "releases", sqlQuietReleases, quiet.Seconds())
}
