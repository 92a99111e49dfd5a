// Package migrations embeds the schema: forward-only SQL files that goose
// applies in order.
package migrations

import "embed"

// FS holds the SQL files.
//
//go:embed *.sql
var FS embed.FS
