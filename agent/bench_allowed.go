package agent

import (
	"regexp"
	"strings"
)

// benchAllowed is every command line of bench that the control plane may ask
// for: all else is refused. A word in capitals stands for what its pattern below
// takes, every other word for itself.
var benchAllowed = []string{
	"new-site SITE --db-name DB",
	"--site SITE rename-site SITE",
	"--site SITE set-config KEY VALUE",
	"--site SITE install-app APP",
	"--site SITE list-apps",
	"--site SITE set-maintenance-mode ONOFF",
	"--site SITE backup",
	"drop-site SITE --force --no-backup",
	"list-sites",
}

// benchWords are the patterns. None takes a word that starts with "-": bench
// would read an option in it.
var benchWords = map[string]*regexp.Regexp{
	"SITE":  regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`),
	"DB":    regexp.MustCompile(`^[a-z0-9_]{1,63}$`),
	"APP":   regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`),
	"KEY":   regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`),
	"VALUE": regexp.MustCompile(`^([^\pC-]\PC*)?$`), // printable
	"ONOFF": regexp.MustCompile(`^(on|off)$`),
}

// benchLengths bounds words whose patterns don't; 253 is the longest host name.
var benchLengths = map[string]int{"SITE": 253, "VALUE": 4096}

// benchVerb is the verb of an allowed command line, "" if it isn't allowed.
func benchVerb(args []string) string {
	for _, line := range benchAllowed {
		if form := strings.Fields(line); fits(form, args) {
			if form[0] == "--site" {
				return form[2]
			}
			return form[0]
		}
	}
	return ""
}

func fits(form, args []string) bool {
	if len(form) != len(args) {
		return false
	}
	for i, word := range form {
		pattern, ok := benchWords[word]
		if !ok {
			if args[i] != word {
				return false
			}
			continue
		}
		if limit := benchLengths[word]; !pattern.MatchString(args[i]) || (limit > 0 && len(args[i]) > limit) {
			return false
		}
	}
	return true
}
