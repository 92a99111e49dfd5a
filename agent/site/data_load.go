package site

import (
	"archive/tar"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// hereAddress stands for the database server of this host.
const hereAddress = "here"

// loadedIn is the file with the moment up to which a site's data has arrived at its next place.
func loadedIn(site string) string { return site + "/" + backupsDir + "/.loaded.json" }

// expectData lets data of a site that stays on this host arrive in another database.
func (b *bench) expectData(site string) error {
	if s := b.state; !s.DataComes {
		if err := b.sites.Remove(loadedIn(site)); ignoreGone(err) != nil {
			return err
		}
		s.DataComes = true
		if err := b.writeState(site, *s); err != nil {
			return err
		}
	}
	return b.printResult(map[string]any{"site": site, "expected": true})
}

// forgetData ends the copying of a site's data from here: its changes are no longer noted or expected.
func (b *bench) forgetData(site string) error {
	db, at, err := b.asSite(site)
	if err != nil {
		return err
	}
	if err := uncapture(db, at.Name); err != nil {
		return err
	}
	if err := b.sites.Remove(loadedIn(site)); ignoreGone(err) != nil {
		return err
	}
	if b.state.DataComes {
		b.state.DataComes = false
		if err := b.writeState(site, *b.state); err != nil {
			return err
		}
	}
	return b.printResult(map[string]any{"site": site, "expected": false})
}

// loadData runs the statements of an archive in the site's next database, and compares the result with the archive. A
// late archive, after a newer one, is refused.
func (b *bench) loadData(site, name, sum, plainSum, address string) error {
	if err := b.lockData(site); err != nil {
		return err
	}
	s, err := b.readState(site)
	switch {
	case err != nil:
		return err
	case s == nil || !s.DataComes && !s.Arriving: // settled or not: a last archive that is repeated is only compared
		return fmt.Errorf("no data of site %s is expected here", site)
	}
	key, err := seal.Identity(b.secrets[wire.SecretBackupIdentity])
	if err != nil {
		return err
	}
	db, err := b.nextDatabase(s.DBName, address)
	if err != nil {
		return err
	}
	if err := notTheSame(db, s.DBName); err != nil {
		return err
	}
	f, err := b.openSealed(site, name, sum)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	conn, err := oneSession(db)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := connExec(conn, "USE "+quoteName(s.DBName)); err != nil {
		return err
	}
	l := &dataLoading{conn: conn, database: s.DBName}
	limit := conn.QueryRowContext(context.Background(), "SELECT @@max_allowed_packet")
	if err := limit.Scan(&l.packet); err != nil {
		return err
	}
	if text, err := b.sites.ReadFile(loadedIn(site)); err == nil {
		if err := json.Unmarshal(text, &l.was); err != nil {
			return fmt.Errorf("the state of the copy of site %s can't be read", site)
		}
	} else if ignoreGone(err) != nil {
		return err
	}
	if err := seal.Read(f, key, plainSum, l.entries); err != nil {
		return err
	}
	if !l.ended {
		return seal.Failed(wire.FailedUnreadable, "it is no archive of data")
	}
	if err := b.putJSON(loadedIn(site), l.base); err != nil {
		return err
	}
	step()
	if err := b.dropSealed(site, name); err != nil {
		return err
	}
	return b.printResult(map[string]any{"site": site, "name": name, "statements": l.n, "checks": l.checks})
}

// nextDatabase connects to a site's next database with the rights of its user.
func (b *bench) nextDatabase(name, address string) (*sql.DB, error) {
	password, err := b.databasePassword()
	if err != nil {
		return nil, err
	}
	if address != hereAddress {
		return b.asOwner(name, password, address)
	}
	at, err := b.connection("")
	if err != nil {
		return nil, err
	}
	return b.open(at, name, password, "")
}

// notTheSame refuses to load a database into itself: where it is, its changes are noted.
func notTheSame(next *sql.DB, name string) error {
	n, err := queryValue[int](next, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ? AND table_name = ?", name, noteTable)
	if err == nil && n > 0 {
		err = fmt.Errorf("database %s is there already", name)
	}
	return err
}

// dataLoading is an archive on its way into a database.
type dataLoading struct {
	conn     *sql.Conn
	database string
	was      dataBase // of the archive before
	base     dataBase
	ended    bool
	again    bool // it has arrived before
	n        int
	checks   int
	values   [][]byte // of the next statement
	packet   int64    // the largest value that the database server accepts, in bytes
}

func (l *dataLoading) entries(archive *tar.Reader) error {
	first := true
	return seal.Entries(archive, func(h *tar.Header) error {
		var text bytes.Buffer
		text.Grow(int(min(h.Size, l.packet)) + bytes.MinRead) // a value has its size in memory, and no more
		if _, err := text.ReadFrom(archive); err != nil {
			return seal.Unreadable(err)
		}
		if (h.Name == entryBase) != first || l.ended {
			return seal.Failed(wire.FailedUnreadable, "its entries are in disorder")
		}
		first = false
		step()
		return l.entry(h.Name, text.Bytes())
	})
}

func (l *dataLoading) entry(kind string, text []byte) error {
	unreadable := seal.Failed(wire.FailedUnreadable, "entry %q can't be read", kind)
	switch kind {
	case entryBase:
		if json.Unmarshal(text, &l.base) != nil || l.base.Moment == 0 {
			return unreadable
		}
		switch {
		case l.base.Moment == l.was.Moment:
			l.again = true
		case l.base.Moment < l.was.Moment, l.base.Since > l.was.Moment:
			return seal.Failed(wire.FailedDiffers, "the archive is of moment %d, since %d, and the present data of %d",
				l.base.Moment, l.base.Since, l.was.Moment)
		}
	case entryValue:
		if !l.again {
			l.values = append(l.values, text)
		}
	case entryRun:
		l.n++
		values := l.values
		l.values = nil
		if l.again {
			return nil
		}
		if err := l.run(string(text), values); err != nil {
			return err
		}
	case entryCheck:
		var want dataCheck
		if json.Unmarshal(text, &want) != nil {
			return unreadable
		}
		rows, sum, err := sumOf(l.conn, want.Query)
		if err != nil {
			return l.failed(err)
		}
		l.checks++
		if rows != want.Rows || sum != want.Sum {
			return seal.Failed(wire.FailedDiffers,
				"table %s has %d rows instead of %d, or others", want.Table, rows, want.Rows)
		}
	case entryEnd:
		var all dataEnd
		if json.Unmarshal(text, &all) != nil {
			return unreadable
		}
		l.ended = true
		return l.tidy(all)
	default:
		return unreadable
	}
	return nil
}

// run runs a statement. Values go to the server by themselves, each up to its max_allowed_packet.
func (l *dataLoading) run(text string, values [][]byte) error {
	if len(values) == 0 {
		_, err := l.conn.ExecContext(context.Background(), text)
		return l.failed(err)
	}
	args, largest := make([]any, len(values)), 0
	for i, v := range values {
		args[i], largest = v, max(largest, len(v))
	}
	err := l.send(text, args)
	if err == nil {
		return nil
	}
	// A server that is given too much ends the session.
	if int64(largest) >= l.packet {
		into, _, _ := strings.Cut(strings.TrimPrefix(text, "INSERT INTO "), " (")
		return seal.Failed(wire.FailedUnsupported, "table %s has a value of %d bytes, and the next database server's "+
			"max_allowed_packet is %d", into, largest, l.packet)
	}
	return l.failed(err)
}

// send has the server read the values one by one, and not in the statement's text.
func (l *dataLoading) send(text string, args []any) error {
	statement, err := l.conn.PrepareContext(context.Background(), text)
	if err != nil {
		return err
	}
	defer func() { _ = statement.Close() }()
	_, err = statement.ExecContext(context.Background(), args...)
	return err
}

// failed keeps the content of rows out of errors.
func (l *dataLoading) failed(err error) error {
	if n := errorNumber(err); n != 0 {
		return fmt.Errorf("statement %d: the database server refuses it with error %d", l.n, n)
	}
	return err
}

// tidy drops what the database before does not have any more.
func (l *dataLoading) tidy(all dataEnd) error {
	there, err := rowsOf(l.conn, "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = ?", l.database)
	if err != nil {
		return err
	}
	for _, r := range there {
		name, kind := r[0].String, "TABLE"
		wanted := all.Tables
		if r[1].String == "SEQUENCE" {
			kind, wanted = "SEQUENCE", all.Sequences
		}
		if slices.Contains(wanted, name) {
			continue
		}
		if err := connExec(l.conn, "DROP "+kind+" IF EXISTS "+quoteName(name)); err != nil {
			return err
		}
	}
	return nil
}
