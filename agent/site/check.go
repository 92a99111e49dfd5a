package site

import (
	"archive/tar"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// checkRestored compares a site with the backup that it was restored from: each table has the rows of the dump, each
// file its size. Frappe may have added rows meanwhile, and none may be missing. Then Frappe itself opens the site.
func (b *bench) checkRestored(site, name string) error {
	all, err := b.files(site, name)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return seal.Failed(wire.FailedNoBackup, "site %s has no backup %s", site, name)
	}
	var out wire.CheckedSite
	for _, f := range all {
		switch {
		case strings.HasSuffix(f.Path, "-"+partDatabase):
			err = b.checkTables(site, f.Path, &out)
		case strings.HasSuffix(f.Path, ".tar"):
			err = b.checkFiles(site, f.Path, &out)
		}
		if err != nil {
			return err
		}
	}
	if out.Apps, err = b.apps(site); err != nil {
		return err
	}
	if !slices.Contains(out.Apps, "frappe") {
		return seal.Failed(wire.FailedIncomplete, "the site lists no app frappe, but %v", out.Apps)
	}
	var known *seal.Failure
	if err := b.command(nil, "--site", site, "execute", "frappe.get_installed_apps"); errors.As(err, &known) {
		return err // a full disk does not condemn the backup
	} else if err != nil {
		return seal.Failed(wire.FailedIncomplete, "the site is not opened by Frappe: %w", err)
	}
	return b.printResult(out)
}

func (b *bench) checkTables(site, dump string, out *wire.CheckedSite) error {
	f, err := b.sites.Open(dump)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	rows, err := dumpedRows(f)
	if err != nil {
		return seal.Unreadable(err)
	}
	db, at, err := b.asSite(site)
	if err != nil {
		return err
	}
	missing := 0
	var first string
	for table, want := range rows {
		if strings.ContainsAny(table, "`\x00") {
			return seal.Failed(wire.FailedUnreadable, "%q is no table of Frappe's", table)
		}
		var have int64
		there, err := queryValue[int](db, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ? AND table_name = ?", at.Name, table)
		if err == nil && there > 0 {
			err = db.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM `"+table+"`").Scan(&have)
		}
		if err != nil {
			return err
		}
		if there == 0 || have < want {
			if missing++; first == "" || table < first {
				first = table
			}
		}
		out.Tables, out.Rows = out.Tables+1, out.Rows+have
	}
	if missing > 0 {
		return seal.Failed(wire.FailedIncomplete,
			"%d of %d tables lack rows of the backup, such as %s", missing, len(rows), first)
	}
	if whole, _, err := inspectTables(db, at.Name); err != nil || !whole {
		return errors.Join(err, seal.Failed(wire.FailedIncomplete, "the database is not a finished site's"))
	}
	return nil
}

// checkFiles finds the files of a tar in the site. Frappe packs them as ./SITE/public/files/…
// (frappe/utils/backups.py, backup_files).
func (b *bench) checkFiles(site, name string, out *wire.CheckedSite) error {
	f, err := b.sites.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return seal.Entries(tar.NewReader(f), func(h *tar.Header) error {
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		parts := strings.SplitN(path.Clean(h.Name), "/", 2)
		if len(parts) != 2 {
			return nil
		}
		info, err := b.sites.Lstat(site + "/" + parts[1])
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() != h.Size {
			return seal.Failed(wire.FailedIncomplete, "file %s is not as in the backup", parts[1])
		}
		if err != nil {
			return err
		}
		out.Files++
		return nil
	})
}
