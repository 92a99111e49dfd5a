package world

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

// nameLives are a tenant's equally likely actions with its own name.
var nameLives = []func(c *caller, t *wanted, rng *rand.Rand){
	nameKept, nameKept, nameRemoved, nameRemoved, nameRemoved, nameLost, nameAgain, nameAgain, nameUnproven,
	nameDisputed,
}

// edges are requested for networks with tenants: one, or two, one of them removed later.
func (w *World) edges(regions []string, rng *rand.Rand) {
	for _, region := range regions {
		n := 1 + rng.IntN(2)
		for i := range n {
			id := fmt.Sprintf("edge-%s-%d", region, i+1)
			body := map[string]any{
				"server_id": id, "role": "edge", "region": region, "infra_provider": "hetzner",
				"spec": map[string]any{},
			}
			after, later := time.Duration(rng.IntN(90))*time.Second, time.Duration(rng.IntN(600))*time.Second
			gone := i == 1 && rng.IntN(3) > 0
			w.caller("server "+id, after, func(c *caller) {
				if !c.ask(http.MethodPost, "/internal/servers/create", "", body, http.StatusAccepted) {
					return
				}
				if gone && c.until(id, 10*time.Minute, "active") {
					time.Sleep(later)
					w.expected(id, "terminated", "failed")
					c.ask(http.MethodDelete, "/v1/servers/"+id, "", nil, http.StatusAccepted, http.StatusConflict)
				}
			})
		}
	}
}

// named draws a tenant's action with its own name, if any, and starts a caller for it.
func (w *World) named(rng *rand.Rand) func(t *wanted) {
	does, later, own := rng.IntN(4) > 0, time.Duration(rng.IntN(300))*time.Second,
		rand.New(rand.NewPCG(w.Seed, 9+rng.Uint64()))
	life := nameLives[rng.IntN(len(nameLives))]
	return func(t *wanted) {
		if does && w.names.on {
			w.caller("names of "+t.slug, later, func(c *caller) { life(c, t, own) })
		}
	}
}

// claimed is a name as the API answers it.
type claimed struct {
	DomainID string `json:"domain_id"`
	Name     string
	Records  []record
}

// claims claims a name. If a dead process carried out the request before it answered, the repetition is refused as
// taken, and the name is among the tenant's own.
func (c *caller) claims(t *wanted, key, name string, fine ...int) (d claimed) {
	c.askUntil(http.MethodPost, t.path("/domains"), key+"-"+t.slug, map[string]any{"name": name}, &d,
		append(fine, http.StatusCreated))
	if d.DomainID != "" {
		return d
	}
	var own struct{ Domains []claimed }
	c.askUntil(http.MethodGet, t.path("/domains"), "", nil, &own, []int{http.StatusOK})
	for _, o := range own.Domains {
		if o.Name == name {
			return o
		}
	}
	return claimed{}
}

// proves makes the records of a name, and has it looked at.
func (c *caller) proves(d claimed) {
	c.w.Schedule.yield(nil, "caller "+c.name, "makes the records of "+d.DomainID)
	c.w.names.publish("add", d.Records...)
	time.Sleep(5 * time.Second) // as long as its provider takes
	c.ask(http.MethodPost, "/v1/domains/"+d.DomainID+"/check", "", nil, http.StatusOK, http.StatusNotFound)
}

// nameOf is a tenant's own name.
func nameOf(slug string) string { return "www." + slug + "." + customerZone }

func nameKept(c *caller, t *wanted, _ *rand.Rand) {
	if d := c.claims(t, "name", nameOf(t.slug), http.StatusConflict); d.DomainID != "" {
		c.w.names.claim(t.slug, nameVerified)
		c.proves(d)
	}
}

// nameRemoved is a name that is given up, sometimes during its verification and sometimes long after.
func nameRemoved(c *caller, t *wanted, rng *rand.Rand) {
	name, later := nameOf(t.slug), time.Duration(rng.IntN(500))*time.Second
	d := c.claims(t, "name", name, http.StatusConflict)
	if d.DomainID == "" {
		return
	}
	c.proves(d)
	time.Sleep(later)
	if c.ask(http.MethodDelete, t.path("/domains/"+d.DomainID), "", nil, http.StatusNoContent, http.StatusNotFound) {
		c.w.names.claim(t.slug, nameGone)
	}
	time.Sleep(time.Minute)
	c.w.Schedule.yield(nil, "caller "+c.name, "deletes the records of "+d.DomainID)
	c.w.names.publish("remove", d.Records...)
}

// nameAgain is a name that is given up and claimed again.
func nameAgain(c *caller, t *wanted, rng *rand.Rand) {
	nameRemoved(c, t, rng)
	time.Sleep(time.Duration(rng.IntN(60)) * time.Second)
	if d := c.claims(t, "again", nameOf(t.slug), http.StatusConflict); d.DomainID != "" {
		c.w.names.claim(t.slug, nameVerified)
		c.proves(d)
	}
}

// nameLost is one whose owner deletes the proof.
func nameLost(c *caller, t *wanted, _ *rand.Rand) {
	d := c.claims(t, "name", nameOf(t.slug), http.StatusConflict)
	if d.DomainID == "" {
		return
	}
	c.proves(d)
	if c.until(d.DomainID, 10*time.Minute, "verified") {
		c.w.Schedule.yield(nil, "caller "+c.name, "deletes the proof of "+d.DomainID)
		c.w.names.publish("remove", slices.DeleteFunc(d.Records, func(r record) bool { return r.Type != "TXT" })...)
		c.w.names.claim(t.slug, "lost")
	}
}

// nameUnproven is a name with a wrong proof.
func nameUnproven(c *caller, t *wanted, _ *rand.Rand) {
	if d := c.claims(t, "name", nameOf(t.slug), http.StatusConflict); d.DomainID != "" {
		c.w.names.claim(t.slug, "pending")
		c.w.Schedule.yield(nil, "caller "+c.name, "makes another record for "+d.DomainID)
		c.w.names.publish("add", record{
			Type: "TXT", Name: "_prego-challenge." + nameOf(t.slug),
			Value: "prego-verification=of-another-org",
		})
		c.ask(http.MethodPost, "/v1/domains/"+d.DomainID+"/check", "", nil, http.StatusOK, http.StatusNotFound)
	}
}

// nameDisputed is a name that the first tenant may also have claimed: the first observed proof wins.
func nameDisputed(c *caller, t *wanted, _ *rand.Rand) {
	if d := c.claims(t, "name", nameOf("t1"), http.StatusConflict); d.DomainID != "" {
		c.proves(d)
	}
}
