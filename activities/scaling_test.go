package activities

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

func TestServersFor(t *testing.T) {
	t.Parallel()
	capacities := map[prego.Role]int{prego.RoleDBShard: 100, prego.RoleRedisPool: 200, prego.RoleNode: 20}
	for name, tc := range map[string]struct {
		role prego.Role
		o    tenant.ShortOf
		want []prego.Plan
	}{
		"nobody waits":                    {prego.RoleApp, tenant.ShortOf{}, nil},
		"one makes one":                   {prego.RoleApp, tenant.ShortOf{Waiting: map[prego.Plan]int{"starter": 1}}, []prego.Plan{""}},
		"500 make 25":                     {prego.RoleApp, tenant.ShortOf{Waiting: map[prego.Plan]int{"starter": 300, "trial": 200}}, make([]prego.Plan, 25)},
		"what is on its way counts":       {prego.RoleApp, tenant.ShortOf{Waiting: map[prego.Plan]int{"starter": 30}, InFlight: map[prego.Plan]int{"": 1}}, []prego.Plan{""}},
		"so does the room there is":       {prego.RoleApp, tenant.ShortOf{Waiting: map[prego.Plan]int{"starter": 30}, Room: map[prego.Plan]int{"": 30}}, nil},
		"more on its way than is needed":  {prego.RoleApp, tenant.ShortOf{Waiting: map[prego.Plan]int{"starter": 3}, InFlight: map[prego.Plan]int{"": 4}}, nil},
		"enterprise takes one each":       {prego.RoleApp, tenant.ShortOf{Waiting: map[prego.Plan]int{"enterprise": 2, "starter": 5}}, make([]prego.Plan, 3)},
		"room is none for who is alone":   {prego.RoleApp, tenant.ShortOf{Waiting: map[prego.Plan]int{"enterprise": 2}, Room: map[prego.Plan]int{"": 19}}, make([]prego.Plan, 2)},
		"an empty one is":                 {prego.RoleApp, tenant.ShortOf{Waiting: map[prego.Plan]int{"enterprise": 2}, Empty: 1}, make([]prego.Plan, 1)},
		"shards by lock":                  {prego.RoleDBShard, tenant.ShortOf{Waiting: map[prego.Plan]int{"business": 101, "trial": 1, "enterprise": 1}}, []prego.Plan{"business", "business", "", ""}},
		"a business shard is no other's":  {prego.RoleDBShard, tenant.ShortOf{Waiting: map[prego.Plan]int{"starter": 1}, Room: map[prego.Plan]int{"business": 90}}, []prego.Plan{""}},
		"dedicated redis takes one each":  {prego.RoleRedisPool, tenant.ShortOf{Waiting: map[prego.Plan]int{"business": 3}, Dedicated: 2}, make([]prego.Plan, 3)},
		"and no shared pool on top of it": {prego.RoleRedisPool, tenant.ShortOf{Waiting: map[prego.Plan]int{"business": 2}, Dedicated: 2}, make([]prego.Plan, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.o.Capacities = capacities
			require.Equal(t, tc.want, serversFor(tc.role, tc.o, 20))
		})
	}
}
