package store

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// constants are the string constants of this package, those put together from
// others included.
func constants(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	exprs := make(map[string]ast.Expr)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if decl, ok := n.(*ast.GenDecl); ok && decl.Tok == token.CONST {
				for _, s := range decl.Specs {
					spec := s.(*ast.ValueSpec)
					for i, v := range spec.Values {
						exprs[spec.Names[i].Name] = v
					}
				}
			}
			return true
		})
	}
	var text func(ast.Expr) (string, bool)
	text = func(e ast.Expr) (string, bool) {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, err := strconv.Unquote(e.Value)
			return s, err == nil && e.Kind == token.STRING
		case *ast.Ident:
			return text(exprs[e.Name])
		case *ast.BinaryExpr:
			x, okX := text(e.X)
			y, okY := text(e.Y)
			return x + y, okX && okY && e.Op == token.ADD
		}
		return "", false
	}
	out := make(map[string]string)
	for name, e := range exprs {
		s, ok := text(e)
		if ok {
			out[name] = s
		}
		require.True(t, ok || !strings.HasPrefix(name, "sql"), "%s is not a constant text", name)
	}
	return out
}

var statement = regexp.MustCompile(`^\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b`)

// TestEveryStatementFitsTheSchema lets Postgres prepare every statement of the
// package, so that none waits for a rare path to turn out wrong.
func TestEveryStatementFitsTheSchema(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.Pool(t).Acquire(context.Background())
	require.NoError(t, err)
	defer conn.Release()
	prepared := 0
	for name, sql := range constants(t) {
		if !statement.MatchString(sql) {
			continue
		}
		_, err = conn.Conn().Prepare(context.Background(), name, sql)
		require.NoError(t, err, name)
		prepared++
	}
	require.Greater(t, prepared, 50)
}
