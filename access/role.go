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

// OfOrgs are the things that belong to orgs, besides the orgs themselves with their quota, costs, audit and access.
var OfOrgs = []string{
	"tenant", "mail", "domain", "certificate", "decision", "move",
	"backup", "backup_policy", "snapshot", "restore", "drill",
	"app", "env", "group", "instance", "route", "ipv4", "volume", "registry",
	"event", "operation", "progress", "queue", "impact", "search",
}

// ofAccess are things of orgs that decide who has access to them.
var ofAccess = []string{"service_account", "token", "invitation"}

// operatorsOnly are capabilities on things of orgs that no access role of an org has: they spend or decide what is the
// installation's. A suspended tenant stays suspended until an operator resumes it.
var operatorsOnly = []string{"move:create", "move:cancel", "tenant:suspend", "tenant:resume"}

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

// roles are the built-in access roles, by name. Roles that read everything don't have the verbs reveal, exec, logs and
// download, whose answers hold secrets or what customers wrote.
var roles = func() map[string]Role {
	seen := []string{"org:read", "quota:read", "cost:read", "limit_request:read"}
	out := map[string]Role{}
	for _, r := range []Role{
		{Name: "operator", Description: "Everything, on everything.", Patterns: []string{Everything}},
		{Name: "support", Description: "Reads everything except secrets, logs and the output of commands, and changes nothing.", Patterns: []string{"*:read"}},
		{
			Name: "auditor", Description: "Reads who did and may do what.",
			Patterns: []string{
				"audit:read", "audit_chain:read", "access:read", "org:read", "event:read", "service_account:read", "token:read", "login:read",
			},
		},
		{
			Name: "billing", Description: "Reads costs, usage and limits.",
			Patterns: []string{"cost:read", "org:read", "quota:read", "limit_request:read"},
		},
		{
			Name: "org_owner", Description: "Everything in an org: its things, who has access, and requests for higher limits.",
			Patterns: slices.Concat(everyVerb(OfOrgs), everyVerb(ofAccess), seen, []string{"limit_request:create", "audit:read", "access:read", "access:grant"}),
			Except:   operatorsOnly,
		},
		{
			Name: "developer", Description: "Everything with an org's tenants, apps and volumes; nothing with access and limits.",
			Patterns: slices.Concat(everyVerb(OfOrgs), seen),
			Except:   operatorsOnly,
		},
		{
			Name: "org_viewer", Description: "Reads an org's things except secrets and logs.",
			Patterns: slices.Concat(everyThing(OfOrgs, "read"), seen),
		},
		{
			Name: "provisioner", Description: "What the backend of a sign-up form needs: create orgs, and tenants in the orgs that it created.",
			Patterns: []string{
				"org:create", "org:read", "quota:read", "tenant:create", "tenant:read", "domain:create", "domain:read",
				"operation:read", "progress:read", "progress:share", "event:read",
			},
			Above: []string{"org:create"},
		},
	} {
		out[r.Name] = r
	}
	return out
}()

// Roles lists the built-in access roles, by name.
func Roles() (out []Role) {
	for _, name := range RoleNames() {
		out = append(out, roles[name])
	}
	return out
}

// RoleNames are the names of the built-in access roles, sorted.
func RoleNames() []string { return slices.Sorted(maps.Keys(roles)) }

// BuiltIn returns a built-in access role.
func BuiltIn(name string) (Role, bool) {
	r, ok := roles[name]
	return r, ok
}

// Includes reports whether the access role includes a capability where it is granted.
func (r Role) Includes(c Capability) bool { return r.allows(c) }
