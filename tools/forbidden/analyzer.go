package main

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Analyzer finds the forbidden patterns in Go code. Constants count by their values, however they are written.
var Analyzer = &analysis.Analyzer{
	Name: "forbidden",
	Doc:  "reports what direct-provisioning §11 forbids",
	Run:  run,
}

// kinds are the kinds of the agent's commands (ADR 77). spool is none of the network: the process that faces it reads
// and writes sealed backups through the one that runs commands (agent/policy).
var kinds = []string{"bench", "mariadb", "redis-cli", "volume", "address", "patch", "peers", "transfer", "spool", ""}

var programs = map[string]string{
	"pulumi": saysPulumi, "ansible": saysAnsib,
	"ssh": saysSSH, "scp": saysSSH, "sftp": saysSSH, "sshpass": saysSSH,
}

var (
	shells  = []string{"sh", "bash", "dash", "zsh", "ash", "ksh"}
	runText = regexp.MustCompile(`^-[a-z]*c$`)
	modules = regexp.MustCompile(`(?:^|/)(?:prego-)?(pulumi|ansible)(?:/|$)|^golang\.org/x/crypto/(ssh)(?:/|$)`)
)

func run(pass *analysis.Pass) (any, error) {
	if strings.HasSuffix(pass.Pkg.Path(), "/tools/forbidden") {
		return nil, nil // it names what it looks for
	}
	for _, file := range pass.Files {
		name := pass.Fset.Position(file.Pos()).Filename
		c := &checker{Pass: pass, test: strings.HasSuffix(name, "_test.go"), reported: map[token.Pos]bool{}}
		// What plays the world runs the shells of simulated machines.
		c.vectors = !c.test && !slices.Contains(strings.Split(pass.Pkg.Path(), "/"), "lab")
		ast.Inspect(file, c.visit)
	}
	return nil, nil
}

type checker struct {
	*analysis.Pass
	test, vectors bool
	reported      map[token.Pos]bool
}

// report reports a place once.
func (c *checker) report(at token.Pos, says string) {
	if !c.reported[at] {
		c.reported[at] = true
		c.Reportf(at, "forbidden: %s", says)
	}
}

func (c *checker) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ImportSpec:
		if p, err := strconv.Unquote(n.Path.Value); err == nil {
			if m := modules.FindStringSubmatch(p); m != nil {
				c.report(n.Pos(), programs[m[1]+m[2]])
			}
		}
		return false
	case *ast.CallExpr:
		c.arguments(n.Args, c.startsProgram(n))
	case *ast.CompositeLit:
		c.arguments(n.Elts, c.isCmd(n))
	}
	if e, ok := n.(ast.Expr); ok {
		return c.expression(e)
	}
	return true
}

// expression checks a constant as a whole: "/agent/v1/" + "x" is one.
func (c *checker) expression(e ast.Expr) bool {
	v := c.TypesInfo.Types[e]
	if v.Value == nil || v.Value.Kind() != constant.String {
		return true
	}
	text := constant.StringVal(v.Value)
	if named, ok := v.Type.(*types.Named); ok && isKind(named.Obj()) && !c.test && !slices.Contains(kinds, text) {
		c.report(e.Pos(), saysKind)
	}
	if _, isName := e.(*ast.Ident); isName || c.test {
		return false // reported where it is declared
	}
	if _, isName := e.(*ast.SelectorExpr); isName {
		return false
	}
	for _, p := range agentPath.FindAllString(text, -1) {
		if !allowedPath(p) {
			c.report(e.Pos(), saysPath)
		}
	}
	for _, n := range names[:2] {
		if n.pattern.MatchString(text) {
			c.report(e.Pos(), n.says)
		}
	}
	return false
}

// arguments checks a list of arguments: starts is whether they start a program.
func (c *checker) arguments(list []ast.Expr, starts bool) {
	before := ""
	for _, e := range list {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			e = kv.Value
		}
		v := c.TypesInfo.Types[e]
		if v.Value == nil || v.Value.Kind() != constant.String {
			// append([]string{"-c"}, …)... continues the list.
			text, ok := c.firstOf(e)
			if ok && c.vectors && slices.Contains(shells, before) && runText.MatchString(text) {
				c.report(e.Pos(), saysShell)
			}
			before = ""
			continue
		}
		text := constant.StringVal(v.Value)
		if says := programs[program(text)]; starts && says != "" {
			c.report(e.Pos(), says)
		}
		if c.vectors && slices.Contains(shells, before) && runText.MatchString(text) {
			c.report(e.Pos(), saysShell)
		}
		before = path.Base(text)
	}
}

// program is a program's name without its directory and the rest of its family: ansible-playbook is ansible.
func program(text string) string {
	name := path.Base(text)
	if family, _, ok := strings.Cut(name, "-"); ok && (family == "ansible" || family == "pulumi") {
		return family
	}
	return name
}

// firstOf is the first constant of a list that continues another one.
func (c *checker) firstOf(e ast.Expr) (string, bool) {
	for {
		var list []ast.Expr
		switch x := e.(type) {
		case *ast.CallExpr:
			list = x.Args
		case *ast.CompositeLit:
			list = x.Elts
		}
		if len(list) == 0 {
			return "", false
		}
		e = list[0]
		if v := c.TypesInfo.Types[e]; v.Value != nil && v.Value.Kind() == constant.String {
			return constant.StringVal(v.Value), true
		}
	}
}

// startsProgram reports whether a call is of os/exec or starts a process in another way.
func (c *checker) startsProgram(call *ast.CallExpr) bool {
	var id *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return false
	}
	f, ok := c.TypesInfo.Uses[id].(*types.Func)
	if !ok || f.Pkg() == nil {
		return false
	}
	switch f.Pkg().Path() {
	case "os/exec":
		return true
	case "os", "syscall":
		return slices.Contains([]string{"StartProcess", "Exec", "ForkExec"}, f.Name())
	}
	return false
}

func isKind(t *types.TypeName) bool {
	return t.Name() == "CommandKind" && t.Pkg() != nil && path.Base(t.Pkg().Path()) == "wire"
}

func (c *checker) isCmd(lit *ast.CompositeLit) bool {
	named, ok := c.TypesInfo.Types[lit].Type.(*types.Named)
	return ok && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == "os/exec" && named.Obj().Name() == "Cmd"
}
