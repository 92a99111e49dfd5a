package tenant

import (
	"errors"
	"time"
)

// StoredObject is what object storage knows of an object.
type StoredObject struct {
	Key      string
	Bytes    int64
	ETag     string
	Modified time.Time
}

// ObjectPart is a part of an upload.
type ObjectPart struct {
	Number int    `json:"number"` // from 1
	Bytes  int64  `json:"bytes"`
	ETag   string `json:"etag"`
}

// ObjectUpload is an upload in parts that was neither completed nor aborted.
type ObjectUpload struct {
	Key       string
	ID        string
	Initiated time.Time
}

// StorageClass classifies an error of object storage.
type StorageClass string

// The classes of errors.
const (
	StorageGone        StorageClass = "gone"        // there is no such object or upload
	StorageRefused     StorageClass = "refused"     // repeating the same request does not help
	StorageExpired     StorageClass = "expired"     // the signature's time is over, or has not come: sign again, and look at the clocks
	StorageThrottled   StorageClass = "throttled"   // ask more slowly
	StorageUnreachable StorageClass = "unreachable" // no answer, or an error of the storage's own: ask again
)

// StorageError is an answer of object storage other than success, or none.
type StorageError struct {
	Class   StorageClass
	Code    string // S3's, such as NoSuchUpload
	What    string // the attempted operation
	Message string
	Cause   error
}

func (e *StorageError) Error() string {
	return "object storage: " + e.What + ": " + e.Code + ": " + e.Message
}

func (e *StorageError) Unwrap() error { return e.Cause }

// StorageClassOf is an error's class; "" for nil and for errors of others.
func StorageClassOf(err error) StorageClass {
	if e, ok := errors.AsType[*StorageError](err); ok {
		return e.Class
	}
	return ""
}
