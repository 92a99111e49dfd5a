package objects

import (
	"errors"
	"net/http"
	"slices"
)

// Class says what may be done about an error of the storage.
type Class string

// The classes of errors.
const (
	Gone        Class = "gone"        // there is no such object or upload
	Refused     Class = "refused"     // repeating the same request does not help
	Expired     Class = "expired"     // the signature's time is over, or has not come: sign again, and look at the clocks
	Throttled   Class = "throttled"   // ask more slowly
	Unreachable Class = "unreachable" // no answer, or an error of the storage's own: ask again
)

// Error is an answer of the storage other than success, or none.
type Error struct {
	Class   Class
	Code    string // S3's, such as NoSuchUpload
	What    string // what was tried
	Message string
	cause   error
}

func (e *Error) Error() string {
	return "object storage: " + e.What + ": " + e.Code + ": " + e.Message
}

func (e *Error) Unwrap() error { return e.cause }

// ClassOf is an error's class; "" for nil and for errors of others.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return ""
}

// classOf follows S3's table of error codes (API reference, Error responses). A HEAD has no
// body, so that its status alone speaks.
func classOf(status int, code string) Class {
	switch {
	case slices.Contains([]string{"RequestTimeTooSkewed", "ExpiredToken", "RequestExpired"}, code):
		return Expired
	case slices.Contains([]string{"SlowDown", "TooManyRequests", "ServiceUnavailable", "RequestLimitExceeded"}, code), status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return Throttled
	case slices.Contains([]string{"NoSuchKey", "NoSuchUpload", "NotFound"}, code):
		return Gone
	case code == "NoSuchBucket":
		return Refused
	case status == http.StatusNotFound:
		return Gone
	case status >= http.StatusInternalServerError, status == http.StatusRequestTimeout, code == "RequestTimeout", code == "OperationAborted":
		return Unreachable
	case status == 0:
		return Unreachable
	}
	return Refused
}
