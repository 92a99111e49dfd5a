package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// Advice is a place proposed from outside the engine (placement-policy §1.2, ai_recommended). It can only choose
// among candidates that pass every filter: other names change nothing.
type Advice struct {
	AppServerID prego.ServerID    `json:"app_server_id"`
	DBShardID   prego.ShardID     `json:"db_shard_id"`   // "" is the engine's choice
	RedisPoolID prego.RedisPoolID `json:"redis_pool_id"` // "" is the engine's choice
	Reason      string            `json:"reason"`
}

// AdviceRequest is sent to an adviser: the tenant and the candidates.
type AdviceRequest struct {
	TenantID    prego.TenantID       `json:"tenant_id"`
	OrgID       prego.OrgID          `json:"org_id"`
	ParentOrgID prego.OrgID          `json:"parent_org_id,omitempty"`
	Region      prego.Region         `json:"region"`
	Plan        prego.Plan           `json:"plan"`
	Mode        tenant.PlacementMode `json:"mode"`
	Candidates  []Candidate          `json:"candidates"` // best first
}

// Candidate is a place that passes every filter.
type Candidate struct {
	AppServerID prego.ServerID    `json:"app_server_id"`
	DBShardID   prego.ShardID     `json:"db_shard_id"`
	RedisPoolID prego.RedisPoolID `json:"redis_pool_id"`
	Score       float64           `json:"score"`
	Site        bool              `json:"site"` // a pool site is available there
}

// AskFor builds the request to an adviser, with at most so many candidates.
func (f *Snapshot) AskFor(r Request, most int) AdviceRequest {
	return AdviceRequest{
		TenantID: r.TenantID, OrgID: r.OrgID, ParentOrgID: r.ParentOrgID, Region: r.Region, Plan: r.Plan,
		Mode: f.search(r).mode, Candidates: f.Candidates(r, most),
	}
}

// Candidates returns the places that an adviser may choose from, best first, at most so many: one for each server,
// with the companions that the engine would choose. It changes nothing.
func (f *Snapshot) Candidates(r Request, most int) []Candidate {
	s := f.search(r)
	if code, _ := s.regionAllowed(); code != "" || r.Override != nil {
		return nil
	}
	s.scoreShards()
	s.scorePools()
	var all []Candidate
	s.passing = func(t triple, site bool) {
		srv := &f.servers[t.server]
		all = append(all, Candidate{
			AppServerID: srv.ServerID, DBShardID: f.shards.items[t.shard].ShardID,
			RedisPoolID: prego.RedisPoolID(s.poolFor(srv)), Score: round6(t.score), Site: site,
		})
	}
	s.choose()
	sited := func(c Candidate) bool { return c.Site }
	if slices.ContainsFunc(all, sited) { // a server without a site loses to one with a site
		all = slices.DeleteFunc(all, func(c Candidate) bool { return !c.Site })
	}
	slices.SortStableFunc(all, func(a, b Candidate) int { return cmp.Compare(b.Score, a.Score) })
	return all[:min(len(all), most)]
}

// advised is the proposed triple, if it may be chosen: its server passed in the same contest as the winner, and the
// proposed companions pass for that server.
func (s *search) advised(o Outcome, c contest) (triple, bool) {
	a := s.r.Advice
	if a == nil || !c.advised.ok {
		return triple{}, false
	}
	f, t := s.f, c.advised
	srv := &f.servers[t.server]
	if pool := s.poolFor(srv); a.RedisPoolID != "" && a.RedisPoolID != prego.RedisPoolID(pool) {
		slot, known := f.pools.byID[string(a.RedisPoolID)]
		if !known || srv.Role == prego.RoleNode || f.pools.items[slot].HostServerID != "" ||
			f.poolPlace[slot] != f.hot[t.server].place || s.pool(&f.pools.items[slot]) != passes {
			return triple{}, false
		}
		t.score += s.poolScoreOf(&f.pools.items[slot]) - s.nearTo(srv).poolScore
		t.pool = slot + 1
	}
	if chosen := f.shards.items[t.shard].ShardID; a.DBShardID != "" && a.DBShardID != chosen {
		slot, known := f.shards.byID[string(a.DBShardID)]
		if !known || srv.Role == prego.RoleNode || f.shards.items[slot].HostServerID != "" ||
			f.shardPlace[slot] != f.hot[t.server].place || f.shardScore[slot] < 0 {
			return triple{}, false
		}
		free := func(g siteGroup) bool { return g.shard == slot && s.freeSite(&g) != "" }
		if o == Placed && !slices.ContainsFunc(srv.groups, free) {
			return triple{}, false
		}
		t.score += f.shardScore[slot] - f.shardScore[t.shard]
		t.shard = slot
	}
	return t, true
}

// adviserReason is an adviser's reason, as far as it can be shown.
func adviserReason(reason string) string {
	reason = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(reason, "?"))
	if reason = strings.TrimSpace(prego.Redact(reason)); reason == "" {
		return ""
	}
	if r := []rune(reason); len(r) > 200 {
		reason = string(r[:200]) + "…"
	}
	return fmt.Sprintf("; the adviser's reason: %q", reason)
}
