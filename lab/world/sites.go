package world

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/prego/prego/agent/wire"
)

// contents are a site's: rows of its database and files of its directory, by the numbers that visitors gave
// them, and its apps.
type contents struct {
	Rows, Files []int
	Apps        []string
	Scheduler   bool
}

func (c contents) clone() contents {
	return contents{
		Rows: slices.Clone(c.Rows), Files: slices.Clone(c.Files), Apps: slices.Clone(c.Apps),
		Scheduler: c.Scheduler,
	}
}

// same compares what visitors wrote.
func (c contents) same(o contents) bool {
	return slices.Equal(c.Rows, o.Rows) && slices.Equal(c.Files, o.Files)
}

// site is a site of a bench: agent/site's data on a host's disk.
type site struct {
	contents
	Database string
	Tenant   string
	Cache    bool
	Offline  bool              // in maintenance
	Settings map[string]string // of set-config
	Restored string            // the backup that it was restored from last
	opened   bool              // for visitors

	// Of moves (agent/site/state.go): Arriving is a directory that is no site yet, Held a read-only site, Frozen a site
	// with a read-only database.
	Arriving, Held, Frozen bool
	settled                bool              // the arriving data has become a site
	arrived                *packed           // the settings that came, until settle-site
	loaded                 int               // the moment of its last arrived data
	moment                 int               // of the last archive of data
	packs                  map[string]packed // archives, by their names

	kept   map[string]kept   // backups, by their names
	spool  map[string][]byte // sealed or incoming files
	report map[string]any    // the report printed for each sealed file
}

// kept is a backup on a host.
type kept struct {
	Of   string `json:"of"` // the name that it was made under
	Site string `json:"site"`
	contents
}

func (h *host) bench(tenantID string, args []string, secrets map[string]string) (string, error) {
	of := func(name string) (*site, error) {
		s := h.sites[name]
		switch {
		case s == nil:
			return nil, fmt.Errorf("site: %s: %s", wire.FailedNoSite, name)
		case tenantID != "" && s.Tenant != "" && s.Tenant != tenantID:
			return nil, fmt.Errorf("site: site_not_owned: %s is of %s", name, s.Tenant)
		}
		return s, nil
	}
	if args[0] == "--site" {
		name, verb := args[1], args[2]
		s, err := of(name)
		if err != nil {
			if verb == "free-site" || verb == "drop-packed" || verb == "delete-backup" { // there is nothing to do
				return "", nil
			}
			return "", err
		}
		if out, known, err := h.moves(name, s, verb, args[3:], secrets); known {
			return out, err
		}
		if s.Arriving && !s.settled && verb != "delete-backup" { // agent/site/state.go, finishedSite
			return "", fmt.Errorf("site %s is not finished", name)
		}
		if out, known, err := h.backups(name, s, verb, args[3:], secrets); known {
			return out, err
		}
		switch verb {
		case "configure":
			var c map[string]any
			if err := json.Unmarshal([]byte(args[3]), &c); err != nil {
				return "", err
			}
			if t, ok := c["prego_tenant_id"].(string); ok {
				s.Tenant = t
			}
		case "install-app":
			if !slices.Contains(s.Apps, args[3]) {
				s.Apps = append(s.Apps, args[3])
			}
		case "enable-scheduler":
			s.Scheduler, s.opened = true, true
		case "disable-scheduler":
			s.Scheduler = false
		case "connect-cache":
			s.Cache = true
		case "set-maintenance-mode":
			s.Offline = args[3] == "on"
		case "set-config":
			if s.Settings == nil {
				s.Settings = map[string]string{}
			}
			if s.Settings[args[3]] = args[4]; args[4] == "None" {
				delete(s.Settings, args[3])
			}
		case "add-user", "migrate", "answers":
		default:
			return "", fmt.Errorf("world: unknown verb %v", args)
		}
		return "", nil
	}
	switch args[0] {
	case "new-site":
		if s := h.sites[args[1]]; s != nil && s.Tenant != "" && s.Tenant != tenantID {
			return "", fmt.Errorf("site: site_not_owned: %s is of %s", args[1], s.Tenant)
		}
		if h.sites[args[1]] == nil {
			h.sites[args[1]] = &site{Database: args[3], Tenant: tenantID}
		}
		return "", nil
	case "promote-site":
		s := h.sites[args[1]]
		if s == nil {
			if done := h.sites[args[2]]; done != nil && done.Tenant == tenantID {
				return "", nil // it was promoted before
			}
			return "", fmt.Errorf("site: %s: %s", wire.FailedNoSite, args[1])
		}
		if h.sites[args[2]] != nil {
			return "", fmt.Errorf("site: site_exists: %s", args[2])
		}
		delete(h.sites, args[1])
		s.Tenant = tenantID
		h.sites[args[2]] = s
		if s.Restored != "" { // what the tenant had at the place that it lost is gone with it
			h.w.mu.Lock()
			h.w.written[args[2]] = s.clone()
			delete(h.w.written, args[1])
			h.w.mu.Unlock()
		}
		return "", nil
	case "erase-site":
		s := h.sites[args[1]]
		erased := wire.ErasedSite{Site: args[1], Directory: s != nil}
		for name, other := range h.sites {
			if name != args[1] && other.Database == args[3] {
				erased.KeptFor = name
			}
		}
		answer, err := json.Marshal(erased)
		switch {
		case s == nil:
			return string(answer), err
		case tenantID != "" && s.Tenant != "" && s.Tenant != tenantID:
			return "", fmt.Errorf("site: site_not_owned: %s is of %s", args[1], s.Tenant)
		case s.Database != args[3]: // agent/site/erase.go, mayErase
			return "", fmt.Errorf("site %s has database %q, not %s", args[1], s.Database, args[3])
		}
		delete(h.sites, args[1])
		return string(answer), err
	case "expect-site", "leave-site":
		return h.expects(tenantID, args)
	}
	return "", fmt.Errorf("world: unknown verb %v", args)
}

// takesWrites: visitors can write to it.
func (s *site) takesWrites() bool { return !s.Arriving && !s.Held && !s.Frozen && !s.Offline }

// visit is a visitor of a tenant's site, who writes a row and a file at the one place that accepts writes, if any.
// Accepted writes are remembered.
func (w *World) visit(slug string) {
	w.Schedule.yield(nil, "visitor of "+slug, "writes")
	w.mu.Lock()
	active := w.active[slug]
	w.mu.Unlock()
	if w.over() || !active {
		return
	}
	var at *host
	var found *site
	var name string
	all := w.hosts.all()
	for _, addr := range slices.Sorted(maps.Keys(all)) {
		h := all[addr]
		h.mu.Lock()
		for n, s := range h.sites {
			if !strings.HasPrefix(n, slug+".") || !h.up || !s.takesWrites() || !s.opened {
				continue
			}
			if found != nil {
				w.violationf("I9 site %s takes writes on %s and on %s", n, at.guest.Name, h.guest.Name)
			}
			at, found, name = h, s, n
		}
		h.mu.Unlock()
	}
	if found == nil {
		return
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	is := w.written[name]
	w.writes++
	w.wroteAt[w.writes] = at.guest.Name
	is.Rows, is.Files = append(is.Rows, w.writes), append(is.Files, w.writes)
	w.written[name] = is
	found.Rows, found.Files = append(found.Rows, w.writes), append(found.Files, w.writes)
}

// lostWrites forgets writes to servers that were lost soon after a tenant had moved there, so that it went back: those
// writes are lost with the server (docs/moves.md, when a server is lost on the way).
func (w *World) lostWrites(watch *pgxpool.Pool) {
	found, err := w.rows(watch, `SELECT t.slug || '.|' || m.to_server_id FROM tenant_moves m JOIN tenants t USING (tenant_id) WHERE m.returned_at IS NOT NULL`)
	if err != nil {
		w.violationf("final: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range found {
		prefix, gone, _ := strings.Cut(f, "|")
		lost := func(n int) bool { return strings.HasSuffix(w.wroteAt[n], "-"+gone) }
		for name, c := range w.written {
			if strings.HasPrefix(name, prefix) {
				c.Rows, c.Files = slices.DeleteFunc(slices.Clone(c.Rows), lost),
					slices.DeleteFunc(slices.Clone(c.Files), lost)
				w.written[name] = c
			}
		}
	}
}
