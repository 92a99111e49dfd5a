package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops"
)

var operationTable = Table[api.Operation]{
	ID: "id", Columns: "id: operation, status, reason, message, target", More: "kind",
	Computed: map[string]func(api.Operation) any{
		"target": func(o api.Operation) any { return o.Target.Kind + " " + o.Target.Id },
	},
}

func operationCommand(c *CLI) *cobra.Command {
	return c.group("operation", "Inspect what accepted requests started", Show[api.Operation]{
		Use: "show OPERATION…", Short: "Show operations: whether they still run, and how they ended", Path: "/v1/operations/{operation}", Table: operationTable,
		Example: "  prego operation show tenant-provision/t-k3jq5x2m7abc --watch",
		Watch: Watch[api.Operation]{
			Path: "/v1/operations/{operation}", Again: "prego operation show {operation} --watch",
			Lines:   func(api.Operation) []line { return nil }, // it has no history
			Doing:   func(o api.Operation) string { return o.Id + " is " + string(o.Status) + reasons(o.Reason, o.Message) },
			Rests:   func(o api.Operation) bool { return ops.OperationStatus(o.Status) != ops.OperationRunning },
			Outcome: func(_ *call, o api.Operation) error { return operationFailure(o) },
			Done:    func(_ *call, o api.Operation) string { return fmt.Sprintf("operation %s %s", o.Id, o.Status) },
		},
	})
}

// operationFailure is nil for an operation that succeeded.
func operationFailure(o api.Operation) error {
	if ops.OperationStatus(o.Status) == ops.OperationSucceeded {
		return nil
	}
	return errors.New("operation " + o.Id + " " + string(o.Status) + reasons(o.Reason, o.Message))
}
