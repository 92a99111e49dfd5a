package cli

import (
	"errors"
	"fmt"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops"
)

var watchOperation = Watch[api.Operation]{
	Path: "/v1/operations/{operation}", Again: "prego operation show {operation} --watch",
	Lines:   func(api.Operation) []line { return nil }, // it has no history
	Doing:   func(o api.Operation) string { return o.Id + " is " + string(o.Status) + why(o.Reason, o.Message) },
	Rests:   func(o api.Operation) bool { return ops.OperationStatus(o.Status) != ops.OperationRunning },
	Outcome: func(_ *call, o api.Operation) error { return operationFailure(o) },
	Done:    func(_ *call, o api.Operation) string { return fmt.Sprintf("operation %s %s", o.Id, o.Status) },
}

// operationFailure is nil for an operation that succeeded.
func operationFailure(o api.Operation) error {
	if ops.OperationStatus(o.Status) == ops.OperationSucceeded {
		return nil
	}
	return errors.New("operation " + o.Id + " " + string(o.Status) + why(o.Reason, o.Message))
}
