package cli

import (
	"errors"
	"fmt"
)

// The program's exit statuses. exec ends with the status of its command.
const (
	ExitUsage   = 1 // the arguments are wrong, the API does not answer, or it was interrupted
	ExitRefused = 2 // the API refused the request
	ExitOutcome = 3 // the awaited operation did not end as asked
)

// Exit is an error with an exit status. If Err is nil, nothing is printed.
type Exit struct {
	Code int
	Err  error
}

func (e *Exit) Error() string { return fmt.Sprint(e.Err) }

func (e *Exit) Unwrap() error { return e.Err }

// exitCode is the exit status for an error.
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
