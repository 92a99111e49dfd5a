package access

import (
	"maps"
	"slices"
)

// Role is an access role: a set of capabilities. Operators may add custom ones.
type Role struct {
	Name        string
	Description string
	// Patterns are the capabilities: "tenant:create", "tenant:*", "*:read" or "*".
	Patterns []string
	// Except are patterns that are left out of Patterns.
	Except []string
	// Above are the patterns that a grant on something larger than an org allows in each org there; nil are Patterns.
	Above []string
}

func matches(patterns []string, c Capability) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return includes(p, c) })
}

func (r Role) allows(c Capability) bool { return matches(r.Patterns, c) && !matches(r.Except, c) }

func (r Role) allowsAbove(c Capability) bool {
	if r.Above == nil {
		return r.allows(c)
	}
	return matches(r.Above, c)
}

// OfOrgs are the things that belong to orgs: an org's owner may do everything with them.
var OfOrgs = []string{
	"tenant", "backup", "backup_policy", "snapshot", "restore", "move", "drill", "clone", "site", "domain", "certificate", "decision",
	"app", "env", "group", "instance", "route", "ipv4", "volume", "attachment", "registry", "event", "operation", "progress", "queue", "attention",
	"service_account", "token", "invitation", "limit_request",
}

// Secrets are the verbs whose answers hold secrets or what customers wrote: roles that read everything don't have them.
var secrets = []string{"*:reveal", "*:exec", "*:logs", "*:download"}

func everyVerb(things []string) (out []string) {
	for _, t := range things {
		out = append(out, t+":*")
	}
	return out
}

func everyThing(things []string, verb string) (out []string) {
	for _, t := range things {
		out = append(out, t+":"+verb)
	}
	return out
}

// roles are the built-in access roles, by name.
var roles = func() map[string]Role {
	ofOrg := []string{"org:read", "quota:read", "cost:read", "audit:read", "access:read"}
	out := map[string]Role{}
	for _, r := range []Role{
		{Name: "operator", Description: "Everything, on everything.", Patterns: []string{Everything}},
		{Name: "support", Description: "Reads everything except secrets and logs, and changes nothing.", Patterns: []string{"*:read"}},
		{Name: "auditor", Description: "Reads who did and may do what.", Patterns: []string{"audit:read", "access:read", "org:read", "event:read", "service_account:read", "token:read", "login:read"}},
		{Name: "billing", Description: "Reads costs, usage and limits.", Patterns: []string{"cost:read", "org:read", "quota:read", "limit_request:read"}},
		{
			Name: "org_owner", Description: "Everything in an org: its things, who has access, and requests for higher limits.",
			Patterns: append(append(everyVerb(OfOrgs), ofOrg...), "access:grant", "org:audit"),
			Except:   operatorsOnly,
		},
		{
			Name: "developer", Description: "Everything with an org's tenants, apps and volumes; nothing with access and limits.",
			Patterns: append(everyVerb(OfOrgs), "org:read", "quota:read", "cost:read"),
			Except:   append(slices.Clone(operatorsOnly), "service_account:*", "token:*", "invitation:*", "limit_request:create"),
		},
		{Name: "org_viewer", Description: "Reads an org's things except secrets and logs.", Patterns: append(everyThing(OfOrgs, "read"), "org:read", "quota:read", "cost:read")},
		{
			Name: "provisioner", Description: "What the backend of a sign-up form needs: create orgs, and tenants in the orgs that it created.",
			Patterns: []string{"org:create", "org:read", "tenant:create", "tenant:read", "domain:create", "domain:read", "operation:read", "progress:read", "event:read", "progress:share"},
			Above:    []string{"org:create"},
		},
	} {
		out[r.Name] = r
	}
	return out
}()

// operatorsOnly are capabilities of things of orgs that an org's owner does not have: they spend or decide what is the
// installation's.
var operatorsOnly = []string{"move:*", "limit_request:decide", "attention:*", "queue:cancel", "operation:cancel"}

// RoleNames are the names of the built-in access roles, sorted.
func RoleNames() []string { return slices.Sorted(maps.Keys(roles)) }

// BuiltIn returns a built-in access role.
func BuiltIn(name string) (Role, bool) {
	r, ok := roles[name]
	return r, ok
}

// Includes reports whether the access role includes a capability where it is granted.
func (r Role) Includes(c Capability) bool { return r.allows(c) }
