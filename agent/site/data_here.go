package site

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prego/prego/agent/policy"
)

// On a node the database server is this host's own, and its root is known here: what a shard's
// procedures do for tenants of app servers, these verbs do for a node's.

// writes are the rights that a database's user loses while the database moves. Rights to read stay, and the right to
// triggers, because it is needed to read them.
const writes = "INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, REFERENCES, EVENT, CREATE VIEW, CREATE ROUTINE, " +
	"ALTER ROUTINE, EXECUTE, CREATE TEMPORARY TABLES, LOCK TABLES, DELETE HISTORY, GRANT OPTION"

// Sessions from before a freeze get freezePatience to end by themselves, and then sessionPatience
// until they are gone.
const (
	freezePatience  = time.Second
	sessionPatience = 20 * time.Second
)

// ownDatabase is the name of a site's database on this host.
func (b *bench) ownDatabase(site string) (string, *sql.DB, error) {
	s, err := b.readState(site)
	if err != nil {
		return "", nil, err
	}
	if s == nil || !policy.Is("OURDB", s.DBName) {
		return "", nil, fmt.Errorf("site %s has no database here", site)
	}
	db, err := b.asRoot()
	return s.DBName, db, err
}

// makeData makes the database, and its user, of a site that arrives here.
func (b *bench) makeData(site string) error {
	password, err := b.databasePassword()
	if err != nil {
		return err
	}
	if _, err := b.arrivingSite(site); err != nil {
		return err
	}
	name, db, err := b.ownDatabase(site)
	if err != nil {
		return err
	}
	if other, err := b.siteOf(name, site); err != nil || other != "" {
		return errors.Join(err, taken(name, other))
	}
	user := quoteName(name) + "@" + quoteName(anywhere)
	for _, statement := range []string{
		"CREATE DATABASE IF NOT EXISTS " + quoteName(name) + " CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
		"CREATE USER IF NOT EXISTS " + user + " IDENTIFIED BY " + quoteText([]byte(password)),
		"ALTER USER " + user + " IDENTIFIED BY " + quoteText([]byte(password)),
	} {
		if err := execStep(db, statement); err != nil {
			return fmt.Errorf("the database's user: error %d", errorNumber(err)) // the statement has a password
		}
	}
	if err := grantAll(db, name); err != nil {
		return err
	}
	return b.printResult(map[string]any{"site": site, "db_name": name})
}

// onDatabase names a database in a grant, where an underscore is any character.
func onDatabase(name string) string { return quoteName(strings.ReplaceAll(name, "_", `\_`)) + ".*" }

func grantAll(db *sql.DB, name string) error {
	hosts, err := usersOf(db, name)
	for _, host := range hosts {
		if err == nil {
			err = execStep(db, "GRANT ALL PRIVILEGES ON "+onDatabase(name)+" TO "+quoteName(name)+"@"+quoteName(host))
		}
	}
	return err
}

// grantsOf are the databases, as they are named there, and the hosts of a user's grants. Frappe's own name the
// database without escapes, those here with them.
func grantsOf(db *sql.DB, name string) (grants [][2]string, err error) {
	rows, err := rowsOf(db, "SELECT Db, Host FROM mysql.db WHERE User = ?", name)
	for _, r := range rows {
		grants = append(grants, [2]string{r[0].String, r[1].String})
	}
	return grants, err
}

// thawData gives back what freeze-data takes.
func (b *bench) thawData(site string) error {
	name, db, err := b.ownDatabase(site)
	if err != nil {
		return err
	}
	grants, err := grantsOf(db, name)
	for _, g := range grants {
		if err == nil {
			err = execStep(db, "GRANT ALL PRIVILEGES ON "+quoteName(g[0])+".* TO "+quoteName(name)+"@"+quoteName(g[1]))
		}
	}
	if err == nil && len(grants) == 0 {
		err = grantAll(db, name)
	}
	if err != nil {
		return err
	}
	return b.printResult(map[string]any{"site": site, "frozen": false})
}

// freezeData stops all writes to a site's database, like freeze_database of a shard.
func (b *bench) freezeData(site string) error {
	name, db, err := b.ownDatabase(site)
	if err != nil {
		return err
	}
	grants, err := grantsOf(db, name)
	if err != nil {
		return err
	}
	if len(grants) == 0 {
		return fmt.Errorf("the user of database %s has no rights", name)
	}
	for _, g := range grants {
		if err := execStep(db, "REVOKE "+writes+" ON "+quoteName(g[0])+".* FROM "+quoteName(name)+"@"+quoteName(g[1])); err != nil {
			return err
		}
	}
	newest, err := queryValue[int64](db, "SELECT COALESCE(MAX(ID), 0) FROM information_schema.processlist")
	if err != nil {
		return err
	}
	const before = "FROM information_schema.processlist WHERE user = ? AND id <= "
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		left, err := queryValue[int](db, "SELECT COUNT(*) "+before+fmt.Sprint(newest), name)
		switch {
		case err != nil:
			return err
		case left == 0:
			return b.printResult(map[string]any{"site": site, "frozen": true})
		case time.Since(began) > sessionPatience:
			return errors.New("sessions from before do not end")
		case time.Since(began) > freezePatience:
			if err := killAll(db, "SELECT id "+before+fmt.Sprint(newest), name); err != nil {
				return err
			}
		}
	}
}
