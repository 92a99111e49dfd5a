package site

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/prego/prego/agent/policy"
)

// One attempt to connect to the database server may take dialTime. A starting server is waited for: restartTime.
const (
	dialTime    = 10 * time.Second
	restartTime = 15 * time.Second
)

// errNoRoot means that this host has no root user for a database server: the databases of its sites are elsewhere.
var errNoRoot = errors.New("no root of a database server was given")

// open connects to a database server as Frappe does.
func (at databaseOf) open(user, password, name string) (*sql.DB, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName = user, password, name
	cfg.Net, cfg.Addr = "tcp", net.JoinHostPort(at.Host, fmt.Sprint(at.Port))
	if at.Socket != "" {
		cfg.Net, cfg.Addr = "unix", at.Socket
	}
	cfg.Timeout, cfg.InterpolateParams = dialTime, true
	cfg.AllowAllFiles, cfg.MultiStatements = false, false
	cfg.MaxAllowedPacket = 0 // the server's
	if at.elsewhere() {
		with, err := tlsConfig(at.SSLCA, at.SSLCert, at.SSLKey, at.Host)
		if err != nil {
			return nil, err
		}
		cfg.TLS = with
	}
	cfg.Logger = log.New(io.Discard, "", 0)
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, errors.New("the database's address is not good")
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	for end := time.Now().Add(restartTime); ; time.Sleep(250 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*dialTime)
		err := db.PingContext(ctx)
		cancel()
		if err == nil {
			return db, nil
		}
		var answer *mysql.MySQLError // it answers, and refuses
		if errors.As(err, &answer) || time.Now().After(end) {
			_ = db.Close()
			return nil, fmt.Errorf("the database server: %w", err)
		}
	}
}

// open connects for as long as the verb runs.
func (b *bench) open(at databaseOf, user, password, name string) (*sql.DB, error) {
	db, err := at.open(user, password, name)
	if err == nil {
		b.held = append(b.held, db)
	}
	return db, err
}

// root is the database server's root.
func (b *bench) root() (user, password string, err error) {
	user, password = b.secrets[policy.SecretRootUser], b.secrets[policy.SecretRootPassword]
	if password == "" {
		return "", "", errNoRoot
	}
	user = cmp.Or(user, "root")
	return user, password, nil
}

// asRoot connects as root to the server that new sites get their databases on.
func (b *bench) asRoot() (*sql.DB, error) {
	user, password, err := b.root()
	if err != nil {
		return nil, err
	}
	at, err := b.connection("")
	if err != nil {
		return nil, err
	}
	return b.open(at, user, password, "")
}

// asSite connects to a site's database with the site's own rights.
func (b *bench) asSite(site string) (*sql.DB, databaseOf, error) {
	at, err := b.connection(site)
	if err != nil {
		return nil, at, err
	}
	if at.Name == "" {
		return nil, at, fmt.Errorf("site %s has no database", site)
	}
	b.err.hide(at.Password)
	db, err := b.open(at, at.Name, at.Password, at.Name)
	return db, at, err
}

// queryValue reads one value.
func queryValue[T any](db *sql.DB, query string, args ...any) (T, error) {
	var v T
	err := db.QueryRowContext(context.Background(), query, args...).Scan(&v)
	return v, err
}

func execStep(db *sql.DB, statement string) error {
	step()
	_, err := db.ExecContext(context.Background(), statement)
	return err
}

// inspectTables reports whether a database has the tables of a finished Frappe site, and whether it has any.
func inspectTables(db *sql.DB, name string) (whole, some bool, err error) {
	n, err := queryValue[int](db, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ? AND table_name IN ('tabDefaultValue', 'tabUser', '__Auth')", name)
	if err != nil {
		return false, false, err
	}
	all, err := queryValue[int](db, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ?", name)
	return n == 3, all > 0, err
}

// usersOf are the hosts of a database's user, which has the database's name. Frappe creates one for the given login
// scope, and without one, as when it restores, for root's host.
func usersOf(db *sql.DB, name string) (hosts []string, err error) {
	rows, err := rowsOf(db, "SELECT Host FROM mysql.user WHERE User = ?", name)
	for _, r := range rows {
		hosts = append(hosts, r[0].String)
	}
	return hosts, err
}

// anywhere is the login scope of sites' users: containers get another address each time they are created.
const anywhere = "%"

func dropUser(db *sql.DB, name, host string) error {
	text := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'" }
	return execStep(db, "DROP USER IF EXISTS "+text(name)+"@"+text(host))
}

// dropDatabase drops a database of ours and its users, and reports what existed.
func dropDatabase(db *sql.DB, name string) (there bool, users int, err error) {
	if !policy.Is("OURDB", name) {
		return false, 0, fmt.Errorf("%q is no database of a site's", name)
	}
	n, err := queryValue[int](db, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", name)
	if err != nil {
		return false, 0, err
	}
	// The users first, so that none reconnects after its session is ended.
	hosts, err := usersOf(db, name)
	if err != nil {
		return n > 0, 0, err
	}
	for _, host := range hosts {
		if err := dropUser(db, name, host); err != nil {
			return n > 0, users, err
		}
		users++
	}
	if err := endSessions(db, name); err != nil {
		return n > 0, users, err
	}
	return n > 0, users, execStep(db, "DROP DATABASE IF EXISTS `"+name+"`")
}

// unblock ends, until stop is called, idle transactions of a site's user whenever something waits for a lock on the
// site's tables: a restore drops the database while Frappe's web server is still running.
//
// own means that db is a connection of the site's user, which may not list transactions: then every session that is
// idle for some seconds ends, which the restoring session never is.
func unblock(db *sql.DB, name string, own bool) (stop func()) {
	idle := "SELECT p.id FROM information_schema.processlist p JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = p.id WHERE p.user = ? AND p.command = 'Sleep'"
	if own {
		idle = "SELECT id FROM information_schema.processlist WHERE user = ? AND command = 'Sleep' AND time >= 5 AND id <> CONNECTION_ID()"
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			waiting, err := queryValue[int](db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'Waiting for table metadata lock' AND (db = ? OR info LIKE CONCAT('DROP DATABASE%', ?, '%'))", name, name)
			if err == nil && waiting > 0 {
				_ = killAll(db, idle, name)
			}
		}
	})
	return func() {
		cancel()
		work.Wait()
	}
}

// endSessions ends the sessions of a site's user. One with an open transaction, as
// Frappe's web server leaves them after an error, would block a DROP for a day.
func endSessions(db *sql.DB, name string) error {
	return killAll(db, "SELECT id FROM information_schema.processlist WHERE user = ? AND id <> CONNECTION_ID()", name)
}

func killAll(db *sql.DB, query, name string) error {
	rows, err := rowsOf(db, query, name)
	if err != nil {
		return err
	}
	const noSuchThread = 1094
	for _, r := range rows {
		if err := execStep(db, "KILL "+r[0].String); err != nil && errorNumber(err) != noSuchThread {
			return err
		}
	}
	return nil
}
