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
	Words string            // with {parameters} of the path and {fields} of the body
	Flags map[string]string // by field of the body or the query: "--flag", or "" for what the command can't say
	Yes   bool              // it asks for a confirmation
}

// line is the command line with what a form holds.
func (l cliLine) line(a *asking, body object) string {
	used := map[string]bool{}
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
		if used[name] {
			return
		}
		flag, ok := l.Flags[name]
		if !ok {
			flag = "--" + flagOf(name[strings.LastIndexByte(name, '.')+1:])
		}
		switch v := v.(type) {
		case bool:
			if flag != "" && v {
				line += " " + flag
			} else if flag != "" {
				line += " " + flag + "=false"
			}
		case []string:
			for _, e := range v {
				if flag != "" {
					line += " " + flag + " " + word(e)
				}
			}
		default:
			if flag != "" {
				line += " " + flag + " " + word(flat(v))
			}
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
	return line
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
