package agent

import (
	"regexp"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// allowed is every command line that the control plane may ask for, by kind: all
// else is refused. A word in capitals stands for what its pattern below takes,
// every other word for itself.
//
// mariadb and redis-cli name the client's kind of work, but no client is run:
// their verbs are spoken over the protocol (services.go), so that there is
// nothing to escape from.
var allowed = map[wire.CommandKind][]string{
	wire.KindBench: {
		"new-site SITE --db-name OURDB",
		"promote-site SITE SITE",
		"--site SITE configure SETTINGS",
		"--site SITE set-config KEY VALUE",
		"--site SITE set-admin-password",
		"--site SITE add-user EMAIL PERSON",
		"--site SITE enable-scheduler",
		"--site SITE disable-scheduler",
		"--site SITE install-app APP",
		"--site SITE list-apps",
		"--site SITE migrate",
		"--site SITE set-maintenance-mode ONOFF",
		"--site SITE backup BACKUP",
		"--site SITE backup BACKUP --with-files",
		"--site SITE restore BACKUP",
		"--site SITE restore BACKUP --with-files",
		"--site SITE delete-backup BACKUP",
		"--site SITE usage",
		"erase-site SITE --db-name OURDB",
		"list-sites",
	},
	wire.KindMariaDB: {
		"databases",
		"processlist",
		"table-sizes DBNAME",
		"create-database OURDB",
		"drop-database OURDB",
	},
	wire.KindRedisCLI: {
		"ping",
		"info SECTION",
		"dbsize",
		"memory-usage REDISKEY",
		"slowlog COUNT",
		"client-list",
	},
}

// words are the patterns. None takes a word that starts with "-": an option would
// be read in it.
var words = map[string]*regexp.Regexp{
	"SITE":     regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`),
	"APP":      regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`),
	"SETTINGS": regexp.MustCompile(`^\{\PC*\}$`),
	"EMAIL":    regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)+$`),
	"PERSON":   regexp.MustCompile(`^[\pL\pN][^\pC<>]*$`),
	"BACKUP":   regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,79}$`),
	"KEY":      regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`),
	"VALUE":    regexp.MustCompile(`^([^\pC-]\PC*)?$`), // printable
	"ONOFF":    regexp.MustCompile(`^(on|off)$`),
	"DBNAME":   regexp.MustCompile(`^[A-Za-z0-9_]{1,64}$`),
	"OURDB":    regexp.MustCompile(`^(pool_[a-z0-9_]{1,58}|tenant_[a-z0-9_]{1,54}_db)$`), // what the control plane names
	"SECTION":  regexp.MustCompile(`^(server|clients|memory|persistence|stats|replication|cpu|commandstats|errorstats|keyspace)$`),
	"REDISKEY": regexp.MustCompile(`^[^\pC-]\PC*$`),
	"COUNT":    regexp.MustCompile(`^([1-9]|[1-9][0-9]|1[01][0-9]|12[0-8])$`),
}

// wordLengths bounds words whose patterns don't; 253 is the longest host name.
var wordLengths = map[string]int{"SITE": 253, "VALUE": 4096, "REDISKEY": 1024, "SETTINGS": 8192, "EMAIL": 140, "PERSON": 140}

// permitted finds what an allowed command line asks for: its verb, "" if it isn't
// allowed, and the sites that it names.
func permitted(kind wire.CommandKind, args []string) (verb string, sites []string) {
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
		if form[0] == "--site" {
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
		pattern, ok := words[word]
		if !ok {
			if args[i] != word {
				return false
			}
			continue
		}
		if limit := wordLengths[word]; !pattern.MatchString(args[i]) || (limit > 0 && len(args[i]) > limit) {
			return false
		}
	}
	return true
}
