package site

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/prego/prego/agent/policy"
)

// newSite creates a site with Frappe's tables and an Administrator's password that is not stored. A finished site
// with this database is success; an interrupted one is created again. Its database is here, or on the server at an
// address.
func (b *bench) newSite(site, name, address string) error {
	there, err := b.readState(site)
	if err != nil {
		return err
	}
	// --force: the directory exists, since it records the owner. Whatever else is in
	// the way is dropped; mayMake checks that it belongs to no site.
	args, answers := []string{"new-site", site, "--db-name", name, "--force"}, []string{}
	var db *sql.DB
	var user, password string
	if address == "" {
		if user, password, err = b.root(); err == nil {
			db, err = b.asRoot()
		}
		args = append(args, "--db-root-username", user, "--mariadb-user-host-login-scope", anywhere)
		answers = append(answers, password)
	} else {
		if password, err = b.databasePassword(); err == nil {
			db, err = b.asOwner(name, password, address)
		}
		args = append(args, "--no-setup-db")
	}
	if err != nil {
		return err
	}
	done, err := b.mayMake(site, name, there, db)
	result := map[string]any{"site": site, "db_name": name, "made": !done}
	switch {
	case err != nil:
	case done:
		return b.printResult(result)
	case address != "":
		err = emptyDatabase(db, name)
	case there != nil && !there.Made && there.DBName != name:
		_, _, err = dropDatabase(db, there.DBName)
	}
	if err != nil {
		return err
	}
	if err := b.begin(site, name); err != nil {
		return err
	}
	if address != "" {
		// Frappe keeps an existing configuration in spite of options, and takes the certificates only from there
		// (frappe/installer.py, make_site_config).
		if err := b.writeConfig(site+"/"+siteConfig, b.databaseSettings(name, password, address)); err != nil {
			return err
		}
	}
	admin := rand.Text()
	b.err.hide(admin)
	if err := b.command(append(answers, admin, admin), args...); err != nil {
		return err
	}
	if complete, _, err := inspectTables(db, name); err != nil || !complete {
		return errors.Join(err, fmt.Errorf("bench new-site ended, and database %s lacks tables", name))
	}
	if err := b.writeState(site, state{DBName: name, Made: true}); err != nil {
		return err
	}
	return b.printResult(result)
}

// mayMake refuses to create a site if it, or its database, belongs to another. done means that it already exists.
func (b *bench) mayMake(site, name string, there *state, db *sql.DB) (done bool, err error) {
	complete, anything, err := inspectTables(db, name)
	if err != nil {
		return false, err
	}
	switch {
	case there != nil && there.Made && there.DBName != name:
		return false, fmt.Errorf("site %s already exists with another database", site)
	case there != nil && there.Made && complete:
		return true, nil
	case there != nil && there.Made && b.exists(site+"/"+ownerFile):
		return false, fmt.Errorf("site %s belongs to a tenant, and its database is not whole", site)
	case there == nil && anything:
		return false, fmt.Errorf("database %s is there and has tables: it is of another site", name)
	}
	other, err := b.siteOf(name, site)
	if err != nil || other != "" {
		return false, errors.Join(err, taken(name, other))
	}
	return false, nil
}

func taken(name, site string) error {
	if site == "" {
		return nil
	}
	return fmt.Errorf("database %s is site %s's", name, site)
}

// begin creates a directory in a site's place, marked as unfinished.
func (b *bench) begin(site, name string) error {
	if err := b.discard(site, site); err != nil {
		return err
	}
	draft := own + "/new-" + site
	if err := b.sites.RemoveAll(draft); err != nil {
		return err
	}
	if err := b.sites.MkdirAll(draft, 0o755); err != nil {
		return err
	}
	if err := b.writeState(draft, state{DBName: name}); err != nil {
		return err
	}
	step()
	return b.sites.Rename(draft, site)
}

// discard removes a site's directory: it is renamed first, atomically. If this is
// interrupted, the next call removes it.
func (b *bench) discard(site, dir string) error {
	trash := own + "/trash-" + site
	if err := b.sites.RemoveAll(trash); err != nil {
		return err
	}
	step()
	if err := b.sites.Rename(dir, trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	step()
	return b.sites.RemoveAll(trash)
}

// siteOf finds another site that uses a database.
func (b *bench) siteOf(name, other string) (string, error) {
	sites, err := b.names()
	if err != nil {
		return "", err
	}
	for _, site := range sites {
		if site == other {
			continue
		}
		config, err := b.readConfig(site + "/" + siteConfig)
		if err != nil {
			continue // it names no usable database
		}
		if policy.Settings(config).Text("db_name") == name {
			return site, nil
		}
	}
	return "", nil
}

// promoteSite renames a pre-built site. Frappe has no command for it: a site is its
// directory, and its database keeps its name.
func (b *bench) promoteSite(from, to string) error {
	if from == to {
		return errors.New("the names are the same")
	}
	old, err := b.readState(from)
	if err != nil {
		return err
	}
	there, err := b.readState(to)
	if err != nil {
		return err
	}
	switch {
	case old == nil && there == nil:
		return fmt.Errorf("site %s does not exist", from)
	case old == nil && there.PromotedFrom != from:
		return fmt.Errorf("site %s exists, and was not promoted from %s", to, from)
	case old != nil && there != nil:
		return fmt.Errorf("site %s already exists", to)
	case old != nil && !old.Made:
		return fmt.Errorf("site %s is not finished", from)
	case old != nil:
		old.PromotedFrom = from
		if err := b.writeState(from, *old); err != nil {
			return err
		}
		step()
		if err := b.sites.Rename(from, to); err != nil {
			return err
		}
		step()
	}
	if err := b.change(to, policy.Settings{"host_name": quoteJSON("https://" + to)}); err != nil {
		return err
	}
	// It also clears the cache of the website (frappe/commands/utils.py).
	if err := b.command(nil, "--site", to, "clear-cache"); err != nil {
		return err
	}
	return b.printResult(map[string]any{"site": to, "promoted_from": from})
}

// archive is where "bench drop-site" moves sites, below bench's directory: an operator may have run it by hand.
const archive = "archived/sites"

// isArchived reports whether a name in the archive is a site's: Frappe appends a number to names already taken.
func isArchived(entry, site string) bool {
	rest, ok := strings.CutPrefix(entry, site)
	return ok && strings.Trim(rest, "0123456789") == ""
}
