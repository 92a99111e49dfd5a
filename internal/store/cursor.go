package store

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/prego/prego"
)

// listCursor is where a page of a list, newest first, ended.
type listCursor struct {
	At time.Time `json:"t"`
	ID string    `json:"i"`
}

// readCursor reads what an earlier page answered; "" begins at the newest, at nil.
func readCursor(cursor string, valid func(id string) error) (at *time.Time, id string, err error) {
	if cursor == "" {
		return nil, "", nil
	}
	var c listCursor
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || json.Unmarshal(b, &c) != nil || valid(c.ID) != nil || c.At.IsZero() {
		return nil, "", prego.Invalid("cursor", "must be the next_cursor of an earlier answer")
	}
	return &c.At, c.ID, nil
}

// pageOf cuts rows, of which one more than limit was asked for, to a page, and makes
// the cursor of the next one, "" when there is none.
func pageOf[T any](rows []T, limit int, key func(T) (time.Time, string)) (page []T, next string, err error) {
	if len(rows) <= limit {
		return rows, "", nil
	}
	page = rows[:limit]
	at, id := key(page[limit-1])
	b, err := json.Marshal(listCursor{At: at, ID: id})
	if err != nil {
		return nil, "", fmt.Errorf("cursor: %w", err)
	}
	return page, base64.RawURLEncoding.EncodeToString(b), nil
}
