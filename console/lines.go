package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/api"
)

// writeCommands are the commands for the same changes.
func (c *Console) writeCommands(ec echo.Context, a *asking, body object) []command {
	u := a.path()
	if q := a.query(); len(q) > 0 {
		u += "?" + q.Encode()
	}
	curl := "curl -X " + a.Op.Method + " -H \"Authorization: Bearer $PREGO_TOKEN\""
	if len(body) > 0 {
		b, err := json.Marshal(concealed(a.Fields, body))
		if err != nil {
			return nil
		}
		curl += " -H 'Content-Type: application/json' -d " + quoted(string(b))
	}
	out := []command{{Name: "curl", Line: curl + " " + quoted(origin(ec.Request())+u)}}
	if line := a.line(concealed(a.Fields, body)); line != "" {
		out = append([]command{{Name: "prego", Line: line}}, out...)
	}
	return out
}

// concealed is a body without its secrets.
func concealed(fields []field, body object) object {
	out := object{}
	for _, f := range fields {
		v := body.at(f.Name)
		switch {
		case v == nil:
			continue
		case f.Kind == "secret":
			v = "…"
		}
		api.Put(out, f.Name, v)
	}
	return out
}

// verbs are the commands of an operation.
func (o *operation) verbs() []*api.Verb { return api.VerbsOf(o.OperationID) }

// line is the command line with what a form holds.
func (a *asking) line(body object) string {
	var names []string
	params := map[string]any{}
	for _, f := range a.Params {
		switch {
		case f.Value == "":
			continue
		case f.Kind == "yesno":
			params[f.Name] = f.Value == "true"
		default:
			params[f.Name] = f.Value
		}
		names = append(names, f.Name)
	}
	for _, f := range a.Fields {
		names = append(names, f.Name)
	}
	return a.Op.line(names, func(name string) any {
		if v, ok := params[name]; ok {
			return v
		}
		return body.at(name)
	})
}

// bySpec are commands that take the whole spec, since their flags can't express all of it.
var bySpec = []string{"createGroup", "deployGroup"}

// line is the command line of an operation with the given inputs, "" if there is no command. Inputs that the command
// can't express stand behind it as a comment.
func (o *operation) line(names []string, given func(name string) any) string {
	v := o.verb(given)
	if v == nil {
		return ""
	}
	said := map[string]bool{v.Rest: true}
	for _, s := range v.Set {
		said[s.Field] = true
	}
	input := ""
	if slices.Contains(bySpec, o.OperationID) && given("spec") != nil {
		input = flat(given("spec"))
	}
	line := "prego"
	for text := range strings.FieldsSeq(v.Use) {
		if text == "--" || text == "[--" {
			break
		}
		i := slices.IndexFunc(v.Args, func(a api.Flag) bool { return a.Name == strings.Trim(text, "[]…") })
		if i < 0 {
			line += " " + text
			continue
		}
		arg := v.Args[i]
		value := given(arg.Field)
		if arg.Field == "snapshot_id" && value == nil { // a backup's id stands in its place
			arg.Field, value = "backup_id", given("backup_id")
		}
		if value != nil {
			line += " " + word(flat(value))
		} else if arg.Required {
			line += " " + arg.Name
		}
		said[arg.Field] = said[arg.Field] || value != nil
	}
	var missing []string
	for i := 0; i < len(names); i++ {
		name := names[i]
		value := given(name)
		if value == nil || said[name] || input != "" && strings.HasPrefix(name, "spec.") {
			continue
		}
		within := func(fl api.Flag) bool { return strings.HasPrefix(fl.Field, name+".") }
		if open, ok := value.(map[string]any); ok && slices.ContainsFunc(v.Flags, within) {
			for _, key := range slices.Sorted(maps.Keys(open)) { // an object with its own flags
				names = append(names, name+"."+key)
			}
			continue
		}
		args, piped, ok := o.arguments(v, name, given)
		if !ok {
			missing = append(missing, name)
		}
		if piped {
			input = flat(value)
		}
		for _, arg := range args {
			line += " " + word(arg)
		}
	}
	for _, fl := range v.Flags { // the API's own value is another
		if fl.Type == "bool" && fl.Always && fl.Default == "true" && given(fl.Field) == nil {
			line += " --" + fl.Name + "=false"
		}
	}
	if slices.Contains(bySpec, o.OperationID) && input != "" {
		line += " --file -"
	}
	if rest, ok := given(v.Rest).([]string); ok && input == "" {
		line += " --"
		for _, arg := range rest {
			line += " " + word(arg)
		}
	}
	if input != "" {
		line = "printf %s " + word(input) + " | " + line
	}
	if len(missing) > 0 {
		line += "  # without " + strings.Join(missing, ", ") + ", which the command has no flag for"
	}
	return line
}

// verb is the command of an operation for some inputs: the command that sets most of them.
func (o *operation) verb(given func(string) any) (best *api.Verb) {
	all := o.verbs()
	for _, v := range all {
		if best != nil && len(v.Set) <= len(best.Set) {
			continue
		}
		if !slices.ContainsFunc(v.Set, func(s api.Flag) bool { return flat(given(s.Field)) != s.Default }) {
			best = v
		}
	}
	if best == nil && len(all) > 0 {
		best = all[len(all)-1]
	}
	return best
}

// arguments are a flag with a value, and whether the value is piped into the command; not ok if the command
// can't express it. A duration has its unit there, and a list is a flag for each of its values.
func (o *operation) arguments(v *api.Verb, name string, given func(string) any) (args []string, piped, ok bool) {
	value := given(name)
	if say := otherwise[o.OperationID+"."+name]; say != nil {
		args = say(v, value, given)
		return args, false, args != nil
	}
	if name == "sort" {
		return []string{"--sort=" + flat(value)}, false, true
	}
	i := slices.IndexFunc(v.Flags, func(fl api.Flag) bool { return fl.Field == name })
	if i < 0 {
		return nil, false, value == false // the default without a flag
	}
	fl := v.Flags[i]
	flag := "--" + fl.Name
	each := func(texts ...string) {
		for _, text := range texts {
			args = append(args, flag, listed(text))
		}
	}
	switch x := value.(type) {
	case bool:
		return []string{flag + map[bool]string{false: "=false"}[x]}, false, true
	case []string:
		each(x...)
	case []any:
		for _, e := range x {
			each(flat(e))
		}
	case map[string]any:
		if fl.Type != "map" {
			return []string{flag, "-"}, true, true
		}
		for _, key := range slices.Sorted(maps.Keys(x)) {
			each(key + "=" + flat(x[key]))
		}
	default:
		text := flat(value)
		switch {
		case fl.Type == "secret": // which the command asks for
		case fl.Type == "bool" && text == "true":
			args = []string{flag}
		case fl.Type == "duration":
			args = []string{flag, text + "s"}
		case strings.HasPrefix(text, "-"):
			args = []string{flag + "=" + text}
		default:
			args = []string{flag, text}
		}
	}
	return args, false, true
}

// otherwise are inputs that their commands write in another form, by operation and name: arguments, nil if there are
// none.
var otherwise = map[string]func(v *api.Verb, value any, given func(string) any) []string{
	"attachPolicy.enabled": func(_ *api.Verb, value any, _ func(string) any) []string {
		return when(value == false, "--disabled")
	},
	"addTenantUser.password": func(_ *api.Verb, value any, _ func(string) any) []string {
		return when(value == "none", "--no-password")
	},
	"createFleetAction.inputs.adjustment_type": adjustment,
	"createFleetAction.inputs.number": func(v *api.Verb, _ any, given func(string) any) []string {
		return adjustment(v, given("inputs.adjustment_type"), given)[:0]
	},
	"createFleetAction.inputs.strict": func(_ *api.Verb, value any, _ func(string) any) []string {
		return when(value == false, "--best-effort")
	},
	"createRelease.rings": rings,
	"whatIf.request.tenant_id": func(_ *api.Verb, value any, _ func(string) any) []string {
		if value == "what-if" { // a tenant that is not there yet; the command can't give it another id
			return []string{}
		}
		return nil
	},
}

// when is an argument, or none.
func when(said bool, arg string) []string {
	if said {
		return []string{arg}
	}
	return []string{}
}

// adjustment is how a fleet is resized.
func adjustment(v *api.Verb, kind any, given func(string) any) []string {
	flag := map[string]string{
		"EXACT_CAPACITY": "--to", "CHANGE_IN_CAPACITY": "--by", "CHANGE_IN_PERCENTAGE": "--percent",
	}[flat(kind)]
	number := given("inputs.number")
	if flag == "" || number == nil || v.Use != "fleet resize FLEET" {
		return nil
	}
	return []string{flag, flat(number)}
}

// rings are a release's rings as the command makes them: tenants first, then shares of the servers, then the rest,
// with the same time in between.
func rings(_ *api.Verb, value any, _ func(string) any) []string {
	list, ok := value.([]any)
	if !ok || len(list) < 2 {
		return nil
	}
	args, shares := []string{}, 0
	soak, _ := list[0].(map[string]any)["soak_seconds"].(json.Number)
	for i, e := range list {
		r, ok := e.(map[string]any)
		if !ok {
			return nil
		}
		name, _ := r["name"].(string)
		tenants, _ := r["tenants"].([]any)
		percent, share := r["percent"].(json.Number)
		waits, _ := r["soak_seconds"].(json.Number)
		switch {
		case i == len(list)-1:
			if name != "rest" || share || tenants != nil || waits != "" {
				return nil
			}
		case waits != soak:
			return nil
		case i == 0 && name == "canary" && tenants != nil && !share:
			for _, t := range tenants {
				args = append(args, "--canary", flat(t))
			}
		case share && tenants == nil:
			args = append(args, "--ring", listed(name+"="+percent.String()))
			shares++
		default:
			return nil
		}
	}
	if shares == 0 {
		return nil
	}
	if soak != "" {
		args = append(args, "--soak", soak.String()+"s")
	}
	return args
}

// readLine is the command line of an operation that reads, with the filters of a query.
func (o *operation) readLine(query url.Values, params map[string]string) string {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(query)), func(name string) bool { return name == "cursor" || name == "limit" })
	return o.line(names, func(name string) any {
		if v := query.Get(name); v != "" {
			return v
		}
		if v := params[name]; v != "" {
			return v
		}
		return nil
	})
}

// readCommands are the commands for the same reads.
func (c *Console) readCommands(ec echo.Context, op *operation, query url.Values, params map[string]string) []command {
	u := fill(op.Path, from(params))
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	out := []command{{Name: "curl", Line: "curl -H \"Authorization: Bearer $PREGO_TOKEN\" " + quoted(origin(ec.Request())+u)}}
	if line := op.readLine(query, params); line != "" {
		out = append([]command{{Name: "prego", Line: line}}, out...)
	}
	return out
}

// listed is a value as a flag that takes several of them reads it.
func listed(s string) string {
	if strings.ContainsAny(s, `,"`) {
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}

// flat is a value as one argument.
func flat(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case []string:
		return strings.Join(v, ",")
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
