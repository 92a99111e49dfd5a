package site

import (
	"io/fs"
	"strings"
	"syscall"
)

// used is a site's size.
type used struct {
	Database int64 `json:"database_bytes"` // data and indexes, as the server estimates them
	Files    int64 `json:"files_bytes"`    // on the disk, without backups
	Backups  int64 `json:"backups_bytes"`  // Frappe's own and ours
	Users    int   `json:"users"`          // users with desk access, without Administrator
}

func (b *bench) usage(site string) error {
	var out used
	db, at, err := b.asSite(site)
	if err != nil {
		return err
	}
	out.Database, err = queryValue[int64](db, "SELECT COALESCE(SUM(data_length + index_length), 0) FROM information_schema.tables WHERE table_schema = ?", at.Name)
	if err != nil {
		return err
	}
	out.Users, err = queryValue[int](db, "SELECT COUNT(*) FROM tabUser WHERE enabled = 1 AND user_type = 'System User' AND name NOT IN ('Administrator', 'Guest')")
	if err != nil {
		return err
	}
	if out.Files, out.Backups, err = b.measure(site); err != nil {
		return err
	}
	return b.printResult(out)
}

// measure walks a site's directory. Links are not followed, and hard-linked files are counted once.
func (b *bench) measure(site string) (files, backups int64, err error) {
	counted := make(map[uint64]bool)
	err = walk(b.sites, site, func(name string, d fs.DirEntry) error {
		if !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size := info.Size()
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			if st.Nlink > 1 {
				if counted[st.Ino] {
					return nil
				}
				counted[st.Ino] = true
			}
			size = st.Blocks * 512
		}
		below := strings.TrimPrefix(name, site+"/")
		if strings.HasPrefix(below, backupsDir+"/") || strings.HasPrefix(below, frappesBackups+"/") {
			backups += size
		} else {
			files += size
		}
		return nil
	})
	return files, backups, err
}
