package cli

import (
	"fmt"

	"github.com/prego/prego/api"
	"github.com/prego/prego/tenant"
)

var watchBackup = Watch[api.Backup]{
	Path: "/v1/tenants/{tenant}/backups/{backup}", Again: "prego backup show {tenant} {backup} --watch",
	Line:   func(b api.Backup) string { return fmt.Sprintf("%-22s %s  %s", b.BackupId, b.State, deref(b.Message)) },
	Doing:  func(b api.Backup) string { return fmt.Sprintf("the backup of %s is %s", b.Site, b.State) },
	Rests:  func(b api.Backup) bool { return !tenant.BackupState(b.State).UnderWay() },
	Wanted: func(_ *call, b api.Backup) bool { return tenant.BackupState(b.State) == tenant.BackupStored },
	Is: func(b api.Backup) standing {
		return standing{"backup " + b.BackupId, string(b.State), b.Reason, b.Message}
	},
	Done: func(_ *call, b api.Backup) string { return fmt.Sprintf("backup %s is stored", b.BackupId) },
}

var watchVolumeBackup = Watch[api.VolumeBackup]{
	Path:  "/v1/volumes/{volume}/backups/{volume-backup}",
	Again: "prego volume backup show {volume} {volume-backup} --watch",
	Line: func(b api.VolumeBackup) string {
		return fmt.Sprintf("%-22s %s  %s", b.BackupId, b.State, deref(b.Message))
	},
	Doing:  func(b api.VolumeBackup) string { return fmt.Sprintf("the backup of %s is %s", b.VolumeId, b.State) },
	Rests:  func(b api.VolumeBackup) bool { return !tenant.BackupState(b.State).UnderWay() },
	Wanted: func(_ *call, b api.VolumeBackup) bool { return tenant.BackupState(b.State) == tenant.BackupStored },
	Is: func(b api.VolumeBackup) standing {
		return standing{"backup " + b.BackupId, string(b.State), b.Reason, b.Message}
	},
	Done: func(_ *call, b api.VolumeBackup) string { return fmt.Sprintf("backup %s is stored", b.BackupId) },
}
