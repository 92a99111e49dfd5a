package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutant is one change.
type mutant struct {
	id   int
	at   token.Position
	what string
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d:%d: %s", filepath.Base(m.at.Filename), m.at.Line, m.at.Column, m.what)
}

// text describes it without its line.
func (m mutant) text() string { return filepath.Base(m.at.Filename) + ": " + m.what }

// mutated is a package with all of its mutants in it.
type mutated struct {
	dir     string
	files   map[string][]byte // by the name that they stand for
	mutants []mutant

	name   string // of the package
	fset   *token.FileSet
	info   *types.Info
	syntax []*ast.File
	src    []byte
	edits  []edit
}

// edit puts text at an offset; of those at one offset, what opens later is further in.
type edit struct {
	at    int
	text  string
	order int
}

// load parses a package.
func load(pkg string) (*mutated, error) {
	var list struct {
		Dir, ImportPath, Name string
		GoFiles               []string
	}
	out, err := exec.CommandContext(context.Background(), "go", "list", "-json", pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, err
	}
	m := &mutated{
		dir: list.Dir, name: list.Name, files: map[string][]byte{}, fset: token.NewFileSet(),
		info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}},
	}
	for _, name := range list.GoFiles {
		f, err := parser.ParseFile(m.fset, filepath.Join(list.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		m.syntax = append(m.syntax, f)
	}
	exports, err := exported(pkg)
	if err != nil {
		return nil, err
	}
	lookup := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	conf := types.Config{Importer: importer.ForCompiler(m.fset, "gc", lookup)}
	if _, err := conf.Check(list.ImportPath, m.fset, m.syntax, m.info); err != nil {
		return nil, err
	}
	return m, nil
}

// change edits the files that have a name, and adds one.
func (m *mutated) change(which *regexp.Regexp, switches string, visit func(*ast.File)) error {
	for _, f := range m.syntax {
		name := m.fset.Position(f.Pos()).Filename
		if !which.MatchString(filepath.Base(name)) {
			continue
		}
		var err error
		if m.src, err = os.ReadFile(name); err != nil {
			return err
		}
		m.edits = nil
		visit(f)
		m.files[name] = m.apply()
	}
	m.files[filepath.Join(m.dir, "mutant_switch.go")] = []byte("package " + m.name + switches)
	return nil
}

func mutate(pkg string, which *regexp.Regexp) (*mutated, error) {
	m, err := load(pkg)
	if err != nil {
		return nil, err
	}
	return m, m.change(which, switches, func(f *ast.File) { ast.Inspect(f, m.visit) })
}

func (m *mutated) add(at token.Pos, format string, args ...any) int {
	id := len(m.mutants) + 1
	m.mutants = append(m.mutants, mutant{id: id, at: m.fset.Position(at), what: fmt.Sprintf(format, args...)})
	return id
}

func (m *mutated) text(n ast.Node) string {
	s := string(m.src[m.offset(n.Pos()):m.offset(n.End())])
	if line, _, more := strings.Cut(s, "\n"); more {
		return line + " …"
	}
	return s
}

func (m *mutated) offset(p token.Pos) int { return m.fset.Position(p).Offset }

// wrap puts text around a node. The first wrap is the outermost.
func (m *mutated) wrap(n ast.Node, before, after string) {
	m.edits = append(m.edits, edit{m.offset(n.Pos()), before, len(m.edits) + 1},
		edit{m.offset(n.End()), after, -len(m.edits) - 1})
}

func (m *mutated) put(from, to token.Pos, text string) {
	m.edits = append(m.edits, edit{m.offset(from), "\x00" + text + "\x00" + fmt.Sprint(m.offset(to)), len(m.edits) + 1})
}

// apply makes the edits. Errors keep the positions of the original, line by line.
func (m *mutated) apply() []byte {
	slices.SortStableFunc(m.edits, func(a, b edit) int {
		if a.at != b.at {
			return a.at - b.at
		}
		return a.order - b.order
	})
	var out bytes.Buffer
	last := 0
	for _, e := range m.edits {
		out.Write(m.src[last:e.at])
		last = e.at
		text := e.text
		if rest, replaces := strings.CutPrefix(text, "\x00"); replaces {
			text, rest, _ = strings.Cut(rest, "\x00")
			_, _ = fmt.Sscan(rest, &last)
		}
		out.WriteString(text)
	}
	out.Write(m.src[last:])
	return out.Bytes()
}

func (m *mutated) visit(n ast.Node) bool {
	switch v := n.(type) {
	case *ast.GenDecl:
		return v.Tok != token.CONST && v.Tok != token.TYPE && v.Tok != token.IMPORT
	case *ast.IfStmt:
		m.condition(v.Cond)
	case *ast.CaseClause:
		for _, e := range v.List {
			if t, ok := m.info.Types[e]; ok && t.Value == nil &&
				types.Identical(t.Type.Underlying(), types.Typ[types.Bool]) {
				m.condition(e)
			}
		}
		m.statements(v.Body)
	case *ast.BlockStmt:
		m.statements(v.List)
	case *ast.BinaryExpr:
		m.binary(v)
	}
	return true
}

func (m *mutated) condition(e ast.Expr) {
	if m.info.Types[e].Value != nil {
		return
	}
	yes, no := m.add(e.Pos(), "always true: %s", m.text(e)), m.add(e.Pos(), "never true: %s", m.text(e))
	m.wrap(e, fmt.Sprintf("mutantCondition(%d, %d, bool(", yes, no), "))")
}

// statements are left out one by one, except declarations.
func (m *mutated) statements(list []ast.Stmt) {
	for _, s := range list {
		switch v := s.(type) {
		case *ast.AssignStmt:
			if v.Tok == token.DEFINE {
				continue
			}
		case *ast.ExprStmt, *ast.IncDecStmt:
		default:
			continue
		}
		m.wrap(s, fmt.Sprintf("if !mutantIs(%d) { ", m.add(s.Pos(), "left out: %s", m.text(s))), " }")
	}
}

var swapped = map[token.Token]string{
	token.ADD: "mutantAdd", token.SUB: "mutantSub", token.MUL: "mutantMul", token.QUO: "mutantQuo",
	token.LSS: "mutantLess", token.LEQ: "mutantLessEqual", token.GTR: "mutantMore", token.GEQ: "mutantMoreEqual",
}

func (m *mutated) binary(v *ast.BinaryExpr) {
	t := m.info.Types[v]
	if t.Value != nil {
		return
	}
	switch v.Op {
	case token.LAND, token.LOR:
		other := map[token.Token]string{token.LAND: "||", token.LOR: "&&"}[v.Op]
		name := map[token.Token]string{token.LAND: "mutantAnd", token.LOR: "mutantOr"}[v.Op]
		id := m.add(v.OpPos, "%s for %s: %s", other, v.Op, m.text(v))
		m.wrap(v, fmt.Sprintf("%s(%d, bool(", name, id), ") })")
		m.put(v.OpPos, v.OpPos+2, "), func() bool { return bool(")
	case token.EQL, token.NEQ:
		id := m.add(v.OpPos, "negated: %s", m.text(v))
		m.wrap(v, "((", fmt.Sprintf(") != mutantIs(%d))", id))
	default:
		name, ok := swapped[v.Op]
		left := m.info.Types[v.X]
		b, basic := left.Type.Underlying().(*types.Basic)
		if !ok || !basic || b.Info()&(types.IsNumeric|types.IsString) == 0 || left.Value != nil &&
			m.info.Types[v.Y].Value != nil {
			return
		}
		comparison := v.Op == token.LSS || v.Op == token.LEQ || v.Op == token.GTR || v.Op == token.GEQ
		if !comparison && b.Info()&types.IsNumeric == 0 {
			return
		}
		if comparison {
			id, not := m.add(v.OpPos, "boundary: %s", m.text(v)), m.add(v.OpPos, "negated: %s", m.text(v))
			m.wrap(v, fmt.Sprintf("%s(%d, %d, ", name, id, not), ")")
		} else {
			m.wrap(v, fmt.Sprintf("%s(%d, ", name, m.add(v.OpPos, "reversed %s: %s", v.Op, m.text(v))), ")")
		}
		m.put(v.OpPos, v.OpPos+token.Pos(len(v.Op.String())), ",")
	}
}

// switches are compiled into the package.
const switches = `

import (
	"cmp"
	"os"
	"strconv"
	"sync"
)

var (
	mutantNow, _ = strconv.Atoi(os.Getenv("MUTANT"))
	mutantOnce   sync.Once
)

func mutantIs(id int) bool {
	if id != mutantNow {
		return false
	}
	mutantOnce.Do(func() { _ = os.WriteFile(os.Getenv("MUTANT_REACHED"), nil, 0o600) })
	return true
}

func mutantCondition(yes, no int, v bool) bool { return (v || mutantIs(yes)) && !mutantIs(no) }

func mutantAnd(id int, l bool, r func() bool) bool {
	if mutantIs(id) {
		return l || r()
	}
	return l && r()
}

func mutantOr(id int, l bool, r func() bool) bool {
	if mutantIs(id) {
		return l && r()
	}
	return l || r()
}

func mutantLess[T cmp.Ordered](at, not int, l, r T) bool {
	return (l < r || mutantIs(at) && l == r) != mutantIs(not)
}

func mutantLessEqual[T cmp.Ordered](at, not int, l, r T) bool {
	if mutantIs(at) {
		return l < r
	}
	return (l <= r) != mutantIs(not)
}
func mutantMore[T cmp.Ordered](at, not int, l, r T) bool      { return mutantLess(at, not, r, l) }
func mutantMoreEqual[T cmp.Ordered](at, not int, l, r T) bool { return mutantLessEqual(at, not, r, l) }

type mutantNumber interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr | ~float32 | ~float64
}

func mutantAdd[T mutantNumber](id int, l, r T) T {
	if mutantIs(id) {
		return l - r
	}
	return l + r
}

func mutantSub[T mutantNumber](id int, l, r T) T {
	if mutantIs(id) {
		return l + r
	}
	return l - r
}

func mutantMul[T mutantNumber](id int, l, r T) T {
	if mutantIs(id) {
		return l / r
	}
	return l * r
}

func mutantQuo[T mutantNumber](id int, l, r T) T {
	if mutantIs(id) {
		return l * r
	}
	return l / r
}
`
