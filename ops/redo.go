package ops

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// RedoState is how far the redo log is, and whether this database is the one that wrote it.
type RedoState struct {
	Number          int64 // of the newest entry
	Epoch           int64 // Number when this database replaced another; hosts refuse commands with a lower one
	Due             bool  // it is not in the storage yet, or rows have changed since
	Verified        string
	Lineage         string // differs from Verified if another database may have taken its place
	RecoveringSince *time.Time
	Recovering      string // why, in words
	SavedAt         *time.Time
}

// Unverified is why the control plane may not change the world by this database, "" if it may. One that was never
// compared with the storage is new.
func (s RedoState) Unverified() string {
	switch {
	case s.RecoveringSince != nil:
		return s.Recovering
	case s.Verified != "" && s.Verified != s.Lineage:
		return "the database has failed over, or was restored: a worker compares it with the redo log"
	}
	return ""
}

// RedoEntry is one entry of the redo log.
type RedoEntry struct {
	Number int64     `json:"number"`
	At     time.Time `json:"at"`
	Rows   []RedoRow `json:"rows"`
	// More rows had changed when it was made: only with the next entries is it of one moment.
	More bool `json:"more,omitempty"`
	// Void is the first of the entries before this one that an operator has rejected; 0 is none.
	Void int64 `json:"void,omitempty"`
}

// Valid are the entries that complete a database: without those that were rejected, and up to the last one that is of
// one moment.
func Valid(entries []RedoEntry) []RedoEntry {
	var out []RedoEntry
	for _, e := range entries {
		if e.Void > 0 {
			out = slices.DeleteFunc(out, func(o RedoEntry) bool { return o.Number >= e.Void })
			continue
		}
		out = append(out, e)
	}
	for len(out) > 0 && out[len(out)-1].More {
		out = out[:len(out)-1]
	}
	return out
}

// RedoRow is a row that changed: its table, its primary key, and what it became, with all columns; nil if it is gone.
type RedoRow struct {
	Tbl string          `json:"t"`
	Key json.RawMessage `json:"k"`
	Val json.RawMessage `json:"v"`
}

// id tells rows apart, however their keys are written.
func (r RedoRow) id() string { return r.Tbl + compact(r.Key) }

func compact(in json.RawMessage) string {
	var out bytes.Buffer
	if err := json.Compact(&out, in); err != nil {
		return string(in)
	}
	return out.String()
}

func (r RedoRow) gone() bool { return len(r.Val) == 0 || string(r.Val) == "null" }

// RedoTable is what becomes of a table's rows.
type RedoTable struct {
	Table string
	Keys  []json.RawMessage // of all
	Rows  []json.RawMessage // of those that exist
	Gone  []json.RawMessage // keys of the others
}

// ByTable orders rows by their tables, each with the last that is said of it.
func ByTable(rows []RedoRow) []RedoTable {
	last := map[string]map[string]RedoRow{}
	for _, r := range rows {
		if last[r.Tbl] == nil {
			last[r.Tbl] = map[string]RedoRow{}
		}
		last[r.Tbl][r.id()] = r
	}
	var out []RedoTable
	for _, name := range slices.Sorted(maps.Keys(last)) {
		t := RedoTable{Table: name, Rows: []json.RawMessage{}, Gone: []json.RawMessage{}}
		for _, key := range slices.Sorted(maps.Keys(last[name])) {
			r := last[name][key]
			t.Keys = append(t.Keys, r.Key)
			if r.gone() {
				t.Gone = append(t.Gone, r.Key)
			} else {
				t.Rows = append(t.Rows, r.Val)
			}
		}
		out = append(out, t)
	}
	return out
}

// RedoChange is a row that a restored database has otherwise than the redo log.
type RedoChange struct {
	Table string
	Name  string // of the row
	Is    string // what becomes of it, in words
}

// named are the tables whose rows operators know by a name, with the column of it, and the columns that say how the
// thing is.
var named = map[string][]string{
	"orgs":               {"org_id", "tier"},
	"org_quotas":         {"dimension", "org_id", "limit_value"},
	"servers":            {"server_id", "status", "cordoned_at", "fleet_id"},
	"fleets":             {"fleet_id", "status"},
	"tenants":            {"slug", "state", "plan"},
	"tenant_allocations": {"tenant_id", "app_server_id", "db_shard_id", "redis_pool_id", "released_at"},
	"domains":            {"name", "status", "tenant_id", "deleted_at"},
	"backups":            {"backup_id", "state"},
	"volumes":            {"name", "status", "size_bytes", "deleted_at"},
	"volume_attachments": {"volume_id", "group_id", "server_id", "deleted_at"},
	"ipv4_allocations":   {"address", "status", "deleted_at"},
	"process_groups":     {"name", "status", "replicas", "deleted_at"},
	"routes":             {"hostname", "deleted_at"},
}

// RedoChanges are the differences between rows as they are, and as the log has them, of things that operators know by a
// name; others are changes without a name.
func RedoChanges(before, after []RedoRow) []RedoChange {
	was, last := map[string]RedoRow{}, map[string]RedoRow{}
	for _, r := range before {
		was[r.id()] = r
	}
	for _, r := range after {
		last[r.id()] = r
	}
	var out []RedoChange
	for key, r := range last {
		old := was[key]
		if old.gone() && r.gone() || compact(old.Val) == compact(r.Val) {
			continue
		}
		c := RedoChange{Table: r.Tbl}
		if columns, ok := named[r.Tbl]; ok {
			c.Name, c.Is = describe(columns, old, r)
		}
		if c.Name == "" || c.Is != "" {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b RedoChange) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// describe names a row and says what becomes of it; "" if nothing changes that operators would see.
func describe(columns []string, old, became RedoRow) (name, is string) {
	read := func(r RedoRow) (m map[string]any) {
		if !r.gone() {
			_ = json.Unmarshal(r.Val, &m) // Postgres wrote it
		}
		return m
	}
	text := func(v any) string {
		switch v := v.(type) {
		case nil:
			return "-"
		case string:
			return cmp.Or(v, "-")
		case float64:
			return fmt.Sprintf("%.0f", v)
		}
		return fmt.Sprint(v)
	}
	o, n := read(old), read(became)
	var said []string
	for _, c := range columns[1:] {
		switch from, to := text(o[c]), text(n[c]); {
		case old.gone() && to != "-":
			said = append(said, c+" "+to)
		case !old.gone() && !became.gone() && from != to:
			said = append(said, fmt.Sprintf("%s %s → %s", c, from, to))
		}
	}
	is = strings.Join(said, ", ")
	switch {
	case old.gone():
		return text(n[columns[0]]), "is added: " + is
	case became.gone():
		return text(o[columns[0]]), "is removed"
	}
	return text(n[columns[0]]), is
}
