package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

const ownerFile = wire.SiteOwnerFile

// eraseSite erases everything of a site. The database and its users are first, so that an interrupted call leaves the
// directory, and with it the site's owner, to the next. "bench drop-site" is not usable: it backs up the site, fails
// if the directory or the database is missing, and keeps the files (frappe/commands/site.py, _drop_site).
func (b *bench) eraseSite(site, name string) error {
	out := wire.ErasedSite{Site: site}
	there, err := b.readState(site)
	if err := b.mayErase(site, name, there, err); err != nil {
		return err
	}
	other, err := b.siteOf(name, site)
	if err != nil {
		return err
	}
	if other != "" {
		if s, err := b.readState(other); err != nil || s == nil || s.PromotedFrom != site {
			return errors.Join(err, taken(name, other))
		}
		out.KeptFor = other
	}
	databases := []string{name}
	if there != nil && !there.Made && there.DBName != name && policy.Is("OURDB", there.DBName) {
		databases = append(databases, there.DBName) // of a call that was killed while it made the site
	}
	if err := b.eraseData(&out, site, databases); err != nil {
		return err
	}
	if out.Backups, err = b.count(site, backupsDir, frappesBackups); err != nil {
		return err
	}
	out.Directory = b.exists(site)
	for _, left := range []string{own + "/new-" + site, own + "/trash-" + site} {
		if err := b.sites.RemoveAll(left); err != nil {
			return err
		}
	}
	if err := b.discard(site, site); err != nil {
		return err
	}
	if out.Archives, err = b.eraseArchives(site, name); err != nil {
		return err
	}
	return b.printResult(out)
}

// mayErase refuses a directory of another site.
func (b *bench) mayErase(site, name string, there *state, failed error) error {
	if failed != nil && !errors.Is(failed, errNotOurs) {
		return failed
	}
	if there != nil && there.DBName == name {
		return nil
	}
	if there == nil && failed == nil {
		return nil
	}
	if there != nil && !there.Made {
		return nil // another call was killed while it made one
	}
	config, err := b.readConfig(site + "/" + siteConfig)
	if err != nil {
		return err
	}
	if its := policy.Settings(config).Text("db_name"); its != name {
		return fmt.Errorf("site %s has database %q, not %s", site, its, name)
	}
	return nil
}

// eraseData erases the database, its users and the site's keys in Redis.
func (b *bench) eraseData(out *wire.ErasedSite, site string, names []string) error {
	if out.KeptFor != "" {
		return nil
	}
	for _, name := range names {
		out.Keys += b.forget(site, name)
	}
	db, err := b.asRoot()
	if errors.Is(err, errNoRoot) {
		out.Unreached = true
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		was, users, err := dropDatabase(db, name)
		if err != nil {
			return err
		}
		out.Database, out.Users = out.Database || was, out.Users+users
	}
	return nil
}

// count counts files in directories of a site.
func (b *bench) count(site string, dirs ...string) (n int, err error) {
	for _, dir := range dirs {
		err := walk(b.sites, site+"/"+dir, func(_ string, d fs.DirEntry) error {
			if !d.IsDir() {
				n++
			}
			return nil
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// ignoreGone skips what disappears during the walk.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (b *bench) eraseArchives(site, name string) (n int, err error) {
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), archive)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if !isArchived(e.Name(), site) {
			continue
		}
		dir := archive + "/" + e.Name()
		var config struct {
			DBName string `json:"db_name"`
		}
		text, _ := root.ReadFile(dir + "/" + siteConfig)
		_ = json.Unmarshal(text, &config)
		if e.Name() != site && config.DBName != name {
			continue // of a site whose name ends with a digit
		}
		step()
		if err := root.RemoveAll(dir); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
