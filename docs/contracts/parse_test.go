package contracts

import (
	"cmp"
	"encoding/json"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// constant is one with its type's name, "" where it has none, and its value as it is written.
type constant struct{ name, kind, source string }

// program is what the product's own code declares, wherever it does.
type program struct {
	constants []constant
	structs   map[string][][]string // JSON names by the name of the type; several types may have one name
	literals  map[string]bool
	functions map[string]bool // and methods
}

// source is the value of a constant as it is written. One constant has the name.
func (p program) source(t *testing.T, name string) string {
	t.Helper()
	var found []string
	for _, c := range p.constants {
		if c.name == name {
			found = append(found, c.source)
		}
	}
	require.Len(t, found, 1, "constants with the name %s", name)
	return found[0]
}

// values are the texts of the constants that have a type, or whose names begin so.
func (p program) values(kind string) (out []string) {
	for _, c := range p.constants {
		if text, err := strconv.Unquote(c.source); err == nil && (c.kind == kind || strings.HasPrefix(c.name, kind)) {
			out = append(out, text)
		}
	}
	return out
}

// root is the directory of the module that this test is in.
func root() string {
	for dir := "."; ; dir = filepath.Join("..", dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
}

// overlay is what tools/frozen builds with instead of files: they are read as they were compiled.
func overlay() (files struct{ Replace map[string]string }, err error) {
	name := os.Getenv("PREGO_TEST_OVERLAY")
	if name == "" {
		return files, nil
	}
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &files)
	}
	return files, err
}

var parseOnce = sync.OnceValues(func() (program, error) {
	p := program{structs: map[string][][]string{}, literals: map[string]bool{}, functions: map[string]bool{}}
	instead, err := overlay()
	if err != nil {
		return p, err
	}
	err = filepath.WalkDir(root(), func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir():
			if name == "testdata" || name == "bin" || len(name) > 2 && name[0] == '.' {
				return filepath.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".gen.go"):
			return nil
		}
		if path, err = filepath.Abs(path); err != nil {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, cmp.Or(instead.Replace[path], path), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool { p.add(fset, n); return true })
		return nil
	})
	return p, err
})

func (p *program) add(fset *token.FileSet, n ast.Node) {
	switch n := n.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
			p.literals[text] = true
		}
	case *ast.FuncDecl:
		p.functions[n.Name.Name] = true
	case *ast.GenDecl:
		if n.Tok != token.CONST {
			return
		}
		for _, s := range n.Specs {
			s := s.(*ast.ValueSpec)
			kind := ""
			if of, ok := s.Type.(*ast.Ident); ok {
				kind = of.Name
			} else if of, ok := s.Type.(*ast.SelectorExpr); ok {
				kind = of.Sel.Name
			}
			for i, v := range s.Values {
				var text strings.Builder
				_ = format.Node(&text, fset, v)
				p.constants = append(p.constants, constant{s.Names[i].Name, kind, text.String()})
			}
		}
	case *ast.TypeSpec:
		if s, ok := n.Type.(*ast.StructType); ok {
			names := []string{}
			for _, f := range s.Fields.List {
				if f.Tag != nil {
					tag, _ := strconv.Unquote(f.Tag.Value)
					name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
					names = append(names, name)
				}
			}
			p.structs[n.Name.Name] = append(p.structs[n.Name.Name], names)
		}
	}
}

func parse(t *testing.T) program {
	t.Helper()
	p, err := parseOnce()
	require.NoError(t, err)
	return p
}
