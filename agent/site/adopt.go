package site

import (
	"fmt"
	"slices"

	"github.com/prego/prego/agent/policy"
)

// notAdopted are keys of site_config.json, besides those of the host, that a site keeps when it adopts the settings
// of a backup: its name, and whether it is held back.
var notAdopted = []string{"host_name", "mute_emails", "pause_scheduler", "allow_reads_during_maintenance"}

// adopted reports whether a setting belongs to the site at any place. encryption_key opens the passwords that are
// stored in the site (frappe/utils/password.py, get_encryption_key), backup_encryption_key the dump of a site that
// encrypts its backups: without them a site at another place could not be used, or not be restored.
func adopted(key string) bool {
	switch {
	case key == "encryption_key", key == "backup_encryption_key":
		return true
	case slices.Contains(notAdopted, key):
		return false
	}
	return !policy.Reserved(key)
}

// adoptConfig takes over the settings that a backup has of its site. Frappe's restore leaves
// site_config.json alone, which is right only for the site that the backup was made of.
func (b *bench) adoptConfig(site, name string) error {
	all, err := b.files(site, name)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("site %s has no backup %s", site, name)
	}
	config, err := b.readConfig(site + "/" + backupsDir + "/" + name + "/" + name + "-" + partConfig)
	if err != nil {
		return err
	}
	settings, keys := policy.Settings{}, []string{}
	for key, value := range config {
		if adopted(key) && string(value) != "null" {
			settings[key], keys = value, append(keys, key)
		}
	}
	slices.Sort(keys)
	if len(keys) > 0 {
		if err := b.change(site, settings); err != nil {
			return err
		}
	}
	return b.printResult(map[string]any{"site": site, "name": name, "keys": keys})
}
