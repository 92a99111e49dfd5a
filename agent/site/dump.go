package site

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
)

// dumpedRows counts the rows of each table in a dump as MariaDB's program writes it (mariadb-dump: one statement
// after the other, INSERT INTO `t` VALUES (…),(…);). Tables without rows are there with 0.
func dumpedRows(compressed io.Reader) (map[string]int64, error) {
	plain, err := gzip.NewReader(compressed)
	if err != nil {
		return nil, err
	}
	d := dumpReader{in: bufio.NewReaderSize(plain, 1<<20), rows: make(map[string]int64)}
	for {
		switch err := d.statement(); {
		case errors.Is(err, io.EOF):
			return d.rows, nil
		case err != nil:
			return nil, err
		}
	}
}

// dumpReader reads a dump statement by statement. Of a statement only its first words, its
// table and its rows are looked at.
type dumpReader struct {
	in   *bufio.Reader
	rows map[string]int64
}

// statement reads the next statement, to its semicolon.
func (d *dumpReader) statement() error {
	var words []string // at the top level, until the rows begin
	var table string
	var word []byte
	depth, values, n := 0, false, int64(0)
	endWord := func() {
		if len(word) > 0 && len(words) < 16 {
			words = append(words, strings.ToUpper(string(word)))
		}
		values = values || strings.EqualFold(string(word), "VALUES") || strings.EqualFold(string(word), "VALUE")
		word = word[:0]
	}
	for {
		c, err := d.in.ReadByte()
		if errors.Is(err, io.EOF) && depth == 0 && len(words) == 0 && len(word) == 0 {
			return io.EOF
		}
		if err != nil {
			return cut("a statement", err)
		}
		letter := depth == 0 && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_')
		if letter {
			word = append(word, c)
			continue
		}
		endWord()
		switch c {
		case '\'', '"', '`':
			text, err := d.quoted(c)
			if err != nil {
				return err
			}
			if c == '`' && table == "" && depth == 0 {
				table = text
			}
		case '(':
			if depth == 0 && values {
				n++
			}
			depth++
		case ')':
			depth--
		case '-', '#', '/':
			if depth == 0 {
				if err := d.comment(c); err != nil {
					return err
				}
			}
		case ';':
			if depth != 0 {
				continue
			}
			switch first := strings.Join(words[:min(2, len(words))], " "); {
			case first == "CREATE TABLE":
				d.rows[table] += 0
			case strings.HasPrefix(first, "INSERT"), strings.HasPrefix(first, "REPLACE"):
				d.rows[table] += n
			}
			return nil
		}
	}
}

// quoted reads to the end of a quoted text. A doubled quote ends it and begins another, which
// counts for nothing here.
func (d *dumpReader) quoted(quote byte) (string, error) {
	var text []byte
	for {
		c, err := d.in.ReadByte()
		if err != nil {
			return "", cut("a quoted text", err)
		}
		if c == quote {
			return string(text), nil
		}
		if c == '\\' && quote != '`' {
			if _, err := d.in.ReadByte(); err != nil {
				return "", cut("a quoted text", err)
			}
			continue
		}
		if quote == '`' && len(text) < 256 {
			text = append(text, c)
		}
	}
}

// comment passes over a comment that begins with c, if one does: "-- …", "# …", "/* … */".
func (d *dumpReader) comment(c byte) error {
	next, err := d.in.Peek(1)
	if err != nil {
		return cut("a comment", err)
	}
	switch {
	case c == '#', c == '-' && next[0] == '-':
		_, err := d.in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	case c == '/' && next[0] == '*':
		for last := byte(0); ; {
			b, err := d.in.ReadByte()
			if err != nil {
				return cut("a comment", err)
			}
			if last == '*' && b == '/' {
				return nil
			}
			last = b
		}
	}
	return nil
}

// cut is the error of a dump that ends in the middle of something.
func cut(in string, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the dump ends in %s: %w", in, err)
}
