package placement

import (
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Move asks for another app server for a tenant that keeps its shard and its pool.
type Move struct {
	Request
	From    prego.ServerID
	ShardID prego.ShardID
	// To is the server that an operator asks for, "" for the best one. Measures, counts and
	// warm plans don't exclude it; everything else does.
	To prego.ServerID
}

// DecideMove chooses the server: of those in the shard's network that pass every filter the one
// with the highest score, as for a new tenant.
func (f *Snapshot) DecideMove(m Move) Decision {
	s := f.search(m.Request)
	s.algorithm = BestFit
	if m.To != "" {
		s.algorithm = Manual
	}
	if code, why := s.regionAllowed(); code != "" {
		return s.refuse(code, why)
	}
	s.reportConstraint()
	slot, ok := f.shards.byID[string(m.ShardID)]
	if !ok {
		return s.refuse(prego.CodeShardUnknown, fmt.Sprintf("there is no DB shard %q", m.ShardID))
	}
	if m.To != "" {
		i, ok := f.find(m.To)
		if !ok {
			return s.refuse(prego.CodeServerUnknown, fmt.Sprintf("there is no app server %q", m.To))
		}
		why := s.target(i, m, f.shardPlace[slot])
		switch why {
		case rejectMemory, rejectCPU, rejectWorkerSlots, rejectCount, rejectNotServing, rejectTrials, rejectWarmPlan:
			why = passes
		}
		if why != passes {
			return s.refuse(prego.CodeInvariantViolation, fmt.Sprintf("app server %s cannot have the tenant: %s", m.To, reasonNames[why]))
		}
		return s.moved(i, m)
	}
	best := -1
	for i := range f.hot {
		s.looked++
		if why := s.target(i, m, f.shardPlace[slot]); why != passes {
			s.reject(listServers, string(f.servers[i].ServerID), why)
			continue
		}
		if best < 0 || f.hot[i].score > f.hot[best].score+epsilon {
			best = i
		}
	}
	if best < 0 {
		out := s.noCapacity()
		out.Code = prego.CodeInsufficientResources
		out.SelectionReason = fmt.Sprintf("no other app server in the network of DB shard %s takes the tenant", m.ShardID)
		return out
	}
	return s.moved(best, m)
}

// target filters one server for a move. Where the tenant is does not count as taken by
// another.
func (s *search) target(i int, m Move, place uint16) reason {
	srv := &s.f.servers[i]
	switch {
	case srv.ServerID == m.From:
		return rejectBusy
	case srv.Role != prego.RoleApp || s.f.hot[i].place != place || srv.NetworkID == "":
		return rejectNetwork
	case srv.Status == server.Active && srv.Cordoned:
		return rejectCordoned
	}
	return s.server(i, &s.f.hot[i])
}

func (s *search) moved(i int, m Move) Decision {
	srv := &s.f.servers[i]
	d := s.decision(Placed)
	d.AppServerID, d.InfraProvider, d.DBShardID, d.Dedicates = srv.ServerID, srv.InfraProvider, m.ShardID, s.exclusive
	d.Score, d.Confidence = s.f.hot[i].score, 1
	d.SelectionReason = fmt.Sprintf("moves from %s: the app server with the most room in the network of its data", m.From)
	if m.To != "" {
		d.SelectionReason = fmt.Sprintf("moves from %s: an operator asked for %s", m.From, m.To)
	}
	return d
}
