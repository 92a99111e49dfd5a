package objects

import (
	"net/http"
	"slices"

	"github.com/prego/prego/tenant"
)

// The classes of errors.
const (
	Gone        = tenant.StorageGone
	Refused     = tenant.StorageRefused
	Expired     = tenant.StorageExpired
	Throttled   = tenant.StorageThrottled
	Unreachable = tenant.StorageUnreachable
)

// ClassOf is an error's class; "" for nil and for errors of others.
func ClassOf(err error) tenant.StorageClass { return tenant.StorageClassOf(err) }

// classOf follows S3's table of error codes (API reference, Error responses). A HEAD has no body, so only its status
// counts.
func classOf(status int, code string) tenant.StorageClass {
	switch {
	case slices.Contains([]string{"RequestTimeTooSkewed", "ExpiredToken", "RequestExpired"}, code):
		return Expired
	case slices.Contains([]string{"SlowDown", "TooManyRequests", "ServiceUnavailable", "RequestLimitExceeded"}, code),
		status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return Throttled
	case slices.Contains([]string{"NoSuchKey", "NoSuchUpload", "NotFound"}, code):
		return Gone
	case code == "NoSuchBucket":
		return Refused
	case status == http.StatusNotFound:
		return Gone
	case status >= http.StatusInternalServerError, status == http.StatusRequestTimeout, status == 0,
		code == "RequestTimeout", code == "OperationAborted":
		return Unreachable
	}
	return Refused
}
