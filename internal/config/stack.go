package config

import (
	"bytes"
	_ "embed" // the default stack
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/prego/prego/server"
)

//go:embed stack.json
var defaultStack []byte

// Stack returns the configured stack, or the default one. A file replaces the whole
// default.
func (w Worker) Stack() (server.Stack, error) {
	if w.StackFile == "" {
		return parseStack(defaultStack)
	}
	b, err := os.ReadFile(w.StackFile)
	if err != nil {
		return nil, fmt.Errorf("PREGO_STACK_FILE: %w", err)
	}
	s, err := parseStack(b)
	if err != nil {
		return nil, fmt.Errorf("PREGO_STACK_FILE %s: %w", w.StackFile, err)
	}
	return s, nil
}

func parseStack(b []byte) (server.Stack, error) {
	var s server.Stack
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the stack")
	}
	return s, s.Validate()
}
