package site

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// Where backups are, in a site's directory. Frappe's own directory is not usable: each of its backups deletes files
// older than a day there, and fails at a directory (frappe/utils/backups.py, delete_temp_backups); each day it keeps
// three databases (frappe/desk/page/backups/backups.py, delete_downloadable_backups).
const (
	backupsDir     = wire.SnapshotsDir
	frappesBackups = "private/backups"
)

// A backup is a directory of files with its name, which appears when it is complete.
const (
	partDatabase = "database.sql.gz"
	partFiles    = "files.tar"
	partPrivate  = "private-files.tar"
	partConfig   = "site_config_backup.json"
)

// file is a file of a backup.
type file struct {
	Path  string `json:"path"` // below the sites
	Bytes int64  `json:"bytes"`
}

// files lists a backup's files, the database's first; none when there is no such backup.
func (b *bench) files(site, name string) (out []file, err error) {
	dir := site + "/" + backupsDir + "/" + name
	if !b.exists(dir) {
		return nil, nil
	}
	for _, part := range []string{partDatabase, partFiles, partPrivate, partConfig} {
		path := dir + "/" + name + "-" + part
		info, err := b.sites.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) && part != partDatabase {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, file{Path: path, Bytes: info.Size()})
	}
	return out, nil
}

func hasFiles(all []file) bool {
	n := 0
	for _, f := range all {
		if strings.HasSuffix(f.Path, "-"+partFiles) {
			n++
		}
	}
	return n == 2 // public and private
}

func (b *bench) saysBackup(name string, all []file) error {
	var sum int64
	for _, f := range all {
		sum += f.Bytes
	}
	return b.printResult(map[string]any{"name": name, "files": all, "bytes": sum})
}

// backup backs up a site. An existing backup is the answer to a repeated call.
func (b *bench) backup(site, name string, withFiles bool) error {
	all, err := b.files(site, name)
	if err != nil {
		return err
	}
	if len(all) > 0 && (hasFiles(all) || !withFiles) {
		return b.saysBackup(name, all)
	}
	dir, draft := site+"/"+backupsDir+"/"+name, site+"/"+backupsDir+"/.making-"+name
	for _, old := range []string{dir, draft} {
		if err := b.sites.RemoveAll(old); err != nil {
			return err
		}
	}
	if err := b.sites.MkdirAll(draft, 0o750); err != nil {
		return err
	}
	part := func(p string) string { return b.path(draft + "/" + name + "-" + p) }
	// Without --ignore-backup-conf a site's own settings can exclude tables, and a
	// backup without them can't be restored.
	args := []string{
		"--site", site, "backup", "--ignore-backup-conf", "--backup-path-db", part(partDatabase), "--backup-path-conf", part(partConfig),
		"--backup-path-files", part(partFiles), "--backup-path-private-files", part(partPrivate),
	}
	if withFiles {
		args = append(args, "--with-files")
	}
	if at, err := b.connection(site); err == nil {
		b.err.hide(at.Password)
	}
	if err := b.command(nil, args...); err != nil {
		return errors.Join(err, b.sites.RemoveAll(draft))
	}
	if err := b.sync(draft); err != nil {
		return err
	}
	step()
	if err := b.sites.Rename(draft, dir); err != nil {
		return err
	}
	if all, err = b.files(site, name); err != nil {
		return err
	}
	if withFiles && !hasFiles(all) {
		return errors.New("bench backup ended, and left no files")
	}
	return b.saysBackup(name, all)
}

// sync flushes a directory's contents to disk.
func (b *bench) sync(dir string) error {
	return fs.WalkDir(b.sites.FS(), dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		f, err := b.sites.Open(name)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

func (b *bench) deleteBackup(site, name string) error {
	dir := site + "/" + backupsDir + "/"
	if err := b.dropSealed(site, name); err != nil {
		return err
	}
	was := b.exists(dir + name)
	if was {
		// Renamed first: half a backup must not look like one.
		if err := b.sites.RemoveAll(dir + ".making-" + name); err != nil {
			return err
		}
		step()
		if err := b.sites.Rename(dir+name, dir+".making-"+name); err != nil {
			return err
		}
	}
	step()
	if err := b.sites.RemoveAll(dir + ".making-" + name); err != nil {
		return err
	}
	return b.printResult(map[string]any{"name": name, "deleted": was})
}

// restore restores a site from a backup. Frappe drops the database and creates it
// again, so after an interruption the site is gone until the call is repeated.
func (b *bench) restore(site, name string, withFiles bool) error {
	s := b.state
	all, err := b.files(site, name)
	switch {
	case err != nil:
		return err
	case len(all) == 0:
		return fmt.Errorf("site %s has no backup %s", site, name)
	case withFiles && !hasFiles(all):
		return fmt.Errorf("backup %s has no files", name)
	}
	at, err := b.connection(site)
	if err != nil {
		return err
	}
	if !policy.Is("OURDB", at.Name) {
		return fmt.Errorf("%q is no database of a site's", at.Name)
	}
	b.err.hide(at.Password)
	db, options, answers, err := b.forRestore(at)
	if err != nil {
		return err
	}
	// Frappe leaves the scheduler as it was, and finds it off after an interrupted call.
	if s.Scheduled == nil {
		on := b.scheduled(site)
		s.Scheduled = &on
		if err := b.writeState(site, *s); err != nil {
			return err
		}
	}
	if err := b.putBack(site); err != nil {
		return err
	}
	work, err := b.linked(site, all)
	if err != nil {
		return err
	}
	part := func(p string) string { return b.path(work + "/" + name + "-" + p) }
	args := append([]string{"--site", site, "restore", part(partDatabase)}, options...)
	if withFiles {
		args = append(args, "--with-public-files", part(partFiles), "--with-private-files", part(partPrivate))
	}
	if err := endSessions(db, at.Name); err != nil {
		return err
	}
	if withFiles {
		if err := b.setAside(site); err != nil {
			return err
		}
	}
	stop := unblock(db, at.Name, at.elsewhere())
	err = b.command(answers, args...)
	stop()
	if err != nil {
		return errors.Join(err, b.putBack(site))
	}
	if err := b.sites.RemoveAll(site + "/" + asideDir); err != nil {
		return err
	}
	if err := afterRestore(db, site, at); err != nil {
		return err
	}
	if *s.Scheduled {
		if err := b.command(nil, "--site", site, "enable-scheduler"); err != nil {
			return err
		}
	}
	s.Scheduled = nil
	if err := errors.Join(b.sites.RemoveAll(work), b.writeState(site, *s)); err != nil {
		return err
	}
	return b.printResult(map[string]any{"site": site, "name": name, "with_files": withFiles})
}

// forRestore connects to the database server with the rights for a restore, and returns Frappe's options, and the
// answers to its prompts. A database on another server is replaced with the rights of its own user (prego_bench.py,
// setup_database).
func (b *bench) forRestore(at databaseOf) (db *sql.DB, options, answers []string, err error) {
	if at.elsewhere() {
		db, err = b.open(at, at.Name, at.Password, "")
		return db, nil, nil, err
	}
	user, password, err := b.root()
	if err != nil {
		return nil, nil, nil, err
	}
	db, err = b.asRoot()
	return db, []string{"--db-root-username", user}, []string{password}, err
}

// linked hard-links a backup's files for Frappe to work on: it moves encrypted ones
// away while it reads them, and leaves copies of tars in the site's directory if it is
// killed (frappe/utils/backups.py, decrypt_backup; frappe/installer.py, extract_files).
func (b *bench) linked(site string, all []file) (dir string, err error) {
	dir = site + "/" + backupsDir + "/.restoring"
	if err := b.sites.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := b.sites.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	for _, f := range all {
		base := f.Path[strings.LastIndexByte(f.Path, '/')+1:]
		if err := b.sites.Link(f.Path, dir+"/"+base); err != nil {
			return "", err
		}
		if err := b.sites.RemoveAll(site + "/" + base); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// asideDir holds a site's files during a restore. Frappe only adds the backup's files: later ones would stay.
const asideDir = wire.SnapshotsDir + "/.aside"

var fileDirs = []string{"public/files", "private/files"}

func (b *bench) setAside(site string) error {
	for _, dir := range fileDirs {
		to := site + "/" + asideDir + "/" + dir
		if err := b.sites.MkdirAll(to[:strings.LastIndexByte(to, '/')], 0o750); err != nil {
			return err
		}
		step()
		if err := b.sites.Rename(site+"/"+dir, to); ignoreGone(err) != nil {
			return err
		}
		if err := b.sites.MkdirAll(site+"/"+dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// putBack restores the files after a failed restore.
func (b *bench) putBack(site string) error {
	for _, dir := range fileDirs {
		from := site + "/" + asideDir + "/" + dir
		if !b.exists(from) {
			continue
		}
		if err := b.sites.RemoveAll(site + "/" + dir); err != nil {
			return err
		}
		step()
		if err := b.sites.Rename(from, site+"/"+dir); err != nil {
			return err
		}
	}
	return b.sites.RemoveAll(site + "/" + asideDir)
}

// afterRestore drops the user that Frappe creates for root's host, and keeps the one for any host.
func afterRestore(db *sql.DB, site string, at databaseOf) error {
	name := at.Name
	if complete, _, err := inspectTables(db, name); err != nil || !complete {
		return errors.Join(err, fmt.Errorf("bench restore ended, and database %s of %s lacks tables", name, site))
	}
	// Of a backup that was made while the database moved: their user need not exist here.
	if err := uncapture(db, name); err != nil {
		return err
	}
	if at.elsewhere() {
		return nil // its users stayed
	}
	hosts, err := usersOf(db, name)
	if err != nil {
		return err
	}
	open := false
	for _, host := range hosts {
		open = open || host == anywhere
	}
	for _, host := range hosts {
		if open && host != anywhere {
			if err := dropUser(db, name, host); err != nil {
				return err
			}
		}
	}
	return nil
}

// scheduled reports whether a site's scheduler is on (frappe/utils/scheduler.py,
// is_scheduler_disabled). A site without a database has none.
func (b *bench) scheduled(site string) bool {
	db, _, err := b.asSite(site)
	if err != nil {
		return false
	}
	v, err := queryValue[sql.NullString](db, "SELECT value FROM tabSingles WHERE doctype = 'System Settings' AND field = 'enable_scheduler'")
	return err == nil && v.Valid && v.String != "0" && v.String != ""
}
