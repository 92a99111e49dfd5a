package ops

import "time"

// ConsoleSession is a caller who is logged in to the console.
type ConsoleSession struct {
	Subject   string
	Operator  bool // may change things; others may only read
	Address   string
	ExpiresAt time.Time
}
