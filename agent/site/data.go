package site

import (
	"archive/tar"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/prego/prego/agent/wire"
)

// A site's database moves to another server as sealed archives of statements: first all of it while the site serves,
// then the changes since, the last time while nothing can be written. Each archive is of one consistent moment. The
// statements are run by the site's own user.

const (
	lockTimeout = 1205
	noTable     = 1146
)

func errorNumber(err error) uint16 {
	var refused *mysql.MySQLError
	if errors.As(err, &refused) {
		return refused.Number
	}
	return 0
}

// Entries of an archive of data, in order. A statement's name is what it is about.
const (
	entryBase  = "base"  // the first: a dataBase
	entryRun   = "run"   // a statement, of the values before it
	entryValue = "value" // a value of the next statement, which is too large to be in its text
	entryCheck = "check" // a dataCheck of the previous statements
	entryEnd   = "end"   // the last: a dataEnd
)

// dataBase identifies an archive, and its predecessor. Moments of one database rise.
type dataBase struct {
	Moment uint64 `json:"moment"`
	Since  uint64 `json:"since"` // 0: it has everything
}

// dataCheck is a number of rows and their sum.
type dataCheck struct {
	Table string `json:"table"`
	Query string `json:"query"`
	Rows  int64  `json:"rows"`
	Sum   uint64 `json:"sum"`
}

// dataEnd is all that a database has.
type dataEnd struct {
	Tables    []string `json:"tables"`
	Sequences []string `json:"sequences"`
}

// dataState is what a host knows of an archive that it packed.
type dataState struct {
	Moment uint64              `json:"moment"`
	Tables map[string]tableWas `json:"tables"`
	Notes  [][2]uint64         `json:"notes"` // that are in it, from and to
}

type tableWas struct {
	Create string `json:"create"`
	Noted  string `json:"noted,omitempty"` // since when, before the archive's moment
	Rows   int64  `json:"rows"`
	Sum    uint64 `json:"sum"`
}

// statementBytes is about how long a statement gets.
const statementBytes = 512 << 10

// largeValue is the size of a value, in bytes, above which it is sent beside its statement: a host has one row of such
// values in memory.
const largeValue = 64 << 10

// keysAtOnce is how many keys one statement has.
const keysAtOnce = 500

// packData seals an archive of a site's database, or of its changes since an earlier one. The last archive is of a
// database without writers.
func (b *bench) packData(site, name, recipient, since string, last bool) error {
	if there := b.sealedBefore(site, name, recipient); there != nil {
		return b.printResult(there)
	}
	var before *dataState
	if since != "" {
		if text, err := b.sites.ReadFile(packedIn(site, since)); err == nil {
			before = &dataState{}
			if json.Unmarshal(text, before) != nil {
				before = nil
			}
		}
	}
	db, at, err := b.asSite(site)
	if err != nil {
		return err
	}
	conn, err := oneSession(db)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var out wire.PackedData
	p := dataPacking{conn: conn, database: at.Name, before: before, last: last, out: &out, now: dataState{Tables: map[string]tableWas{}}}
	if err := b.seal(site, name, recipient, &out.SealedBackup, &out, &p.now, func(archive *tar.Writer) error {
		p.to = archive
		return p.pack()
	}); err != nil {
		return err
	}
	return b.printResult(out)
}

// dataPacking is an archive of data in the making.
type dataPacking struct {
	conn     *sql.Conn
	database string
	to       *tar.Writer
	before   *dataState
	last     bool
	out      *wire.PackedData
	now      dataState
	tables   map[string]*tableOf
	notes    map[string][]string // of tables, their keys that changed
}

func (p *dataPacking) entry(kind string, v any) error {
	text, isText := v.(string)
	if !isText {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		text = string(b)
	}
	return packBytes(p.to, kind, []byte(text))
}

func (p *dataPacking) run(statement string) error { return p.entry(entryRun, statement) }

func (p *dataPacking) pack() (err error) {
	var sequences []string
	if p.tables, sequences, err = what(p.conn, p.database); err != nil {
		return err
	}
	if !p.last { // then nothing can be made any more, and nothing changes
		if err := p.begin(); err != nil {
			return err
		}
	} else if p.before == nil {
		return errors.New("the predecessor of the last archive is not here")
	}
	if err := connExec(p.conn, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"); err != nil {
		return err
	}
	if err := p.readNotes(); err != nil {
		return err
	}
	base := dataBase{Moment: p.now.Moment}
	if p.before != nil {
		base.Since = p.before.Moment
	}
	if err := p.entry(entryBase, base); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(p.tables)) {
		if err := p.table(p.tables[name]); err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	for _, name := range sequences {
		if err := p.sequence(name); err != nil {
			return fmt.Errorf("sequence %s: %w", name, err)
		}
	}
	if sequences == nil {
		sequences = []string{}
	}
	return p.entry(entryEnd, dataEnd{Tables: slices.Sorted(maps.Keys(p.tables)), Sequences: sequences})
}

// begin has changes noted, and forgets those notes that an earlier archive has.
func (p *dataPacking) begin() error {
	if err := capture(p.conn, p.database, p.tables); err != nil {
		return err
	}
	if p.before == nil || len(p.before.Notes) == 0 {
		return p.moment()
	}
	// Only committed rows, and without locking adjacent ones.
	if err := connExec(p.conn, "SET SESSION tx_isolation = 'READ-COMMITTED'"); err != nil {
		return err
	}
	for _, r := range p.before.Notes {
		if err := connExec(p.conn, "DELETE FROM "+quoteName(noteTable)+" WHERE id BETWEEN ? AND ?", r[0], r[1]); err != nil {
			return err
		}
	}
	if err := connExec(p.conn, "SET SESSION tx_isolation = 'REPEATABLE-READ'"); err != nil {
		return err
	}
	return p.moment()
}

// moment takes a number for the archive that is larger than any earlier one.
func (p *dataPacking) moment() error {
	if err := connExec(p.conn, "INSERT INTO "+quoteName(noteTable)+" (t, k) VALUES ('', '')"); err != nil {
		return err
	}
	n, err := rowsOf(p.conn, "SELECT LAST_INSERT_ID()")
	if err != nil {
		return err
	}
	p.now.Moment, err = strconv.ParseUint(n[0][0].String, 10, 64)
	return err
}

// readNotes reads which keys changed. Notes are visible in any order, since their transactions
// end in any order: which ones were is remembered.
func (p *dataPacking) readNotes() error {
	rows, err := p.conn.QueryContext(context.Background(), "SELECT id, t, k FROM "+quoteName(noteTable)+" ORDER BY id")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	seen := map[string]bool{}
	p.notes = map[string][]string{}
	highest := uint64(0)
	for rows.Next() {
		var id uint64
		var table, key string
		if err := rows.Scan(&id, &table, &key); err != nil {
			return err
		}
		highest = id
		if n := len(p.now.Notes); n > 0 && p.now.Notes[n-1][1]+1 == id {
			p.now.Notes[n-1][1] = id
		} else {
			p.now.Notes = append(p.now.Notes, [2]uint64{id, id})
		}
		if table != "" && !seen[table+"\x00"+key] {
			seen[table+"\x00"+key] = true
			p.notes[table] = append(p.notes[table], key)
		}
	}
	if p.last {
		p.now.Moment = max(highest, p.before.Moment) + 1
	}
	return rows.Err()
}

// table packs a table: its changed rows if all of them are noted, and else, if it has changed, all.
func (p *dataPacking) table(t *tableOf) error {
	var was tableWas
	known := false
	if p.before != nil {
		was, known = p.before.Tables[t.Name]
		known = known && was.Create == t.Create
	}
	now := tableWas{Create: t.Create, Noted: t.Noted}
	p.out.Tables++
	noted, query := known && was.Noted != "" && was.Noted == t.Noted, t.sum("")
	if noted {
		if err := p.changed(t); err != nil {
			return err
		}
		// No trigger sees a TRUNCATE. Then the other end has more rows.
		query = "SELECT COUNT(*), 0 FROM " + quoteName(t.Name)
	}
	var err error
	if now.Rows, now.Sum, err = sumOf(p.conn, query); err != nil {
		return err
	}
	if !noted && (!known || was.Rows != now.Rows || was.Sum != now.Sum || was.Noted != "") {
		p.out.Whole++
		if err := p.all(t); err != nil {
			return err
		}
	}
	if err := p.entry(entryCheck, dataCheck{Table: t.Name, Query: query, Rows: now.Rows, Sum: now.Sum}); err != nil {
		return err
	}
	p.now.Tables[t.Name] = now
	if p.last && t.Counter.Valid {
		return p.run("ALTER TABLE " + quoteName(t.Name) + " AUTO_INCREMENT = " + strconv.FormatInt(t.Counter.Int64, 10))
	}
	return nil
}

// sum is the question for how many rows there are, and for a sum over all that they hold.
func (t *tableOf) sum(where string) string {
	parts, nulls := make([]string, 0, len(t.Columns)), make([]string, 0, len(t.Columns))
	for _, c := range t.stored() {
		part := c.read()
		if c.large() { // a text above max_allowed_packet is NULL, and its row would not count
			part = "MD5(" + part + ")"
		} else if c.Charset != "" { // texts of some character sets can't be joined
			part = "CAST(" + part + " AS BINARY)"
		}
		parts, nulls = append(parts, part), append(nulls, "ISNULL("+quoteName(c.Name)+")")
	}
	// A text of each row: its values and which are NULL. 64 bits of MD5 are enough between two copies of the same.
	text := "CONCAT_WS(0x1f, " + strings.Join(parts, ", ") + ", CONCAT(" + strings.Join(nulls, ", ") + "))"
	return "SELECT COUNT(*), COALESCE(BIT_XOR(CAST(CONV(LEFT(MD5(" + text + "), 16), 16, 10) AS UNSIGNED)), 0) FROM " + quoteName(t.Name) + where
}

// stored are the columns with stored values.
func (t *tableOf) stored() []column {
	return slices.DeleteFunc(slices.Clone(t.Columns), func(c column) bool { return c.Generated })
}

func sumOf(conn *sql.Conn, query string) (rows int64, sum uint64, err error) {
	err = conn.QueryRowContext(context.Background(), query).Scan(&rows, &sum)
	return rows, sum, err
}

// all packs a table with all its rows.
func (p *dataPacking) all(t *tableOf) error {
	if err := p.run("DROP TABLE IF EXISTS " + quoteName(t.Name)); err != nil {
		return err
	}
	if err := p.run(t.Create); err != nil {
		return err
	}
	return p.rows(t, "")
}

// rows packs rows of a table.
func (p *dataPacking) rows(t *tableOf, where string) error {
	columns := t.stored()
	if len(columns) == 0 {
		return errors.New("it has no stored columns")
	}
	reads := make([]string, len(columns))
	for i, c := range columns {
		reads[i] = c.read()
	}
	step()
	rows, err := p.conn.QueryContext(context.Background(), "SELECT "+strings.Join(reads, ",")+" FROM "+quoteName(t.Name)+where)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	into := "INSERT INTO " + quoteName(t.Name) + " (" + names(columns) + ") VALUES "
	var statement strings.Builder
	large := false
	values, at := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
	for i := range values {
		at[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(at...); err != nil {
			return err
		}
		began := statement.Len()
		if began == 0 {
			statement.WriteString(into)
		} else {
			statement.WriteByte(',')
		}
		for i, v := range values {
			text := "?"
			if columns[i].large() && (len(v) > largeValue || statement.Len()-began > statementBytes) {
				err = packBytes(p.to, entryValue, v)
				large = true
			} else {
				text, err = columns[i].literal(v)
			}
			if err != nil {
				return err
			}
			statement.WriteByte([2]byte{'(', ','}[min(i, 1)])
			statement.WriteString(text)
		}
		statement.WriteByte(')')
		p.out.Rows++
		if statement.Len() >= statementBytes || large {
			if err := p.run(statement.String()); err != nil {
				return err
			}
			large = false
			statement.Reset()
		}
	}
	if err := rows.Err(); err != nil || statement.Len() == 0 {
		return err
	}
	return p.run(statement.String())
}

// changed packs the rows of a table whose keys were noted: deletes come before changed rows.
func (p *dataPacking) changed(t *tableOf) error {
	notes := p.notes[t.Name]
	p.out.Keys += int64(len(notes))
	if len(notes) == 0 {
		return nil
	}
	var conditions []string
	for some := range slices.Chunk(notes, keysAtOnce) {
		literals := make([]string, len(some))
		for i, note := range some {
			var err error
			if literals[i], err = keyLiteral(t.Key, note); err != nil {
				return err
			}
		}
		conditions = append(conditions, " WHERE "+keyIs(t.Key, literals))
	}
	if err := p.run("START TRANSACTION"); err != nil {
		return err
	}
	for _, where := range conditions {
		if err := p.run("DELETE FROM " + quoteName(t.Name) + where); err != nil {
			return err
		}
	}
	for _, where := range conditions {
		if err := p.rows(t, where); err != nil {
			return err
		}
	}
	if err := p.run("COMMIT"); err != nil {
		return err
	}
	for _, where := range conditions {
		query := t.sum(where)
		rows, sum, err := sumOf(p.conn, query)
		if err != nil {
			return err
		}
		if err := p.entry(entryCheck, dataCheck{Table: t.Name, Query: query, Rows: rows, Sum: sum}); err != nil {
			return err
		}
	}
	return nil
}

// sequence packs a sequence, with the value that comes next.
func (p *dataPacking) sequence(name string) error {
	made, err := rowsOf(p.conn, "SHOW CREATE SEQUENCE "+quoteName(name))
	if err != nil {
		return err
	}
	next, err := rowsOf(p.conn, "SELECT next_not_cached_value FROM "+quoteName(name))
	if err != nil {
		return err
	}
	if !numberText.MatchString(next[0][0].String) {
		return errors.New("its value can't be read")
	}
	for _, statement := range []string{
		"DROP SEQUENCE IF EXISTS " + quoteName(name), made[0][1].String, "DO SETVAL(" + quoteName(name) + ", " + next[0][0].String + ", 0)",
	} {
		if err := p.run(statement); err != nil {
			return err
		}
	}
	return nil
}
