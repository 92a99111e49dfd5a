package exec

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// statements are the SQL of mariadb's verbs. A verb's argument is a parameter or, where
// a name can't be one, replaces NAME after its pattern has excluded everything that
// could break out of the quotes. Long output ends with what matters most, since the end
// is kept.
//
// The text of other sessions' queries is left out: it holds tenants' data.
var statements = map[string]string{
	"databases":       "SELECT schema_name FROM information_schema.schemata ORDER BY schema_name",
	"processlist":     "SELECT id, user, host, COALESCE(db, ''), command, time, COALESCE(state, '') FROM information_schema.processlist ORDER BY time",
	"table-sizes":     "SELECT table_name, COALESCE(table_rows, 0), COALESCE(data_length + index_length, 0) AS bytes FROM information_schema.tables WHERE table_schema = ? ORDER BY bytes",
	"create-database": "CREATE DATABASE IF NOT EXISTS `NAME` CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
	"drop-database":   "DROP DATABASE IF EXISTS `NAME`",
}

// mariadb queries the local server.
func (h *workplace) mariadb(ctx context.Context, s wire.Service, k *policy.Command, out io.Writer) error {
	db, err := h.OpenMariaDB(s)
	if err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	defer func() { _ = db.Close() }()
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	if grantVerbs[k.Verb] != nil {
		return refusal(callGrant(ctx, db, k))
	}
	query := statements[k.Verb]
	var args []any
	if strings.Contains(query, "`NAME`") {
		query = strings.Replace(query, "NAME", k.In.Args[1], 1)
	} else {
		for _, a := range k.In.Args[1:] {
			args = append(args, a)
		}
	}
	return refusal(printTable(ctx, db, out, query, args...))
}

// refusal tells a server's refusal from a connection that failed.
func refusal(err error) error {
	var refused *mysql.MySQLError
	if err != nil && !errors.As(err, &refused) {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	return err
}

// printTable prints a query's result, one row per line.
func printTable(ctx context.Context, db *sql.DB, out io.Writer, query string, args ...any) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	values := make([]string, len(columns))
	into := make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for i, v := range values {
			values[i] = host.Printable(v)
		}
		fmt.Fprintln(out, strings.Join(values, "\t"))
	}
	return rows.Err()
}
