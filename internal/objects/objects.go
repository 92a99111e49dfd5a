// Package objects keeps backups in S3 storage. Only the control plane has credentials: hosts get URLs that are signed
// for one part or one object, and for a short time.
package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/prego/prego/tenant"
)

// Limits of S3 (Multipart upload limits in its user guide).
const (
	MaxParts = 10_000
	MinPart  = 5 << 20 // bytes, of all parts except the last
)

// Config configures the storage.
type Config struct {
	Endpoint  string // URL without a path
	Bucket    string
	Region    string
	AccessKey string
	SecretKey string
	PathStyle bool // the bucket is in the path, not in the host's name
	// MayDelete is asked before an object is deleted.
	MayDelete func(ctx context.Context, key string) error
	// Transport replaces the default transport in tests.
	Transport http.RoundTripper
}

// Store is one bucket.
type Store struct {
	core      minio.Core
	bucket    string
	host      string
	mayDelete func(ctx context.Context, key string) error
}

// callTime bounds one request; no object that passes through this process is large.
const callTime = time.Minute

// New makes no request.
func New(c Config) (*Store, error) {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") || strings.Trim(u.Path, "/") != "" ||
		u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("object storage: the endpoint %q is no URL like https://s3.example.com", c.Endpoint)
	}
	if c.MayDelete == nil {
		return nil, fmt.Errorf("object storage: a gate before deletions is required")
	}
	lookup := minio.BucketLookupDNS
	if c.PathStyle {
		lookup = minio.BucketLookupPath
	}
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds: credentials.NewStaticV4(c.AccessKey, c.SecretKey, ""), Secure: u.Scheme == "https", Region: c.Region,
		BucketLookup: lookup, Transport: c.Transport, MaxRetries: 1, // callers retry, for as long as they can wait
	})
	if err != nil {
		return nil, fmt.Errorf("object storage: %w", err)
	}
	return &Store{core: *core, bucket: c.Bucket, host: u.Host, mayDelete: c.MayDelete}, nil
}

// Where names the storage, without secrets.
func (s *Store) Where() string { return s.host + "/" + s.bucket }

// Check reports whether the bucket exists and the credentials are valid for it.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	ok, err := s.core.BucketExists(ctx, s.bucket)
	if err != nil {
		return failed("read the bucket", err)
	}
	if !ok {
		return &Error{
			Class: Refused, Code: "NoSuchBucket", What: "read the bucket", Message: "there is no bucket " + s.bucket,
		}
	}
	return nil
}

type (
	// Object is the storage's description of an object.
	Object = tenant.StoredObject
	// Part is the storage's description of a part of an upload.
	Part = tenant.ObjectPart
	// Upload is an unfinished upload.
	Upload = tenant.ObjectUpload
	// Error is a failed request to the storage.
	Error = tenant.StorageError
)

// Begin starts an upload in parts. The parts of a forgotten upload cost money until it is aborted: Uploads finds it.
func (s *Store) Begin(ctx context.Context, key string) (uploadID string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	opts := minio.PutObjectOptions{ContentType: "application/octet-stream"}
	id, err := s.core.NewMultipartUpload(ctx, s.bucket, key, opts)
	return id, failed("start an upload", err)
}

// PresignPart signs the upload of one part. It sends no request.
func (s *Store) PresignPart(
	ctx context.Context, key, uploadID string, number int, valid time.Duration,
) (string, error) {
	query := url.Values{"uploadId": {uploadID}, "partNumber": {strconv.Itoa(number)}}
	u, err := s.core.Presign(ctx, http.MethodPut, s.bucket, key, valid, query)
	if err != nil {
		return "", failed("sign the upload of a part", err)
	}
	return u.String(), nil
}

// PresignGet signs the download of an object. It sends no request.
func (s *Store) PresignGet(ctx context.Context, key string, valid time.Duration) (string, error) {
	u, err := s.core.Presign(ctx, http.MethodGet, s.bucket, key, valid, nil)
	if err != nil {
		return "", failed("sign a download", err)
	}
	return u.String(), nil
}

// Parts lists the parts of an upload that the storage has, in order; Gone if there is no such upload.
func (s *Store) Parts(ctx context.Context, key, uploadID string) ([]Part, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var out []Part
	for marker := 0; ; {
		page, err := s.core.ListObjectParts(ctx, s.bucket, key, uploadID, marker, 1000)
		if err != nil {
			return nil, failed("list the parts of an upload", err)
		}
		for _, p := range page.ObjectParts {
			out = append(out, Part{Number: p.PartNumber, Bytes: p.Size, ETag: tag(p.ETag)})
		}
		if !page.IsTruncated || page.NextPartNumberMarker <= marker {
			return out, nil
		}
		marker = page.NextPartNumberMarker
	}
}

// Complete makes an object of an upload's parts. Repeated after a lost answer, it succeeds again or returns Gone,
// depending on the storage: Head reports whether the object exists.
func (s *Store) Complete(ctx context.Context, key, uploadID string, parts []Part) (etag string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*callTime) // the storage puts the parts together
	defer cancel()
	all := make([]minio.CompletePart, 0, len(parts))
	for _, p := range parts {
		all = append(all, minio.CompletePart{PartNumber: p.Number, ETag: p.ETag})
	}
	got, err := s.core.CompleteMultipartUpload(ctx, s.bucket, key, uploadID, all, minio.PutObjectOptions{})
	return tag(got.ETag), failed("complete an upload", err)
}

// Abort gives an upload up; a missing upload is success.
func (s *Store) Abort(ctx context.Context, key, uploadID string) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := failed("abort an upload", s.core.AbortMultipartUpload(ctx, s.bucket, key, uploadID))
	if ClassOf(err) == Gone {
		return nil
	}
	return err
}

// Uploads lists unfinished uploads of keys that begin with prefix.
func (s *Store) Uploads(ctx context.Context, prefix string) ([]Upload, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var out []Upload
	for key, id := "", ""; ; {
		page, err := s.core.ListMultipartUploads(ctx, s.bucket, prefix, key, id, "", 1000)
		if err != nil {
			return nil, failed("list uploads", err)
		}
		for _, u := range page.Uploads {
			out = append(out, Upload{Key: u.Key, ID: u.UploadID, Initiated: u.Initiated})
		}
		if !page.IsTruncated || (page.NextKeyMarker == key && page.NextUploadIDMarker == id) {
			return out, nil
		}
		key, id = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

// Put writes a small object as a whole.
func (s *Store) Put(ctx context.Context, key string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	opts := minio.PutObjectOptions{ContentType: "application/json"}
	_, err := s.core.PutObject(ctx, s.bucket, key, bytes.NewReader(body), int64(len(body)), "", "", opts)
	return failed("write an object", err)
}

// Get reads an object of at most limit bytes.
func (s *Store) Get(ctx context.Context, key string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	r, _, _, err := s.core.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, failed("read an object", err)
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, failed("read an object", err)
	}
	if int64(len(b)) > limit {
		return nil, &Error{
			Class: Refused, Code: "TooLarge", What: "read an object",
			Message: fmt.Sprintf("%s is larger than %d bytes", key, limit),
		}
	}
	return b, nil
}

// Head describes an object; ok is false if there is none.
func (s *Store) Head(ctx context.Context, key string) (o Object, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	info, err := s.core.StatObject(ctx, s.bucket, key, minio.StatObjectOptions{})
	if err = failed("read an object's description", err); ClassOf(err) == Gone {
		return o, false, nil
	}
	return Object{Key: key, Bytes: info.Size, ETag: tag(info.ETag), Modified: info.LastModified}, err == nil, err
}

// List lists at most n objects whose keys begin with prefix and come after a key, in order.
func (s *Store) List(ctx context.Context, prefix, after string, n int) ([]Object, error) {
	page, err := s.core.ListObjectsV2(s.bucket, prefix, after, "", "", n)
	if err != nil {
		return nil, failed("list objects", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := make([]Object, 0, len(page.Contents))
	for _, c := range page.Contents {
		out = append(out, Object{Key: c.Key, Bytes: c.Size, ETag: tag(c.ETag), Modified: c.LastModified})
	}
	return out, nil
}

// Delete deletes an object and checks that it is gone: some storages confirm a delete that they only accepted.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.mayDelete(ctx, key); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := failed("delete an object", s.core.RemoveObject(asking, s.bucket, key, minio.RemoveObjectOptions{}))
	if err != nil && ClassOf(err) != Gone {
		return err
	}
	_, there, err := s.Head(ctx, key)
	if err == nil && there {
		return &Error{
			Class: Unreachable, Code: "StillThere", What: "delete an object", Message: key + " still exists",
		}
	}
	return err
}

// tag is an ETag without its quotes.
func tag(s string) string { return strings.Trim(s, `"`) }

// failed classifies an error of the client; nil stays nil.
func failed(what string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	if answer, ok := errors.AsType[minio.ErrorResponse](err); ok {
		return &Error{Class: classOf(answer.StatusCode, answer.Code), Code: answer.Code, What: what, Message: answer.Message}
	}
	return &Error{Class: Unreachable, Code: "unreachable", What: what, Message: unsigned(err), Cause: err}
}

// unsigned is an error's text without the prefix of http.Client, whose URL may hold a signature.
func unsigned(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if os.IsTimeout(err) {
		return "no answer in time"
	}
	return err.Error()
}
