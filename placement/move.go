package placement

import (
	"fmt"
	"maps"
	"strings"

	"github.com/prego/prego"
)

// Move requests another place for a tenant or for parts of it. Moving parts must stay in the network of the others. A
// node is a place as a whole.
type Move struct {
	Request
	// Its current place.
	From    prego.ServerID
	ShardID prego.ShardID
	PoolID  prego.RedisPoolID
	// The moving parts.
	Server, Shard, Pool bool
	// An operator's target, "" for the best. Measures, counts and warm plans don't exclude it; everything else does.
	To      prego.ServerID
	ToShard prego.ShardID
	ToPool  prego.RedisPoolID
}

// moveSearch is a decision about a move in progress.
type moveSearch struct {
	*search
	m Move
	// Slots of the parts that stay or have a target; -1 for the best.
	shard, pool int32
}

// DecideMove chooses the place with the highest score among the places that pass every filter, as for a new tenant.
func (f *Snapshot) DecideMove(m Move) Decision {
	busy := map[string]bool{}
	maps.Copy(busy, m.Busy)
	// A part does not move to its current place.
	if m.Shard {
		busy[string(m.ShardID)] = true
	}
	if m.Pool {
		busy[string(m.PoolID)] = true
	}
	m.Busy = busy
	s := &moveSearch{search: f.search(m.Request), m: m, shard: -1, pool: -1}
	s.algorithm = BestFit
	if code, why := s.regionAllowed(); code != "" {
		return s.refuse(code, why)
	}
	s.reportConstraint()
	s.scoreShards()
	s.scorePools()
	if m.To != "" || m.ToShard != "" || m.ToPool != "" {
		s.algorithm = Manual
	}
	if d, ok := s.fixed(); !ok {
		return d
	}
	at := m.From
	if m.Server {
		at = m.To
	}
	if at != "" {
		i, ok := f.find(at)
		if !ok {
			return s.refuse(prego.CodeServerUnknown, fmt.Sprintf("there is no app server %q", at))
		}
		t, why := s.place(i)
		if why != passes {
			return s.not("app server", string(at), why, m.To != "")
		}
		return s.moved(t)
	}
	var best triple
	for i := range f.hot {
		s.looked++
		t, why := s.place(i)
		if why != passes {
			s.reject(listServers, string(f.servers[i].ServerID), why)
			continue
		}
		if !best.ok || t.score > best.score+epsilon {
			best = t
		}
	}
	if !best.ok && s.counts[rejectNoEdges] > 0 {
		return s.refuse(prego.CodeNetworkWithoutEdges, noEdgesThere(s.where()))
	}
	if !best.ok {
		return s.nowhere("no other app server takes the tenant" + s.where())
	}
	return s.moved(best)
}

// where names what binds the tenant to a network.
func (s *moveSearch) where() string {
	if !s.m.Shard {
		return fmt.Sprintf(" in the network of DB shard %s", s.m.ShardID)
	}
	if !s.m.Pool {
		return fmt.Sprintf(" in the network of Redis pool %s", s.m.PoolID)
	}
	return " in region " + string(s.r.Region)
}

func (s *moveSearch) nowhere(why string) Decision {
	out := s.noCapacity()
	out.Code, out.SelectionReason = prego.CodeInsufficientResources, why
	return out
}

// noEdgesThere is the remedy where a tenant would be unreachable.
func noEdgesThere(where string) string {
	return "visitors reach the tenant through edges, and no edge is active" + where +
		": create some first, as with prego fleet create --role edge"
}

func (s *moveSearch) not(what, id string, why reason, wanted bool) Decision {
	if why == rejectNoEdges {
		return s.refuse(prego.CodeNetworkWithoutEdges, noEdgesThere(" in the network of "+what+" "+id))
	}
	if !wanted {
		return s.nowhere(fmt.Sprintf("there is no place for the tenant in the network of app server %s: %s", id, reasonNames[why]))
	}
	return s.refuse(prego.CodeInvariantViolation, fmt.Sprintf("%s %s cannot have the tenant: %s", what, id, reasonNames[why]))
}

// fixed looks up the shard and the pool that stay or are targets.
func (s *moveSearch) fixed() (Decision, bool) {
	s.wished = true
	f, m := s.f, s.m
	id := m.ShardID
	if m.Shard {
		id = m.ToShard
	}
	if id != "" {
		slot, ok := f.shards.byID[string(id)]
		if !ok {
			return s.refuse(prego.CodeShardUnknown, fmt.Sprintf("there is no DB shard %q", id)), false
		}
		if m.Shard {
			if why := s.search.shard(&f.shards.items[slot]); why != passes {
				return s.not("DB shard", string(id), why, true), false
			}
		}
		s.shard = slot
	}
	if m.Pool && m.ToPool != "" {
		slot, ok := f.pools.byID[string(m.ToPool)]
		if !ok {
			return s.refuse(prego.CodeServerUnknown, fmt.Sprintf("there is no Redis pool %q", m.ToPool)), false
		}
		if why := s.search.pool(&f.pools.items[slot]); why != passes {
			return s.not("Redis pool", string(m.ToPool), why, true), false
		}
		s.pool = slot
	}
	return Decision{}, true
}

// waived are the filters that a target which an operator chose need not pass, beside those about room.
func waived(why reason) bool {
	return why == rejectNotServing || why == rejectTrials || why == rejectWarmPlan
}

// place filters one server for a move, with the shard and the pool that the tenant has there.
func (s *moveSearch) place(i int) (t triple, why reason) {
	f, m, h := s.f, s.m, &s.f.hot[i]
	srv := &f.servers[i]
	if m.Server && srv.ServerID == m.From {
		return t, rejectBusy
	}
	if m.Server && f.loses(m.From, &srv.Server) {
		return t, rejectNoEdges
	}
	t = triple{server: i, shard: s.shard, pool: s.pool, score: h.score, ok: true}
	if node := srv.Role == prego.RoleNode; node {
		// All of it or nothing.
		if !m.Server || !m.Shard || !m.Pool ||
			s.shard >= 0 && s.shard != srv.ownShard || s.pool >= 0 && s.pool != srv.ownPool {
			return t, rejectNetwork
		}
		t.shard, t.pool = srv.ownShard, srv.ownPool
	} else {
		here := &s.near[h.place]
		if srv.NetworkID == "" {
			return t, rejectNetwork
		}
		if t.shard >= 0 && (f.shardPlace[t.shard] != h.place || f.shards.items[t.shard].HostServerID != "") {
			return t, rejectNetwork
		}
		if t.pool >= 0 && (f.poolPlace[t.pool] != h.place || f.pools.items[t.pool].HostServerID != "") {
			return t, rejectNetwork
		}
		if m.Shard && t.shard < 0 {
			if t.shard = here.bestShard; t.shard < 0 {
				why = rejectShardFull
			}
		}
		if m.Pool && t.pool < 0 {
			if t.pool = here.bestPool; t.pool < 0 {
				why = rejectPoolFull
			}
		}
	}
	if m.Server {
		s.wished = m.To != ""
		if not := s.server(i, s.flags(h)); not != passes {
			return t, not
		}
	}
	if m.Shard && t.shard >= 0 {
		t.score += max(0, f.shardScore[t.shard])
	}
	return t, why
}

func (s *moveSearch) moved(t triple) Decision {
	f, m, srv := s.f, s.m, &s.f.servers[t.server]
	d := s.decision(Placed)
	d.AppServerID, d.InfraProvider, d.DBShardID, d.RedisPoolID = srv.ServerID, srv.InfraProvider, m.ShardID, m.PoolID
	d.Dedicates = s.exclusive && m.Server
	if m.Shard {
		d.DBShardID = f.shards.items[t.shard].ShardID
	}
	if m.Pool {
		d.RedisPoolID = prego.RedisPoolID(f.pools.items[t.pool].PoolID)
	}
	d.Score, d.Confidence = t.score, 1
	var what []string
	if m.Server {
		what = append(what, fmt.Sprintf("from app server %s to %s", m.From, d.AppServerID))
	}
	if m.Shard {
		what = append(what, fmt.Sprintf("from DB shard %s to %s", m.ShardID, d.DBShardID))
	}
	if m.Pool {
		what = append(what, fmt.Sprintf("from Redis pool %s to %s", m.PoolID, d.RedisPoolID))
	}
	how := ": the place with the most room" + s.where()
	if s.algorithm == Manual {
		how = ": chosen by an operator"
	}
	d.SelectionReason = "moves " + strings.Join(what, ", ") + how
	return d
}
