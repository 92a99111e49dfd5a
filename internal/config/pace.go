package config

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Pace is a factor on what the control plane waits, for tests and demos.
type Pace float64

// quickest is the shortest period that a pace makes: below it the work itself takes longer.
const quickest = 100 * time.Millisecond

// Of is d at this pace.
func (p Pace) Of(d time.Duration) time.Duration {
	return max(time.Duration(float64(d)*float64(p)), min(d, quickest))
}

// each calls f with every field, and with the name of its variable.
func each(v reflect.Value, prefix string, f func(name string, field reflect.StructField, v reflect.Value)) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name := field.Tag.Get("env")
		if field.Type.Kind() == reflect.Struct && name == "" {
			each(v.Field(i), prefix+field.Tag.Get("envPrefix"), f)
			continue
		}
		if name != "" {
			name = prefix + name
		}
		f(name, field, v.Field(i))
	}
}

// apply scales the periods that vars doesn't set, and finds the variables that are no settings.
func (c *Config) apply(vars map[string]string) {
	known := []string{}
	each(reflect.ValueOf(c).Elem(), "", func(name string, field reflect.StructField, v reflect.Value) {
		known = append(known, name)
		if field.Tag.Get("pace") != "" && vars[name] == "" {
			v.SetInt(int64(c.Pace.Of(time.Duration(v.Int()))))
		}
	})
	for name := range vars {
		ours := strings.HasPrefix(name, "PREGO_") || strings.HasPrefix(name, "PLACEMENT_")
		secret := strings.TrimSuffix(name, "_FILE")
		if ours && !otherPrograms.MatchString(name) && !slices.Contains(known, name) && !slices.Contains(Secrets(), secret) {
			c.Unknown = append(c.Unknown, name)
		}
	}
	slices.Sort(c.Unknown)
}

// otherPrograms are variables of the command line, of tests and of deploy's scripts.
var otherPrograms = regexp.MustCompile(`^PREGO_(API_URL|TOKEN|TOKEN_FILE|CONTEXT|TEST_.*|CACHE|IMAGES?|MACHINES|PARTS|SECRETS|SETTINGS|SHARE|` +
	`HCLOUD_OPENAPI|(API|AGENTGW)_PUBLISH|DB_PASSWORD_FILE)$`)
