// Package policy is what may be asked of a host: every command line, and what a request may
// hold. Each process checks what it is asked by it, and none trusts the one before it.
package policy

import (
	"regexp"
	"strings"
	"sync"

	"github.com/prego/prego/agent/wire"
)

// Sealed backups lie beside their sites, where the process that faces the network can't look.
// It gets at them through the process that runs commands, piece by piece, and at nothing else:
// a piece is read or written by a verb of a table of its own, which no command can name.
const (
	KindSpool wire.CommandKind = "spool"

	VerbReadSealed  = "read-sealed"
	VerbWriteSealed = "write-sealed"
)

// allowed lists every command line that the control plane may request, by kind; all
// others are refused. A word in capitals stands for its pattern below, every other word
// for itself.
//
// For mariadb and redis-cli no client program is run: their verbs are spoken over the
// protocol (agent/exec/services.go), so there is no shell or client to escape to.
var allowed = map[wire.CommandKind][]string{
	wire.KindBench: {
		"new-site SITE --db-name OURDB",
		"new-site SITE --db-name OURDB --db-host ADDRESS",
		"promote-site SITE SITE",
		"--site SITE configure SETTINGS",
		"--site SITE connect-database ADDRESS",
		"--site SITE connect-cache ADDRESS CACHEDB",
		"--site SITE set-config KEY VALUE",
		"--site SITE set-admin-password",
		"--site SITE add-user EMAIL PERSON",
		"--site SITE enable-scheduler",
		"--site SITE disable-scheduler",
		"--site SITE install-app APP",
		"--site SITE list-apps",
		"--site SITE migrate",
		"--site SITE versions",
		"--site SITE answers",
		"--site SITE set-maintenance-mode ONOFF",
		"--site SITE backup BACKUP",
		"--site SITE backup BACKUP --with-files",
		"--site SITE restore BACKUP",
		"--site SITE restore BACKUP --with-files",
		"--site SITE delete-backup BACKUP",
		"--site SITE seal-backup BACKUP RECIPIENT",
		"--site SITE open-backup BACKUP SHA256 SHA256",
		"--site SITE adopt-config BACKUP",
		"--site SITE check-restored BACKUP",
		"--site SITE usage",
		"expect-site SITE --db-name OURDB",
		"leave-site SITE --db-name OURDB",
		"--site SITE pack-site BACKUP RECIPIENT",
		"--site SITE pack-site BACKUP RECIPIENT BACKUP",
		"--site SITE unpack-site BACKUP SHA256 SHA256 UNPACK",
		"--site SITE expect-data",
		"--site SITE forget-data",
		"--site SITE pack-data BACKUP RECIPIENT",
		"--site SITE pack-data BACKUP RECIPIENT BACKUP",
		"--site SITE pack-data BACKUP RECIPIENT BACKUP last",
		"--site SITE load-data BACKUP SHA256 SHA256 ADDRESS",
		"--site SITE load-data BACKUP SHA256 SHA256 here",
		"--site SITE make-data",
		"--site SITE freeze-data",
		"--site SITE thaw-data",
		"--site SITE drop-packed BACKUP",
		"--site SITE drop-packed BACKUP all",
		"--site SITE settle-site ADDRESS",
		"--site SITE settle-site here",
		"--site SITE hold-site",
		"--site SITE free-site",
		"erase-site SITE --db-name OURDB",
		"list-sites",
	},
	KindSpool: {
		"--site SITE read-sealed BACKUP BYTES BYTES",
		"--site SITE write-sealed BACKUP BYTES BYTES",
		"--volume VOLUME read-sealed BACKUP BYTES BYTES",
		"--volume VOLUME write-sealed BACKUP BYTES BYTES",
	},
	wire.KindMariaDB: {
		"databases",
		"processlist",
		"table-sizes DBNAME",
		"create-database OURDB",
		"drop-database OURDB",
		"grant-database OURDB ADDRESS SERVER",
		"admit-database OURDB ADDRESS SERVER",
		"freeze-database OURDB",
		"erase-database OURDB",
	},
	wire.KindRedisCLI: {
		"ping",
		"info SECTION",
		"dbsize",
		"memory-usage REDISKEY",
		"slowlog COUNT",
		"client-list",
		"create-user OURDB CACHEDB",
		"erase-user OURDB CACHEDB",
	},
	wire.KindVolume: {
		"mount VOLUME",
		"unmount VOLUME",
		"grow VOLUME",
		"seal-volume VOLUME BACKUP RECIPIENT",
		"open-volume VOLUME BACKUP SHA256 SHA256",
		"try-volume VOLUME BACKUP SHA256 SHA256 BYTES BYTES",
		"drop-sealed VOLUME BACKUP",
	},
	wire.KindAddress: {
		"add IPV4",
		"remove IPV4",
	},
	wire.KindPatch: {
		"report",
		"check",
		"apply",
	},
}

// Words are the patterns. None matches a word that starts with "-", which would be read
// as an option.
// They are compiled by the first command that asks: most processes of this program never do.
var Words = sync.OnceValue(func() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"SITE":      regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`),
		"APP":       regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`),
		"SETTINGS":  regexp.MustCompile(`^\{\PC*\}$`),
		"EMAIL":     regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)+$`),
		"PERSON":    regexp.MustCompile(`^[\pL\pN][^\pC<>]*$`),
		"BACKUP":    regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,79}$`),
		"RECIPIENT": regexp.MustCompile(`^age1[a-z0-9]{58}$`),
		"SHA256":    regexp.MustCompile(`^[0-9a-f]{64}$`),
		"BYTES":     regexp.MustCompile(`^(0|[1-9][0-9]{0,17})$`),
		"KEY":       regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`),
		"VALUE":     regexp.MustCompile(`^([^\pC-]\PC*)?$`), // printable
		"UNPACK":    regexp.MustCompile(`^(all|missing)$`),
		"ONOFF":     regexp.MustCompile(`^(on|off)$`),
		"DBNAME":    regexp.MustCompile(`^[A-Za-z0-9_]{1,64}$`),
		"OURDB":     regexp.MustCompile(`^(pool_[a-z0-9_]{1,58}|tenant_[a-z0-9_]{1,54}_db)$`), // generated by the control plane
		"ADDRESS":   regexp.MustCompile(`^(\d{1,3}\.){3}\d{1,3}$`),
		"SERVER":    regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`),
		"CACHEDB":   regexp.MustCompile(`^([1-9]|[1-9][0-9]{1,2}|[1-3][0-9]{3}|40[0-8][0-9]|409[0-5])$`), // a database of a pool; none is 0
		"SECTION":   regexp.MustCompile(`^(server|clients|memory|persistence|stats|replication|cpu|commandstats|errorstats|keyspace)$`),
		"REDISKEY":  regexp.MustCompile(`^[^\pC-]\PC*$`),
		"VOLUME":    regexp.MustCompile(`^[1-9][0-9]{0,18}$`), // the provider's id
		"IPV4":      regexp.MustCompile(`^([0-9]{1,3}\.){3}[0-9]{1,3}$`),
		"COUNT":     regexp.MustCompile(`^([1-9]|[1-9][0-9]|1[01][0-9]|12[0-8])$`),
	}
})

// WordLengths bounds words whose patterns don't; 253 is the longest host name.
var WordLengths = map[string]int{"SITE": 253, "VALUE": 4096, "REDISKEY": 1024, "SETTINGS": 8192, "EMAIL": 140, "PERSON": 140}

// Permitted parses a command line and returns its verb, "" if it isn't allowed, and the
// sites that it names.
func Permitted(kind wire.CommandKind, args []string) (verb string, sites []string) {
	for _, line := range allowed[kind] {
		form := strings.Fields(line)
		if !matchesForm(form, args) {
			continue
		}
		for i, word := range form {
			if word == "SITE" {
				sites = append(sites, args[i])
			}
		}
		if form[0] == "--site" || form[0] == "--volume" {
			return form[2], sites
		}
		return form[0], sites
	}
	return "", nil
}

func matchesForm(form, args []string) bool {
	if len(form) != len(args) {
		return false
	}
	for i, word := range form {
		pattern, ok := Words()[word]
		if !ok {
			if args[i] != word {
				return false
			}
			continue
		}
		if limit := WordLengths[word]; !pattern.MatchString(args[i]) || (limit > 0 && len(args[i]) > limit) {
			return false
		}
	}
	return true
}
