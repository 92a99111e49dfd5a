package cli

import (
	"fmt"

	"github.com/prego/prego/api"
	"github.com/prego/prego/tenant"
)

var (
	watchBackup = backups("/v1/tenants/{tenant}/backups/{backup}", "prego backup show {tenant} {backup} --watch",
		func(b api.Backup) (string, standing) {
			return b.Site, standing{b.BackupId, string(b.State), b.Reason, b.Message}
		})
	watchVolumeBackup = backups("/v1/volumes/{volume}/backups/{volume-backup}", "prego volume backup show {volume} {volume-backup} --watch",
		func(b api.VolumeBackup) (string, standing) {
			return b.VolumeId, standing{b.BackupId, string(b.State), b.Reason, b.Message}
		})
)

// backups follows a backup of a kind. read returns what it is of, and its id and state.
func backups[B any](path, again string, read func(B) (of string, s standing)) Watch[B] {
	state := func(b B) tenant.BackupState {
		_, s := read(b)
		return tenant.BackupState(s.state)
	}
	return Watch[B]{
		Path: path, Again: again,
		Line: func(b B) string {
			_, s := read(b)
			return fmt.Sprintf("%-22s %s  %s", s.what, s.state, deref(s.message))
		},
		Doing: func(b B) string {
			of, s := read(b)
			return fmt.Sprintf("the backup of %s is %s", of, s.state)
		},
		Rests:  func(b B) bool { return !state(b).UnderWay() },
		Wanted: func(_ *call, b B) bool { return state(b) == tenant.BackupStored },
		Is: func(b B) standing {
			_, s := read(b)
			s.what = "backup " + s.what
			return s
		},
		Done: func(_ *call, b B) string {
			_, s := read(b)
			return fmt.Sprintf("backup %s is stored", s.what)
		},
	}
}
