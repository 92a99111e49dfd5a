package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

// writeCommands say how the same is done by other means.
func (c *Console) writeCommands(ec echo.Context, a *asking, body object) []command {
	u := a.path()
	if q := a.query(); len(q) > 0 {
		u += "?" + q.Encode()
	}
	curl := "curl -X " + a.Op.Method + " -H \"Authorization: Bearer $PREGO_TOKEN\""
	if a.Op.Method == http.MethodGet {
		curl = strings.Replace(curl, "-X GET ", "", 1)
	}
	if len(body) > 0 {
		b, err := json.Marshal(concealed(a.Fields, body))
		if err != nil {
			return nil
		}
		curl += " -H 'Content-Type: application/json' -d " + quoted(string(b))
	}
	out := []command{{Name: "curl", Line: curl + " " + quoted(origin(ec.Request())+u)}}
	if l, ok := cliLines[a.Op.OperationID]; ok {
		out = append([]command{{Name: "prego", Line: l.line(a, concealed(a.Fields, body))}}, out...)
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
		out.put(f.Name, v)
	}
	return out
}

// cliLine is the command of an operation.
type cliLine struct {
	Words string            // with {parameters} of the path and the query, and {fields} of the body
	Flags map[string]string // by field of the body or the query, "" for what the command can't say; others have the flag of their name
	As    map[string]as     // fields that the command writes in another form
	Input string            // the field whose JSON the command reads from its standard input
	Rest  string            // the field with the list that stands behind "--"
	Yes   bool              // it asks for a confirmation
	Of    func(body object) cliLine
}

// as makes a field's arguments, nil if there are none that say it.
type as func(v any) []string

// line is the command line with what a form holds. What the command can't say stands behind it as
// a comment.
func (l cliLine) line(a *asking, body object) string {
	if l.Of != nil {
		return l.Of(body).line(a, body)
	}
	used := map[string]bool{}
	var missing []string
	line := "prego " + placeholders.ReplaceAllStringFunc(l.Words, func(name string) string {
		name = strings.Trim(name, "{}")
		used[name] = true
		for _, f := range a.Params {
			if f.Name == name && f.Value != "" {
				return word(f.Value)
			}
		}
		if v := body.at(name); v != nil {
			return word(flat(v))
		}
		return strings.ToUpper(name)
	})
	add := func(name string, v any) {
		if used[name] || name == l.Rest || l.Input != "" && (name == l.Input || strings.HasPrefix(name, l.Input+".")) {
			return
		}
		args := l.arguments(name, v)
		if args == nil {
			missing = append(missing, name)
		}
		for _, arg := range args {
			line += " " + word(arg)
		}
	}
	for _, p := range a.Op.query {
		for _, f := range a.Params {
			if f.Name == p.Name && f.Value != "" {
				if f.Kind == "yesno" {
					add(f.Name, f.Value == "true")
				} else {
					add(f.Name, f.Value)
				}
			}
		}
	}
	for _, f := range a.Fields {
		if v := body.at(f.Name); v != nil {
			add(f.Name, v)
		}
	}
	if l.Yes {
		line += " --yes"
	}
	if rest, ok := body.at(l.Rest).([]string); ok {
		line += " --"
		for _, arg := range rest {
			line += " " + word(arg)
		}
	}
	if l.Input != "" {
		if v := body.at(l.Input); v != nil {
			line = "printf %s " + word(flat(v)) + " | " + line
		}
	}
	return line + without(missing)
}

// arguments are the flag of a field with its value, nil if the command can't say it. A duration
// has its unit there, and a list is a flag for each of its values.
func (l cliLine) arguments(name string, v any) []string {
	if f := l.As[name]; f != nil {
		return f(v)
	}
	flag, ok := l.Flags[name]
	if !ok {
		flag = "--" + flagOf(name[strings.LastIndexByte(name, '.')+1:])
	}
	if flag == "" {
		return nil
	}
	switch v := v.(type) {
	case bool:
		if v {
			return []string{flag}
		}
		return []string{flag + "=false"}
	case []string:
		args := []string{}
		for _, e := range v {
			args = append(args, flag, listed(e))
		}
		return args
	case []any:
		args := []string{}
		for _, e := range v {
			args = append(args, flag, listed(flat(e)))
		}
		return args
	}
	text := flat(v)
	if name == "seconds" || strings.HasSuffix(name, ".seconds") || strings.HasSuffix(name, "_seconds") {
		text += "s"
	}
	return []string{flag, text}
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
