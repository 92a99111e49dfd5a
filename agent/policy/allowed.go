// Package policy is what may be asked of a host: every command line, and what a request may
// hold. Each process checks what it is asked by it, and none trusts the one before it.
package policy

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

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

// Rule is a command line that the control plane may request. A word in capitals stands for its pattern below, every
// other word for itself.
type Rule struct {
	Line    string
	Timeout time.Duration // unless the request has one; 0 is defaultTimeout
	Needs   string        // the secret that must come with it
	Takes   string        // a secret that may
	Root    bool          // the host adds the password of its database's root
	Effect  Effect
}

// Effect is the worst that a command line does to what a host has.
type Effect int

// The effects.
const (
	Harmless Effect = iota
	Stops           // what serves may not answer, or not fully, while it runs or from then on
	Writes          // over a site's data, from a copy
	Erases          // a site, its data, or a copy of them that is on the host only: see Erasure
)

// Rules are all command lines, by kind; all others are refused. The kind says which process runs them: the executor
// has those on sites and pieces of their backups run as the user of bench, with code that a site's process checks
// once more (agent/site); it speaks those of mariadb and redis-cli over the protocol, so that there is no shell or
// client to escape to (agent/exec); and it asks processes that are root's for the others (agent/rooted).
var Rules = map[wire.CommandKind][]Rule{
	wire.KindBench: {
		{Line: "new-site SITE --db-name OURDB", Timeout: maxTimeout, Root: true},
		{Line: "new-site SITE --db-name OURDB --db-host ADDRESS", Timeout: maxTimeout, Needs: wire.SecretDatabasePassword, Root: true},
		{Line: "promote-site SITE SITE", Timeout: 2 * time.Minute, Effect: Stops},
		{Line: "--site SITE configure SETTINGS", Takes: wire.SecretMailPassword},
		{Line: "--site SITE connect-database ADDRESS", Needs: wire.SecretDatabasePassword},
		{Line: "--site SITE connect-cache ADDRESS CACHEDB", Needs: wire.SecretCachePassword},
		{Line: "--site SITE set-config KEY VALUE"},
		{Line: "--site SITE set-admin-password", Needs: wire.SecretAdminPassword},
		{Line: "--site SITE add-user EMAIL PERSON", Takes: wire.SecretUserPassword},
		{Line: "--site SITE enable-scheduler"},
		{Line: "--site SITE disable-scheduler", Effect: Stops},
		{Line: "--site SITE install-app APP", Timeout: maxTimeout},
		{Line: "--site SITE list-apps"},
		{Line: "--site SITE migrate", Timeout: maxTimeout, Effect: Stops},
		{Line: "--site SITE versions"},
		{Line: "--site SITE answers"},
		{Line: "--site SITE set-maintenance-mode on", Effect: Stops},
		{Line: "--site SITE set-maintenance-mode off"},
		{Line: "--site SITE backup BACKUP", Timeout: maxTimeout},
		{Line: "--site SITE backup BACKUP --with-files", Timeout: maxTimeout},
		{Line: "--site SITE restore BACKUP", Timeout: maxTimeout, Root: true, Effect: Writes},
		{Line: "--site SITE restore BACKUP --with-files", Timeout: maxTimeout, Root: true, Effect: Writes},
		{Line: "--site SITE delete-backup BACKUP", Effect: Erases},
		{Line: "--site SITE seal-backup BACKUP RECIPIENT", Timeout: maxTimeout},
		{Line: "--site SITE open-backup BACKUP SHA256 SHA256", Timeout: maxTimeout, Needs: wire.SecretBackupIdentity},
		{Line: "--site SITE adopt-config BACKUP", Effect: Stops},
		{Line: "--site SITE check-restored BACKUP", Timeout: maxTimeout},
		{Line: "--site SITE usage", Timeout: 2 * time.Minute},
		{Line: "expect-site SITE --db-name OURDB"},
		{Line: "leave-site SITE --db-name OURDB", Timeout: 5 * time.Minute, Effect: Erases},
		{Line: "--site SITE pack-site BACKUP RECIPIENT", Timeout: maxTimeout},
		{Line: "--site SITE pack-site BACKUP RECIPIENT BACKUP", Timeout: maxTimeout},
		{Line: "--site SITE unpack-site BACKUP SHA256 SHA256 UNPACK", Timeout: maxTimeout, Needs: wire.SecretBackupIdentity},
		{Line: "--site SITE expect-data"},
		{Line: "--site SITE forget-data"},
		{Line: "--site SITE pack-data BACKUP RECIPIENT"},
		{Line: "--site SITE pack-data BACKUP RECIPIENT BACKUP"},
		{Line: "--site SITE pack-data BACKUP RECIPIENT BACKUP last"},
		{Line: "--site SITE load-data BACKUP SHA256 SHA256 ADDRESS", Needs: wire.SecretBackupIdentity, Takes: wire.SecretDatabasePassword},
		{Line: "--site SITE load-data BACKUP SHA256 SHA256 here", Needs: wire.SecretBackupIdentity, Takes: wire.SecretDatabasePassword},
		{Line: "--site SITE make-data", Needs: wire.SecretDatabasePassword, Root: true},
		{Line: "--site SITE freeze-data", Root: true, Effect: Stops},
		{Line: "--site SITE thaw-data", Root: true},
		{Line: "--site SITE drop-packed BACKUP"},
		{Line: "--site SITE drop-packed BACKUP all"},
		{Line: "--site SITE settle-site ADDRESS", Needs: wire.SecretDatabasePassword},
		{Line: "--site SITE settle-site here", Needs: wire.SecretDatabasePassword},
		{Line: "--site SITE hold-site", Effect: Stops},
		{Line: "--site SITE free-site"},
		{Line: "erase-site SITE --db-name OURDB", Timeout: 5 * time.Minute, Root: true, Effect: Erases},
		{Line: "list-sites"},
	},
	KindSpool: {
		{Line: "--site SITE read-sealed BACKUP BYTES BYTES"},
		{Line: "--site SITE write-sealed BACKUP BYTES BYTES"},
		{Line: "--volume VOLUME read-sealed BACKUP BYTES BYTES"},
		{Line: "--volume VOLUME write-sealed BACKUP BYTES BYTES"},
	},
	wire.KindMariaDB: {
		{Line: "databases"},
		{Line: "processlist"},
		{Line: "table-sizes DBNAME"},
		{Line: "create-database OURDB"},
		{Line: "drop-database OURDB", Effect: Erases},
		{Line: "grant-database OURDB ADDRESS SERVER", Needs: wire.SecretDatabasePassword, Takes: wire.SecretEarlierPassword},
		{Line: "admit-database OURDB ADDRESS SERVER", Needs: wire.SecretDatabasePassword},
		{Line: "freeze-database OURDB", Effect: Stops},
		{Line: "thaw-database OURDB"},
		{Line: "erase-database OURDB", Effect: Erases},
	},
	wire.KindRedisCLI: {
		{Line: "ping"},
		{Line: "info SECTION"},
		{Line: "dbsize"},
		{Line: "memory-usage REDISKEY"},
		{Line: "slowlog COUNT"},
		{Line: "client-list"},
		{Line: "create-user OURDB CACHEDB", Needs: wire.SecretCachePassword},
		{Line: "erase-user OURDB CACHEDB", Effect: Erases},
	},
	wire.KindVolume: {
		{Line: "mount VOLUME"},
		{Line: "unmount VOLUME"},
		{Line: "grow VOLUME"},
		{Line: "seal-volume VOLUME BACKUP RECIPIENT", Timeout: maxTimeout},
		{Line: "open-volume VOLUME BACKUP SHA256 SHA256", Timeout: maxTimeout, Needs: wire.SecretBackupIdentity},
		{Line: "try-volume VOLUME BACKUP SHA256 SHA256 BYTES BYTES", Timeout: maxTimeout, Needs: wire.SecretBackupIdentity},
		{Line: "drop-sealed VOLUME BACKUP"},
	},
	wire.KindAddress: {
		{Line: "add ADDRESS"},
		{Line: "remove ADDRESS"},
	},
	wire.KindPatch: {
		{Line: "report"},
		{Line: "check", Timeout: 5 * time.Minute},
		{Line: "apply", Timeout: maxTimeout},
	},
}

const octet = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`

// words are the patterns. None matches a word that starts with "-", which would be read
// as an option.
// They are compiled by the first command that asks: most processes of this program never do.
var words = sync.OnceValue(func() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"SITE":      regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`),
		"APP":       regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`),
		"SETTINGS":  regexp.MustCompile(`^\{\PC*\}$`),
		"EMAIL":     regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+'-]*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)+$`),
		"PERSON":    regexp.MustCompile(`^[\pL\pN][^\pC<>]*$`),
		"BACKUP":    regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,79}$`),
		"RECIPIENT": regexp.MustCompile(`^age1[a-z0-9]{58}$`),
		"SHA256":    regexp.MustCompile(`^[0-9a-f]{64}$`),
		"BYTES":     regexp.MustCompile(`^(0|[1-9][0-9]{0,17})$`),
		"KEY":       regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`),
		"VALUE":     regexp.MustCompile(`^([^\pC-]\PC*)?$`), // printable
		"UNPACK":    regexp.MustCompile(`^(all|missing)$`),
		"DBNAME":    regexp.MustCompile(`^[A-Za-z0-9_]{1,64}$`),
		"OURDB":     regexp.MustCompile(`^(pool_[a-z0-9_]{1,58}|tenant_[a-z0-9_]{1,54}_db)$`), // generated by the control plane
		"ADDRESS":   regexp.MustCompile(`^(` + octet + `\.){3}` + octet + `$`),
		"SERVER":    regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`),
		"CACHEDB":   regexp.MustCompile(`^([1-9]|[1-9][0-9]{1,2}|[1-3][0-9]{3}|40[0-8][0-9]|409[0-5])$`), // a database of a pool; none is 0
		"SECTION":   regexp.MustCompile(`^(server|clients|memory|persistence|stats|replication|cpu|commandstats|errorstats|keyspace)$`),
		"REDISKEY":  regexp.MustCompile(`^[^\pC-]\PC*$`),
		"VOLUME":    regexp.MustCompile(`^[1-9][0-9]{0,18}$`), // the provider's id
		"COUNT":     regexp.MustCompile(`^([1-9]|[1-9][0-9]|1[01][0-9]|12[0-8])$`),
	}
})

// wordLengths bounds words whose patterns don't; 253 is the longest host name.
var wordLengths = map[string]int{"SITE": 253, "VALUE": 4096, "REDISKEY": 1024, "SETTINGS": 8192, "EMAIL": 140, "PERSON": 140}

// publicWords are the words of the table whose text audits and lists show: names, numbers and choices. The others may
// hold a secret or describe a person.
var publicWords = map[string]bool{
	"SITE": true, "APP": true, "BACKUP": true, "RECIPIENT": true, "SHA256": true, "BYTES": true, "KEY": true,
	"UNPACK": true, "DBNAME": true, "OURDB": true, "ADDRESS": true, "SERVER": true, "CACHEDB": true,
	"SECTION": true, "VOLUME": true, "COUNT": true,
	"VALUE": false, "SETTINGS": false, "EMAIL": false, "PERSON": false, "REDISKEY": false,
}

// Unrecorded stands for an argument that is not recorded.
const Unrecorded = "…"

// Recorded is a command line as audits and lists show it, and private the arguments that are left out there. Of a line
// that is not allowed only the words of the table are shown.
func Recorded(kind wire.CommandKind, args []string) (line string, private []string) {
	p := Permitted(kind, args)
	shown := make([]string, len(args))
	for i, arg := range args {
		public := p == nil && isVerb(kind, arg)
		if p != nil {
			word := strings.Fields(p.Line)[i]
			public = publicWords[word] || words()[word] == nil
		}
		if shown[i] = arg; !public {
			shown[i], private = Unrecorded, append(private, arg)
		}
	}
	return strings.Join(shown, " "), private
}

// isVerb reports whether the table has a word that stands for itself.
func isVerb(kind wire.CommandKind, arg string) bool {
	return words()[arg] == nil && slices.ContainsFunc(Rules[kind], func(r Rule) bool {
		return slices.Contains(strings.Fields(r.Line), arg)
	})
}

// Is reports whether a text is such a word.
func Is(word, text string) bool {
	limit := wordLengths[word]
	return words()[word].MatchString(text) && (limit == 0 || len(text) <= limit)
}

// Permit is a command line that is allowed, and what it names.
type Permit struct {
	*Rule
	Verb   string
	Words  []string // what stands in it, without the verb and the names of options that have a value
	Sites  []string
	Volume string // "" unless the line begins with it
}

// Permitted parses a command line; nil if it isn't allowed.
func Permitted(kind wire.CommandKind, args []string) *Permit {
	for i := range Rules[kind] {
		if p := Rules[kind][i].permits(args); p != nil {
			return p
		}
	}
	return nil
}

// Erasure is what a command erases: a site, a database, or a copy of a site that is on its host only; "" is none.
type Erasure struct{ Site, Database, Copy string }

// Erased is what a command line erases; ok is false if it erases nothing, or is not allowed. What was packed or sealed
// for a transfer is a copy of what stays.
func Erased(kind wire.CommandKind, args []string) (e Erasure, ok bool) {
	p := Permitted(kind, args)
	if p == nil || p.Effect != Erases {
		return e, false
	}
	for i, word := range strings.Fields(p.Line) {
		switch word {
		case "SITE":
			e.Site = args[i]
		case "OURDB":
			e.Database = args[i]
		case "BACKUP":
			e = Erasure{Copy: args[i]} // of the site, which stays
		}
	}
	return e, true
}

// Name is the verb of a line: its first word, or the one after the site or the volume.
func (r *Rule) Name() string {
	form := strings.Fields(r.Line)
	if strings.HasPrefix(form[0], "--") {
		return form[2]
	}
	return form[0]
}

func (r *Rule) permits(args []string) *Permit {
	form := strings.Fields(r.Line)
	if len(form) != len(args) {
		return nil
	}
	p := &Permit{Rule: r, Verb: r.Name()}
	for i, word := range form {
		switch _, pattern := words()[word]; {
		case pattern && !Is(word, args[i]), !pattern && args[i] != word:
			return nil
		case word == p.Verb, !pattern && strings.HasPrefix(word, "--") && i < len(form)-1: // its value follows
			continue
		case word == "SITE":
			p.Sites = append(p.Sites, args[i])
		case word == "VOLUME" && form[0] == "--volume":
			p.Volume = args[i]
		}
		p.Words = append(p.Words, args[i])
	}
	return p
}
