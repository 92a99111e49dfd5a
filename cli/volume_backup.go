package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
)

func volumeBackupCommand(c *CLI) *cobra.Command {
	path := "/v1/volumes/{volume}/backups"
	table := Table[api.VolumeBackup]{
		ID: "backup_id", Columns: "backup_id, taken_at: at, kind, state, bytes: size, frozen_ms: frozen, verified, held_at: held, message", Spare: "frozen, held, size, kind",
		More: "volume_id, server_id, created_by: by, created_at, finished_at, entries, plain_bytes, sha256, plain_sha256, object, parts, verified_at, verify_message, expires_at, held_by, hold_reason, reason",
		Computed: map[string]func(api.VolumeBackup) any{
			"frozen_ms": func(b api.VolumeBackup) any {
				return textOf(b.FrozenMs, func(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() })
			},
		},
	}
	return c.group("backup", "Manage backups of volumes in object storage", backupVerbs("volume", "volume-backup", path, table)...)
}

func volumeRestoreCommand(c *CLI) *cobra.Command {
	path := "/v1/volumes/{volume}/restores"
	table := Table[api.VolumeRestore]{ID: "restore_id", Columns: "restore_id: restore, created_at: at, created_by: by, backup_id, status, reason, message", Spare: "by, backup", More: "volume_id, finished_at"}
	return c.group("restore", "Restore volumes from backups",
		Action[api.VolumeRestore]{
			Use: "create VOLUME VOLUME-BACKUP", Short: "Restore a volume whose process group is stopped", Path: path, Destroys: "replaces what the volume holds by backup", Table: table,
			Body: func(in *call) (any, error) { return api.CreateVolumeRestore{BackupId: in.args["volume-backup"]}, nil },
		},
		List[api.VolumeRestore]{Use: "list VOLUME", Short: "List the restores of a volume, newest first", Path: path, Items: "restores", Sorts: "created_at", Table: table},
		Show[api.VolumeRestore]{Use: "show VOLUME VOLUME-RESTORE…", Short: "Show restores of a volume", Path: path + "/{volume-restore}", Table: table},
	)
}

func volumeDrillCommand(c *CLI) *cobra.Command {
	return c.group("drill", "Restore backups of volumes to see whether they can be", drillVerbs("volume", "/v1/volumes/{volume}/drills", Table[api.VolumeDrill]{
		ID: "drill_id", Columns: "drill_id: drill, created_at: at, backup_id, server_id, state, entries, bytes: size, message", Spare: "size, entries, server",
		More: "reason, volume_id, created_by: by, finished_at",
	})...)
}

func volumeClone() Action[api.Volume] {
	var in api.CloneVolume
	var backup string
	var size int64
	return Action[api.Volume]{
		Use: "clone VOLUME NAME", Short: "Create a volume from a backup of another one, which may be deleted", Path: "/v1/volumes/{volume}/clones", Table: volumeTable,
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.StringVar(&backup, "backup", "", "backup to copy; the newest by default")
			f.Var(sizeFlag{&size, disk, diskText}, "size", "not less than is in it; that of the other one by default")
		},
		Body: func(v *call) (any, error) {
			in.Name, in.BackupId = v.typed, optional(backup)
			if size > 0 {
				in.SizeBytes = &size
			}
			return in, nil
		},
	}
}

// isPolicyOwner reports whether a word names whose backup policy is meant, besides names.
func isPolicyOwner(word string) bool {
	return strings.HasPrefix(word, "org:") || strings.HasPrefix(word, "vol-")
}
