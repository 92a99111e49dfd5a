package cli

import (
	"errors"
	"fmt"
)

// The program's exit statuses. A command that exec runs on a host ends with its own.
const (
	ExitUsage   = 1 // the arguments are wrong, the API does not answer, or it was interrupted
	ExitRefused = 2 // the API refused the request
	ExitOutcome = 3 // what was waited for ended otherwise than wanted
)

// Exit is an error that says with which status the program ends. Err may be nil: then
// there is nothing to print.
type Exit struct {
	Code int
	Err  error
}

func (e *Exit) Error() string { return fmt.Sprint(e.Err) }

func (e *Exit) Unwrap() error { return e.Err }

// exitCode is the status that an error ends the program with.
func exitCode(err error) int {
	var exit *Exit
	if errors.As(err, &exit) {
		return exit.Code
	}
	return ExitUsage
}

func usagef(format string, args ...any) error {
	return &Exit{Code: ExitUsage, Err: fmt.Errorf(format, args...)}
}
