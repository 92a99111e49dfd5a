package docsrun

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// command is a command of a document for its reader.
type command struct {
	at   string // where it is, as file:line
	text string
	// want is the output that the document shows; nil where it shows none.
	want []string
}

// mark is the reason why the commands of a fence are not run.
type mark struct {
	at, why  string
	commands int
	lines    []string // of the fence
}

// document has the commands of a Markdown file for its reader.
type document struct {
	name     string
	commands []command
	marks    []mark
	problems []string // of the document itself
}

var (
	// Fences of these languages are data. Commands in them would never run.
	data = []string{"text", "json", "yaml", "sql", "promql", "go", "html", "mermaid"}

	fenceLine   = regexp.MustCompile("^\\s*```\\s*(\\S*)\\s*$")
	instruction = regexp.MustCompile(`^\s*<!--\s*(not run|run):(.*?)-->\s*$`)
	unfinished  = regexp.MustCompile(`unexpected EOF|unexpected end of file|here-document .* delimited by end-of-file`)
	likeCommand = regexp.MustCompile(`(?m)^\s*(\$ |(bin/)?prego [a-z]|curl -|make [a-z]|sudo |docker |go (test|build|run|vet) )`)
)

// parse reads a document's fences. `sh` holds commands, `console` commands after `$ `
// with the output of each.
func parse(name, text string) document {
	d := document{name: name}
	lines := strings.Split(text, "\n")
	var setup []command // instructions that wait for their fence
	var notRun *mark
	for i := 0; i < len(lines); i++ {
		at := fmt.Sprintf("%s:%d", name, i+1)
		complain := func(format string, args ...any) {
			d.problems = append(d.problems, at+": "+fmt.Sprintf(format, args...))
		}
		if m := instruction.FindStringSubmatch(lines[i]); m != nil {
			what := strings.TrimSpace(m[2])
			switch {
			case what == "":
				complain("%q has no text", m[1])
			case m[1] == "run":
				setup = append(setup, command{at: at, text: what})
			case notRun != nil:
				complain("two reasons for one fence")
			default:
				notRun = &mark{at: at, why: what}
			}
			continue
		}
		m := fenceLine.FindStringSubmatch(lines[i])
		if m == nil {
			if strings.TrimSpace(lines[i]) != "" && (setup != nil || notRun != nil) {
				complain("an instruction stands right before a fence, not before this line")
				setup, notRun = nil, nil
			}
			continue
		}
		indent := lines[i][:strings.Index(lines[i], "`")]
		first := i + 1
		for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
			lines[i] = strings.TrimPrefix(lines[i], indent)
		}
		if i == len(lines) {
			complain("the fence has no end")
			return d
		}
		body, number := lines[first:i], first+1
		var commands []command
		switch lang := m[1]; {
		case lang == "sh":
			commands = split(name, number, body, false)
		case lang == "console":
			if commands = split(name, number, body, true); commands == nil {
				complain("a console begins with `$ ` and a command")
			}
		case lang == "":
			complain("the fence has no language: sh or console for commands, or one of %s", strings.Join(data, ", "))
		case !slices.Contains(data, lang):
			complain("language %q is neither sh nor console nor one of %s", lang, strings.Join(data, ", "))
		default:
			content := strings.Join(body, "\n")
			shows := likeCommand.MatchString(content)
			if shows && notRun == nil {
				complain("a %s fence shows commands: sh or console runs them", lang)
			}
			if !shows && notRun != nil {
				complain("a %s fence is not run anyway", lang)
			}
			if lang == "json" && !validJSON(body) {
				complain("this is not JSON, neither as a whole nor line by line")
			}
		}
		switch {
		case notRun != nil:
			notRun.commands, notRun.lines = len(commands), body
			d.marks = append(d.marks, *notRun)
			if setup != nil {
				complain("a fence that is not run needs no setup")
			}
		default:
			d.commands = append(append(d.commands, setup...), commands...)
		}
		setup, notRun = nil, nil
	}
	return d
}

// split finds the commands of a fence whose first line has the number first. Where they
// have prompts, what follows each is its output; nil when the fence doesn't begin with one.
func split(name string, first int, lines []string, prompts bool) []command {
	var out []command
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if prompts {
			var ok bool
			if line, ok = strings.CutPrefix(line, "$ "); !ok {
				if out == nil {
					return nil
				}
				last := &out[len(out)-1]
				last.want = append(last.want, lines[i])
				continue
			}
		} else if s := strings.TrimSpace(line); s == "" || strings.HasPrefix(s, "#") {
			continue
		}
		c := command{at: fmt.Sprintf("%s:%d", name, first+i), text: line}
		for !complete(c.text) && i+1 < len(lines) {
			i++
			c.text += "\n" + lines[i]
		}
		if prompts {
			c.want = []string{}
		}
		out = append(out, c)
	}
	return out
}

// complete reports whether a shell would run the text, and not ask for its next line.
func complete(text string) bool {
	if strings.HasSuffix(text, "\\") {
		return false
	}
	out, _ := exec.Command("bash", "-n", "-c", text).CombinedOutput()
	return !unfinished.Match(out)
}

func validJSON(lines []string) bool {
	if json.Valid([]byte(strings.Join(lines, "\n"))) {
		return true
	}
	return !slices.ContainsFunc(lines, func(l string) bool { return strings.TrimSpace(l) != "" && !json.Valid([]byte(l)) })
}
