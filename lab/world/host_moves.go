package world

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// packed is what an archive of a move holds: of a site's directory, or of its database.
type packed struct {
	// Of the directory (agent/site/move.go, pack).
	List     []int             `json:"list,omitempty"`  // all that the site has
	Files    []int             `json:"files,omitempty"` // of them, the new ones since the previous archive
	Kept     map[string]kept   `json:"kept,omitempty"`
	Settings map[string]string `json:"settings,omitempty"`
	Offline  bool              `json:"offline,omitempty"`
	Held     bool              `json:"held,omitempty"`
	Restored string            `json:"restored,omitempty"`
	Cache    bool              `json:"cache,omitempty"`
	// Of the database (agent/site/data.go). Since is the moment that it continues from, 0 for all rows.
	Moment    int      `json:"moment,omitempty"`
	Since     int      `json:"since,omitempty"`
	Rows      []int    `json:"rows,omitempty"`
	All       int      `json:"all,omitempty"` // rows that there are then
	Apps      []string `json:"apps,omitempty"`
	Scheduler bool     `json:"scheduler,omitempty"`
}

const moveFile = "move.json"

// expects creates the directory of an arriving site, or deletes a left site's (agent/site/move.go, expectSite and
// leaveSite).
func (h *host) expects(tenantID string, args []string) (string, error) {
	verb, name, database := args[0], args[1], args[3]
	s := h.sites[name]
	switch {
	case verb == "expect-site" && s == nil:
		h.sites[name] = &site{Database: database, Tenant: tenantID, Arriving: true}
	case verb == "expect-site" && (!s.Arriving || s.Database != database):
		return "", fmt.Errorf("site %s is there already", name)
	case verb == "expect-site" || s == nil:
	case s.Database != database:
		return "", fmt.Errorf("site %s has database %q, not %s", name, s.Database, database)
	case !s.Held && !s.Arriving:
		return "", fmt.Errorf("site %s is in use here", name)
	default:
		delete(h.sites, name)
	}
	return fmt.Sprintf(`{"site": %q}`, name), nil
}

// moves are the verbs of a move (agent/site/move.go, data.go, data_load.go, data_here.go), with the database on
// the host itself: only tenants on nodes move here.
func (h *host) moves(name string, s *site, verb string, args []string, secrets map[string]string) (out string,
	known bool, err error,
) {
	unfinished := fmt.Errorf("site %s is not finished", name)
	finished := !s.Arriving || s.settled
	switch verb {
	case "make-data":
		if !s.Arriving {
			err = fmt.Errorf("site %s is not expected here", name)
		}
	case "hold-site":
		if !finished {
			return "", true, unfinished
		}
		s.Held = true
	case "free-site": // an unheld site is free
		if finished {
			s.Held, s.Arriving, s.settled, s.arrived, s.loaded = false, false, false, nil, 0
		}
	case "freeze-data":
		s.Frozen = true
	case "thaw-data":
		s.Frozen = false
	case "forget-data":
		if !finished {
			return "", true, unfinished
		}
		s.loaded = 0
	case "list-apps": // Frappe opens the site
		if !finished {
			return "", true, unfinished
		}
		out = strings.Join(append([]string{"frappe"}, s.Apps...), "\n")
	case "pack-site", "pack-data":
		if !finished {
			return "", true, unfinished
		}
		out, err = h.pack(s, verb, args)
	case "unpack-site":
		err = s.unpack(name, args, secrets)
	case "load-data":
		err = s.load(name, args, secrets)
	case "settle-site":
		err = s.settle(name)
	case "drop-packed":
		for pack := range s.packs {
			if pack == args[0] || len(args) == 2 && strings.HasPrefix(pack, args[0]+"-") {
				delete(s.packs, pack)
			}
		}
		for pack := range s.spool {
			if pack == args[0] || len(args) == 2 && strings.HasPrefix(pack, args[0]+"-") {
				s.drop(pack)
			}
		}
	default:
		return "", false, nil
	}
	return out, true, err
}

// pack seals an archive of a site's directory or of its database: of all of it, or of the changes since an earlier,
// still known one. The last archive of a database continues an earlier one.
func (h *host) pack(s *site, verb string, args []string) (string, error) {
	name, recipient := args[0], args[1]
	if s.report[name] != nil && strings.Contains(printed(s.report[name]), recipient) { // the answer to a repeated call
		return printed(s.report[name]), nil
	}
	var before packed
	since := false
	if len(args) > 2 {
		before, since = s.packs[args[2]]
	}
	last := len(args) > 3
	var p, was packed
	var sealed wire.SealedBackup
	var out any
	if verb == "pack-site" {
		p = packed{
			List: s.Files, Files: newOf(s.Files, before.Files), Kept: s.kept, Settings: s.Settings,
			Offline: s.Offline, Held: s.Held, Restored: s.Restored, Cache: s.Cache,
		}
		was = packed{Files: slices.Clone(s.Files)}
	} else {
		if last && !since {
			return "", errors.New("the predecessor of the last archive is not here")
		}
		s.moment++
		p = packed{
			Moment: s.moment, Since: before.Moment, Rows: newOf(s.Rows, before.Rows), All: len(s.Rows),
			Apps: s.Apps, Scheduler: s.Scheduler,
		}
		was = packed{Moment: s.moment, Rows: slices.Clone(s.Rows)}
	}
	if err := h.sealed(s, name, recipient, &sealed, moveFile, p, contents{}); err != nil {
		return "", err
	}
	if verb == "pack-site" {
		out = wire.PackedSite{SealedBackup: sealed, All: len(s.Files), Changed: len(p.Files)}
	} else {
		out = wire.PackedData{SealedBackup: sealed, Tables: 1, Keys: int64(len(p.Rows)), Rows: int64(len(p.Rows))}
	}
	put(&s.packs, name, was)
	put(&s.report, name, out)
	return printed(out), nil
}

// newOf are the files of all that are new.
func newOf(all, before []int) []int {
	var out []int
	for _, n := range all {
		if !slices.Contains(before, n) {
			out = append(out, n)
		}
	}
	return out
}

// unpack extracts an archive into a directory: into one that is no site yet, or only missing files into a serving site.
func (s *site) unpack(name string, args []string, secrets map[string]string) error {
	missing := args[3] == "missing"
	if !missing && !s.Arriving {
		return fmt.Errorf("site %s is not expected here", name)
	}
	var p packed
	if err := s.unsealed(args[0], args[1], args[2], moveFile, secrets, &p); err != nil {
		return err
	}
	s.Files = append(s.Files, newOf(p.Files, s.Files)...)
	slices.Sort(s.Files)
	if !missing {
		s.Files = slices.DeleteFunc(s.Files, func(n int) bool { return !slices.Contains(p.List, n) })
		s.kept, s.arrived = p.Kept, &p
	}
	s.drop(args[0])
	return nil
}

// load loads an archive of data into the database. A late archive, after its successor, is refused.
func (s *site) load(name string, args []string, secrets map[string]string) error {
	if !s.Arriving {
		return fmt.Errorf("no data of site %s is expected here", name)
	}
	var p packed
	if err := s.unsealed(args[0], args[1], args[2], moveFile, secrets, &p); err != nil {
		return err
	}
	switch {
	case p.Since == 0 && p.Moment > s.loaded:
		s.Rows = nil
	case p.Moment == s.loaded: // repeated
		s.Rows = s.Rows[:len(s.Rows)-len(p.Rows)]
	case p.Since != s.loaded:
		return fmt.Errorf("an archive that continues %d comes after the one of %d", p.Since, s.loaded)
	}
	s.Rows = append(s.Rows, p.Rows...)
	if len(s.Rows) != p.All {
		return coded3(wire.FailedDiffers, "%d rows are there, and %d should be", len(s.Rows), p.All)
	}
	s.Apps, s.Scheduler, s.loaded, s.moment = p.Apps, p.Scheduler, p.Moment, max(s.moment, p.Moment)
	s.drop(args[0])
	return nil
}

// settle creates a site from the arrived data, held until free-site.
func (s *site) settle(name string) error {
	switch {
	case !s.Arriving:
		return fmt.Errorf("site %s is not expected here", name)
	case s.loaded == 0:
		return fmt.Errorf("database %s lacks tables", s.Database)
	case s.arrived == nil || !s.arrived.Held:
		return fmt.Errorf("site %s has not arrived whole", name)
	}
	s.Settings, s.Offline, s.Restored, s.Cache = s.arrived.Settings, s.arrived.Offline, s.arrived.Restored,
		s.arrived.Cache
	s.Held, s.opened, s.settled = true, true, true
	return nil
}
