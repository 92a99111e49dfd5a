package api

import (
	"encoding/csv"
	"mime"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

const csvType = "text/csv"

// wantsCSV reports whether a request names CSV before JSON, or alone.
func wantsCSV(c echo.Context) bool {
	for accepted := range strings.SplitSeq(strings.Join(c.Request().Header.Values("Accept"), ","), ",") {
		switch kind, _, _ := mime.ParseMediaType(strings.TrimSpace(accepted)); kind {
		case csvType:
			return true
		case "application/json", "*/*":
			return false
		}
	}
	return false
}

// writeCSV answers with rows as CSV (RFC 4180); the first row holds the column names.
func writeCSV(c echo.Context, name string, rows [][]string) error {
	var b strings.Builder
	w := csv.NewWriter(&b)
	w.UseCRLF = true
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = CSVCell(cell)
		}
		if err := w.Write(cells); err != nil {
			return err
		}
	}
	w.Flush()
	c.Response().Header().Set("Content-Disposition", `attachment; filename="`+name+`.csv"`)
	return c.Blob(http.StatusOK, csvType+"; charset=utf-8; header=present", []byte(b.String()))
}

// CSVCell keeps a spreadsheet from taking a text for a formula.
func CSVCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}
