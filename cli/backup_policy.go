package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/prego/prego/api"
)

var backupPolicyColumns = computed(map[string]func(api.BackupPolicy) string{
	"next": func(p api.BackupPolicy) string {
		var at []string
		for _, t := range deref(p.Next) {
			at = append(at, t.UTC().Format("2006-01-02 15:04"))
		}
		return strings.Join(at, ", ")
	},
})

func showPolicyChanges(in *call, p api.BackupPolicy) error {
	for _, ch := range deref(p.Changes) {
		text := "back to the plan's"
		if ch.Schedule != nil {
			text = fmt.Sprintf("%q, spread over %s, keep %d days, %d weeks, %d months", *ch.Schedule,
				time.Duration(deref(ch.SpreadSeconds))*time.Second, deref(ch.KeepDaily), deref(ch.KeepWeekly), deref(ch.KeepMonthly))
		}
		fmt.Fprintf(in.w, "%s  %s: %s\n", ch.ChangedAt.UTC().Format(time.RFC3339), ch.By, text)
	}
	return nil
}

func showBackupSpace(in *call, s api.BackupSpace) error {
	for _, t := range s.Largest {
		in.pairs(in.w, [2]string{cmp.Or(deref(t.TenantId), deref(t.VolumeId)), fmt.Sprintf("%s in %d backups", diskText(t.Bytes), t.Backups)})
	}
	return nil
}
