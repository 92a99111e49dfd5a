package world

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Each invariant is a view, so that Postgres knows its columns. A trigger on each table sends a notice, which [session]
// keeps for itself, with the invariants that a written row may have broken; they are checked once the transaction has
// ended. So the columns need no list, and no table can be forgotten.

// wroteCode is the SQLSTATE of those notices; their text is the numbers of invariants.
const wroteCode = "WORLD"

// watched are the invariants that are checked after each commit, by their numbers. The last ones are compared with the
// outside of the database.
func watched() []invariant { return append(slices.Clone(always), bills, promises, records) }

// What the invariants of the bills, of the promised backups and of the zone's records answer begins with these words, and is no
// violation.
const (
	billed   = "billed "
	promised = "promised "
	recorded = "recorded "
)

// watchBills is the number of the invariant of the bills, watchPromises that of the promised backups, watchRecords that of
// the zone's records.
func watchBills() int { return len(always) }

func watchPromises() int { return len(always) + 1 }

func watchRecords() int { return len(always) + 2 }

// sqlAsks are the invariants as views, and a function that asks some of them, all of one moment. It is a function
// because it plans each only once per session.
func sqlAsks() string {
	var out, asks strings.Builder
	out.WriteString("CREATE SCHEMA world_asks;\n")
	for i, inv := range watched() {
		fmt.Fprintf(&out, "CREATE VIEW world_asks.i%d (found) AS %s;\n", i, inv.sql)
		switch i {
		case watchBills(), watchPromises(), watchRecords():
			as := []string{billed, promised, recorded}[i-watchBills()]
			fmt.Fprintf(&asks, "IF %d = ANY (which) THEN RETURN QUERY SELECT '%s' || i.found FROM world_asks.i%d i; END IF;\n", i, as, i)
		default:
			fmt.Fprintf(&asks, "IF %d = ANY (which) THEN SELECT string_agg(i.found::text, ', ' ORDER BY i.found::text) INTO f FROM world_asks.i%d i; IF f IS NOT NULL THEN RETURN NEXT %s || f; END IF; END IF;\n",
				i, i, quoted(inv.name+": "))
		}
	}
	fmt.Fprintf(&out, `CREATE FUNCTION world_asks.ask(which int[]) RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$ DECLARE f text; BEGIN
%s END $$;
CREATE FUNCTION world_asks.tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE USING ERRCODE = '%s', MESSAGE = TG_ARGV[0]; RETURN NULL; END $$;`, asks.String(), wroteCode)
	return out.String()
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// relation is a table or a view, with the columns of others that a view reads and the functions that it calls.
type relation struct {
	name    string
	table   bool
	columns map[uint32][]string
	calls   []uint32
}

// reads finds what the invariants read: for each table, and each invariant, which columns. An invariant
// without a column only counts rows; "*" is all columns, since what a function reads is known by its text alone.
func reads(ctx context.Context, c *pgx.Conn) (map[string]map[int][]string, error) {
	relations, functions := map[uint32]*relation{}, map[uint32]string{}
	named := map[string]uint32{} // tables, views and functions
	rows, err := c.Query(ctx, `SELECT c.oid, c.relname, c.relkind = 'r', c.relnamespace = 'public'::regnamespace
		FROM pg_class c WHERE c.relkind IN ('r', 'v')
		AND c.relnamespace IN ('public'::regnamespace, 'world_asks'::regnamespace)`)
	if err != nil {
		return nil, err
	}
	var id, from, column uint32
	var name, body string
	var table, public, isFunction bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &name, &table, &public}, func() error {
		relations[id] = &relation{name: name, table: table, columns: map[uint32][]string{}}
		if public {
			named[name] = id
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if rows, err = c.Query(ctx,
		`SELECT oid, proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace`); err != nil {
		return nil, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&id, &name, &body}, func() error {
		functions[id] = literals.ReplaceAllString(body, "''")
		named[name] = id
		return nil
	}); err != nil {
		return nil, err
	}
	rows, err = c.Query(ctx, `SELECT DISTINCT r.ev_class, d.refclassid = 'pg_proc'::regclass, d.refobjid, d.refobjsubid::oid, COALESCE(a.attname, '')
		FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
		LEFT JOIN pg_attribute a ON d.refclassid = 'pg_class'::regclass AND a.attrelid = d.refobjid
		AND a.attnum = d.refobjsubid AND a.attnum > 0
		WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid <> r.ev_class
		AND d.refclassid IN ('pg_class'::regclass, 'pg_proc'::regclass)`)
	if err != nil {
		return nil, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&from, &isFunction, &id, &column, &name}, func() error {
		r := relations[from]
		switch {
		case r == nil:
		case isFunction:
			r.calls = append(r.calls, id)
		case name == "":
			r.columns[id] = append(r.columns[id], []string{}...)
		default:
			r.columns[id] = append(r.columns[id], name)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	out := map[string]map[int][]string{}
	for id, r := range relations {
		n, err := strconv.Atoi(strings.TrimPrefix(r.name, "i"))
		if err != nil || r.table || named[r.name] == id {
			continue
		}
		seen := map[uint32]bool{}
		var look func(id uint32, columns []string)
		look = func(id uint32, columns []string) {
			if r := relations[id]; r != nil && r.table {
				if out[r.name] == nil {
					out[r.name] = map[int][]string{}
				}
				of := slices.Concat(out[r.name][n], columns)
				slices.Sort(of)
				out[r.name][n] = slices.Compact(of)
				return
			}
			if seen[id] {
				return
			}
			seen[id] = true
			if r := relations[id]; r != nil {
				for id, columns := range r.columns {
					look(id, columns)
				}
				for _, f := range r.calls {
					look(f, nil)
				}
				return
			}
			for _, word := range words.FindAllString(functions[id], -1) {
				if id, known := named[word]; known {
					look(id, []string{"*"})
				}
			}
		}
		look(id, nil)
	}
	return out, nil
}

var (
	literals = regexp.MustCompile(`'[^']*'`)
	words    = regexp.MustCompile(`[a-z_0-9]+`)
)

// sqlTells are the triggers.
func sqlTells(read map[string]map[int][]string) []string {
	var out []string
	for _, table := range slices.Sorted(maps.Keys(read)) {
		of := map[string][]string{} // invariants, by the columns that they read
		var all []string
		for _, n := range slices.Sorted(maps.Keys(read[table])) {
			all = append(all, strconv.Itoa(n))
			columns := read[table][n]
			if slices.Contains(columns, "*") {
				columns = []string{"*"}
			}
			if len(columns) > 0 {
				of[strings.Join(columns, ",")] = append(of[strings.Join(columns, ",")], strconv.Itoa(n))
			}
		}
		out = append(out, fmt.Sprintf("CREATE TRIGGER world_tells AFTER INSERT OR DELETE ON public.%s FOR EACH ROW EXECUTE FUNCTION world_asks.tell('%s')", table, strings.Join(all, ",")))
		for i, columns := range slices.Sorted(maps.Keys(of)) {
			before, after := "OLD.*", "NEW.*"
			if columns != "*" {
				before, after = "ROW(OLD."+strings.ReplaceAll(columns, ",", ", OLD.")+")",
					"ROW(NEW."+strings.ReplaceAll(columns, ",", ", NEW.")+")"
			}
			out = append(out, fmt.Sprintf("CREATE TRIGGER world_tells_%d AFTER UPDATE ON public.%s FOR EACH ROW WHEN (%s IS DISTINCT FROM %s) EXECUTE FUNCTION world_asks.tell('%s')", i, table, before, after, strings.Join(of[columns], ",")))
		}
	}
	return out
}

// watchDatabase has the database announce the invariants to check.
func watchDatabase(ctx context.Context, url string) error {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	if _, err := c.Exec(ctx, sqlAsks()); err != nil {
		return fmt.Errorf("invariants: %w", err)
	}
	read, err := reads(ctx, c)
	if err != nil {
		return err
	}
	for _, sql := range sqlTells(read) {
		if _, err := c.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// ask asks some invariants, by number.
func (w *World) ask(watch *pgxpool.Pool, which []int) {
	found, err := w.rows(watch, "SELECT world_asks.ask($1)", which)
	if err != nil {
		w.violationf("invariants: %v", err)
	}
	var live, stored, named []string
	for _, f := range found {
		if name, ok := strings.CutPrefix(f, billed); ok {
			live = append(live, name)
			continue
		}
		if backup, ok := strings.CutPrefix(f, promised); ok {
			stored = append(stored, backup)
			continue
		}
		if name, ok := strings.CutPrefix(f, recorded); ok {
			named = append(named, name)
			continue
		}
		w.violationf("%s", f)
	}
	if err == nil && slices.Contains(which, watchBills()) {
		w.checkBills(live)
	}
	if err == nil && slices.Contains(which, watchPromises()) {
		w.checkPromises(stored)
	}
	if err == nil && w.names != nil && w.names.on && slices.Contains(which, watchRecords()) {
		w.checkRecords(named)
	}
}

// broken are the numbers of the invariants that may have been broken since the last call: by a commit, or by
// what the provider, the object storage or the zone did.
func (w *World) broken() []int {
	which := w.bridge.written()
	if w.provided.Swap(false) && !slices.Contains(which, watchBills()) {
		which = append(which, watchBills())
	}
	if w.changed.Swap(false) && !slices.Contains(which, watchPromises()) {
		which = append(which, watchPromises())
	}
	if w.zoned.Swap(false) && !slices.Contains(which, watchRecords()) {
		which = append(which, watchRecords())
	}
	return which
}

// written are the numbers of the invariants that commits since the last call may have broken.
func (b *bridge) written() []int {
	b.writing.Lock()
	defer b.writing.Unlock()
	out := slices.Sorted(maps.Keys(b.wrote))
	clear(b.wrote)
	return out
}

// told takes the numbers in a notice of [sqlAsks], of an open transaction; call it with the session's lock held.
func (s *session) told(notice []byte) (ours bool) {
	for rest := notice[5:]; len(rest) > 1; {
		kind, text := rest[0], word(rest[1:])
		rest = rest[1+len(text)+1:]
		switch {
		case kind == 'C' && text != wroteCode:
			return false
		case kind == 'C':
			ours = true
		case kind == 'M' && ours:
			for n := range strings.SplitSeq(text, ",") {
				if i, err := strconv.Atoi(n); err == nil {
					s.wrote[i] = true
				}
			}
		}
	}
	return ours
}

// transactionEnded hands them to the bridge. A rolled back transaction has changed nothing, but a needless check does
// no harm.
func (s *session) transactionEnded() {
	if len(s.wrote) == 0 {
		return
	}
	s.b.writing.Lock()
	maps.Copy(s.b.wrote, s.wrote)
	s.b.writing.Unlock()
	clear(s.wrote)
}
