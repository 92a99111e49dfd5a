package site

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// While a database is copied to another server, triggers note the keys of changed rows in a separate table, in the
// transaction that changes them. A later archive has the present rows of these keys. Everything is done with the
// rights of the site's own user.
//
// Only tables that are large enough, and whose changes triggers see, are noted. For the others a checksum shows
// whether they have changed, and then they are copied again.

const (
	noteTable     = "__prego_moved"
	triggerPrefix = "prego_moved_"
)

// smallTable is how large a table is, in bytes, before triggers are worth while.
var smallTable int64 = 1 << 20

// Waiting for a table that a long transaction uses holds up all later requests: it is given up after lockPatience
// seconds, and tried again.
const (
	lockPatience = 1
	lockTries    = 60
)

// column of a table.
type column struct {
	Name, Type string
	Charset    string
	Generated  bool
}

// tableOf is a table of a database.
type tableOf struct {
	Name    string
	Create  string // how it is made, without the counter
	Bytes   int64
	Counter sql.NullInt64 // the next automatic number
	InnoDB  bool
	Columns []column
	Key     []column
	Noted   string // since when triggers note its changes; "" if they don't
}

func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// quoteText writes a text as MariaDB reads it with an empty sql_mode.
func quoteText(text []byte) string {
	var b strings.Builder
	b.Grow(len(text) + 2)
	b.WriteByte('\'')
	for _, c := range text {
		switch c {
		case 0:
			b.WriteString(`\0`)
		case '\'', '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case '\n':
			b.WriteString(`\n`)
		case '\r':
			b.WriteString(`\r`)
		case 26:
			b.WriteString(`\Z`)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

var (
	wholeNumbers = []string{"tinyint", "smallint", "mediumint", "int", "bigint"}
	realNumbers  = []string{"decimal", "float", "double", "year"}
	binaries     = []string{"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "point", "linestring", "polygon", "vector", "multipoint", "multilinestring", "multipolygon", "geometrycollection"}

	numberText = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?$`)
)

func (c column) number() bool {
	return slices.Contains(wholeNumbers, c.Type) || slices.Contains(realNumbers, c.Type) || c.Type == "bit"
}

// large reports whether values may have more than 64 KiB, or a row many of nearly as much.
func (c column) large() bool {
	return strings.HasSuffix(c.Type, "text") || slices.Contains(binaries[2:], c.Type)
}

// read is how a column is read so that nothing of it is lost.
func (c column) read() string {
	switch c.Type {
	case "float": // MariaDB prints six digits of it
		return "CAST(" + quoteName(c.Name) + " AS DOUBLE)"
	case "bit":
		return "CAST(" + quoteName(c.Name) + " AS UNSIGNED)"
	}
	return quoteName(c.Name)
}

// literal writes a value that was read.
func (c column) literal(v []byte) (string, error) {
	switch {
	case v == nil:
		return "NULL", nil
	case c.number():
		if !numberText.Match(v) {
			return "", fmt.Errorf("a number of column %s can't be read", c.Name)
		}
		return string(v), nil
	case slices.Contains(binaries, c.Type):
		if len(v) == 0 {
			return "''", nil
		}
		return "X'" + hex.EncodeToString(v) + "'", nil
	}
	return quoteText(v), nil
}

// noteKey is the text of a key in the table of notes.
func noteKey(key []column, of string) string {
	parts := make([]string, len(key))
	for i, c := range key {
		v := of + "." + quoteName(c.Name)
		switch {
		case slices.Contains(binaries, c.Type):
			parts[i] = "HEX(" + v + ")"
		case c.number():
			parts[i] = "HEX(CAST(" + v + " AS CHAR CHARACTER SET utf8mb4))"
		default:
			parts[i] = "HEX(CONVERT(" + v + " USING utf8mb4))"
		}
	}
	return "CONCAT_WS(',', " + strings.Join(parts, ", ") + ")"
}

// keyLiteral is the inverse: what a row's key is compared with.
func keyLiteral(key []column, note string) (string, error) {
	words := strings.Split(note, ",")
	if len(words) != len(key) {
		return "", fmt.Errorf("a key can't be read")
	}
	for i, word := range words {
		v, err := hex.DecodeString(word)
		if err != nil {
			return "", fmt.Errorf("a key can't be read")
		}
		if words[i], err = key[i].literal(v); err != nil {
			return "", err
		}
	}
	if len(words) == 1 {
		return words[0], nil
	}
	return "(" + strings.Join(words, ",") + ")", nil
}

func names(columns []column) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = quoteName(c.Name)
	}
	return strings.Join(out, ",")
}

// keyIs is the condition that a row's key is among the literals.
func keyIs(key []column, literals []string) string {
	what := names(key)
	if len(key) > 1 {
		what = "(" + what + ")"
	}
	return what + " IN (" + strings.Join(literals, ",") + ")"
}

// notable reports whether triggers see all changes of a table, with a key that is the same text for every writer.
func (t tableOf) notable() bool {
	if !t.InnoDB || len(t.Key) == 0 || strings.Contains(t.Create, "FOREIGN KEY") {
		return false
	}
	for _, c := range t.Key {
		if !slices.Contains(wholeNumbers, c.Type) && c.Type != "char" && c.Type != "varchar" && c.Type != "binary" && c.Type != "varbinary" {
			return false
		}
	}
	return true
}

// triggersOf are the triggers of a table by their names, which are of the table: after a RENAME
// they are another one's, and don't count.
func triggersOf(table string) [3]string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(table))
	of := fmt.Sprintf("%016x", h.Sum64())
	return [3]string{triggerPrefix + "i_" + of, triggerPrefix + "u_" + of, triggerPrefix + "d_" + of}
}

// sessionOfMoves gives reads and writes the same meaning on both servers.
const sessionOfMoves = "SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00', foreign_key_checks = 0, unique_checks = 0, " +
	"net_read_timeout = 600, net_write_timeout = 600, wait_timeout = 3600, max_statement_time = 0, tx_isolation = 'REPEATABLE-READ', autocommit = 1"

// oneSession is a session of a database.
func oneSession(db *sql.DB) (*sql.Conn, error) {
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(context.Background(), sessionOfMoves); err != nil {
		return nil, err
	}
	return conn, nil
}

func connExec(conn *sql.Conn, statement string, args ...any) error {
	step()
	_, err := conn.ExecContext(context.Background(), statement, args...)
	return err
}

// rowsOf reads all rows of a short answer.
func rowsOf(db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, query string, args ...any,
) (out [][]sql.NullString, err error) {
	rows, err := db.QueryContext(context.Background(), query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		row, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

var counterText = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

// what describes a database: its tables and its sequences. Other things are refused: they would
// not be at the other end.
func what(conn *sql.Conn, name string) (tables map[string]*tableOf, sequences []string, err error) {
	for of, query := range map[string]string{
		"a routine":              "SELECT routine_name FROM information_schema.routines WHERE routine_schema = ?",
		"an event":               "SELECT event_name FROM information_schema.events WHERE event_schema = ?",
		"a trigger":              "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = ? AND trigger_name NOT LIKE '" + strings.ReplaceAll(triggerPrefix, "_", `\\_`) + "%'",
		"a view, or a versioned": "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND table_type NOT IN ('BASE TABLE', 'SEQUENCE')",
	} {
		there, err := rowsOf(conn, query+" LIMIT 1", name)
		if err != nil {
			return nil, nil, err
		}
		if len(there) > 0 {
			return nil, nil, seal.Failed(wire.FailedUnsupported,
				"the database has %s (%s): only tables and sequences move", of, there[0][0].String)
		}
	}
	tables = map[string]*tableOf{}
	all, err := rowsOf(conn, "SELECT table_name, table_type, COALESCE(engine, ''), COALESCE(data_length + index_length, 0), auto_increment FROM information_schema.tables WHERE table_schema = ? ORDER BY table_name", name)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range all {
		switch table := r[0].String; {
		case r[1].String == "SEQUENCE":
			sequences = append(sequences, table)
		case table != noteTable:
			t := &tableOf{Name: table, InnoDB: r[2].String == "InnoDB"}
			_, _ = fmt.Sscan(r[3].String, &t.Bytes)
			if r[4].Valid {
				t.Counter.Valid = true
				_, _ = fmt.Sscan(r[4].String, &t.Counter.Int64)
			}
			tables[table] = t
		}
	}
	columns, err := rowsOf(conn, "SELECT table_name, column_name, data_type, COALESCE(character_set_name, ''), COALESCE(generation_expression, '') <> '' FROM information_schema.columns WHERE table_schema = ? ORDER BY table_name, ordinal_position", name)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range columns {
		if t := tables[r[0].String]; t != nil {
			t.Columns = append(t.Columns, column{Name: r[1].String, Type: r[2].String, Charset: r[3].String, Generated: r[4].String == "1"})
		}
	}
	keys, err := rowsOf(conn, "SELECT table_name, column_name, sub_part FROM information_schema.statistics WHERE table_schema = ? AND index_name = 'PRIMARY' ORDER BY table_name, seq_in_index", name)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range keys {
		t := tables[r[0].String]
		if t == nil {
			continue
		}
		i := slices.IndexFunc(t.Columns, func(c column) bool { return c.Name == r[1].String })
		if i < 0 || r[2].Valid || t.Columns[i].Generated {
			t.InnoDB = false // not by its key
			continue
		}
		t.Key = append(t.Key, t.Columns[i])
	}
	for _, t := range tables {
		made, err := rowsOf(conn, "SHOW CREATE TABLE "+quoteName(t.Name))
		if err != nil {
			return nil, nil, err
		}
		t.Create = counterText.ReplaceAllString(made[0][1].String, "")
	}
	return tables, sequences, noted(conn, name, tables)
}

// noted reads since when changes of tables are noted. New triggers do not count as the old ones: a table that was
// dropped and created again loses them.
func noted(conn *sql.Conn, name string, tables map[string]*tableOf) error {
	there, err := rowsOf(conn, "SELECT event_object_table, trigger_name, created FROM information_schema.triggers WHERE trigger_schema = ?", name)
	if err != nil {
		return err
	}
	made := map[string]string{}
	for _, r := range there {
		made[r[0].String+"\x00"+r[1].String] = r[2].String
	}
	for _, t := range tables {
		t.Noted = ""
		for _, trigger := range triggersOf(t.Name) {
			at := made[t.Name+"\x00"+trigger]
			if at == "" {
				t.Noted = ""
				break
			}
			t.Noted += at + " "
		}
	}
	return nil
}

// capture has the changes of all large tables noted from now on. Numbers of notes are beyond those
// of a table of notes that was there before, and that a restore took away.
func capture(conn *sql.Conn, name string, tables map[string]*tableOf) error {
	if err := connExec(conn, "CREATE TABLE IF NOT EXISTS "+quoteName(noteTable)+" (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, t VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, k TEXT CHARACTER SET ascii NOT NULL) ENGINE = InnoDB AUTO_INCREMENT = "+strconv.FormatInt(time.Now().UnixMicro(), 10)); err != nil {
		return err
	}
	if err := connExec(conn, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", lockPatience)); err != nil {
		return err
	}
	for _, t := range tables {
		if t.Noted != "" || !t.notable() || t.Bytes <= smallTable {
			continue
		}
		into := "INSERT INTO " + quoteName(noteTable) + " (t, k) VALUES (" + quoteText([]byte(t.Name)) + ", "
		before, after := noteKey(t.Key, "OLD"), noteKey(t.Key, "NEW")
		bodies := [3]string{into + after + ")", "BEGIN " + into + after + "); IF " + before + " <> " + after + " THEN " + into + before + "); END IF; END", into + before + ")"}
		for i, trigger := range triggersOf(t.Name) {
			event := [3]string{"INSERT", "UPDATE", "DELETE"}[i]
			if err := again(func() error {
				return connExec(conn, "CREATE OR REPLACE TRIGGER "+quoteName(trigger)+" AFTER "+event+" ON "+quoteName(t.Name)+" FOR EACH ROW "+bodies[i])
			}); err != nil {
				return fmt.Errorf("changes of %s: %w", t.Name, err)
			}
		}
	}
	return noted(conn, name, tables)
}

// again tries what a table that is in use holds up.
func again(try func() error) (err error) {
	for range lockTries {
		if err = try(); errorNumber(err) != lockTimeout {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// uncapture removes the triggers and what they noted.
func uncapture(db *sql.DB, name string) error {
	conn, err := oneSession(db)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := connExec(conn, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", lockPatience)); err != nil {
		return err
	}
	there, err := rowsOf(conn, "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = ? AND trigger_name LIKE '"+strings.ReplaceAll(triggerPrefix, "_", `\\_`)+"%'", name)
	if err != nil {
		return err
	}
	for _, r := range there {
		if err := again(func() error {
			return connExec(conn, "DROP TRIGGER IF EXISTS "+quoteName(name)+"."+quoteName(r[0].String))
		}); err != nil {
			return err
		}
	}
	return again(func() error { return connExec(conn, "DROP TABLE IF EXISTS "+quoteName(name)+"."+quoteName(noteTable)) })
}
