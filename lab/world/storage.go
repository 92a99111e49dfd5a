package world

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/md5" //nolint:gosec // what S3 calls an ETag, and its check of what it received
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Where the play's object storage is, and who may use it.
const (
	StorageEndpoint  = "https://s3.world"
	StorageBucket    = "backups"
	StorageRegion    = "world"
	StorageAccessKey = "world-access"
	StorageSecretKey = "world-secret"
	// StoragePart is how large the parts of an upload are, in bytes: so small that the small archives of a play
	// have several. S3's least size of a part (5 MiB) is not asked for.
	StoragePart = 600
)

// storage implements the S3 that internal/objects and the agents use, of one bucket, in memory. Statuses, codes and
// documents follow S3's API reference.
type storage struct {
	w       *World
	mu      sync.Mutex
	objects map[string]*object
	uploads map[string]*upload // by id
	begun   int
}

type object struct {
	body  []byte
	etag  string
	since time.Time
	parts int // of its upload; 0 for a single request
	known string
}

// sum is the SHA-256 of an object, in hex.
func (o *object) sum() string {
	if o.known == "" {
		sum := sha256.Sum256(o.body)
		o.known = hex.EncodeToString(sum[:])
	}
	return o.known
}

type upload struct {
	key   string
	parts map[int]*object
	since time.Time
}

func newStorage(w *World) *storage {
	return &storage{w: w, objects: map[string]*object{}, uploads: map[string]*upload{}}
}

// Storage is how a process reaches object storage.
func (l *Life) Storage() http.RoundTripper {
	return caller3{
		s: l.w.storage, step: func(ctx context.Context, point string) error { return l.step(ctx, point) },
		who: l.actor,
	}
}

// storage is how a host reaches it: with the URLs that it was given.
func (hs *hosts) storage(h *host) http.RoundTripper {
	actor := "host " + h.guest.Name
	return caller3{
		s: hs.w.storage, who: func(context.Context) string { return actor },
		step: func(ctx context.Context, point string) error {
			hs.w.Schedule.yield(nil, actor, point)
			return ctx.Err()
		},
	}
}

// caller3 is a caller of S3.
type caller3 struct {
	s    *storage
	step func(ctx context.Context, point string) error
	who  func(ctx context.Context) string
}

// about3 is a call as the timeline shows it.
func about3(r *http.Request) string {
	q, out := r.URL.Query(), "s3 "+r.Method+" "+strings.TrimPrefix(r.URL.Path, "/"+StorageBucket)
	for _, k := range []string{"uploads", "uploadId", "partNumber", "list-type"} {
		if q.Has(k) {
			out += " " + k + q.Get(k)
		}
	}
	return out
}

func (c caller3) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, what := r.Context(), about3(r)
	if err := c.step(ctx, what); err != nil {
		return nil, err
	}
	body, err := sent(r)
	if err != nil {
		return nil, err
	}
	f, where := c.s.w.Faults, c.who(ctx)+" "+what
	if f.hit("s3_refused", where) {
		return nil, errors.New("connection refused")
	}
	rec := httptest.NewRecorder()
	if f.hit("s3_500", where) {
		refuse3(rec, http.StatusInternalServerError, "InternalError",
			"We encountered an internal error. Please try again.")
	} else {
		c.s.serve(rec, r, body)
	}
	if f.hit("s3_lost", where) {
		return nil, errLost
	}
	if err := c.step(ctx, "s3 answers "+what[3:]); err != nil {
		return nil, err
	}
	resp := rec.Result()
	resp.Request = r
	if r.Method == http.MethodHead {
		resp.Body = http.NoBody
	}
	return resp, nil
}

func refuse3(w http.ResponseWriter, status int, code, message string) {
	answer3(w, status, struct {
		XMLName       xml.Name `xml:"Error"`
		Code, Message string
	}{Code: code, Message: message})
}

func answer3(w http.ResponseWriter, status int, v any) {
	text, err := xml.Marshal(v)
	if err != nil {
		panic("world: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

func tag3(sum []byte) string { return `"` + hex.EncodeToString(sum) + `"` }

// serve answers one request.
func (s *storage) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	q := r.URL.Query()
	if code, message := authorized(r, time.Now()); code != "" {
		refuse3(w, http.StatusForbidden, code, message)
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != StorageBucket {
		refuse3(w, http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist.")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case key == "" && r.Method == http.MethodHead:
		w.WriteHeader(http.StatusOK)
	case key == "" && q.Has("uploads"):
		s.listUploads(w, q)
	case key == "" && r.Method == http.MethodGet:
		s.list(w, q)
	case q.Has("uploads") && r.Method == http.MethodPost:
		s.begun++
		id := fmt.Sprintf("u%d", s.begun)
		s.uploads[id] = &upload{key: key, parts: map[int]*object{}, since: time.Now()}
		answer3(w, http.StatusOK, struct {
			XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
			Bucket, Key, UploadId string
		}{Bucket: bucket, Key: key, UploadId: id})
	case q.Has("uploadId"):
		s.multipart(w, r, key, q, body)
	case r.Method == http.MethodPut:
		if body = unchunked(r, body); body == nil {
			refuse3(w, http.StatusBadRequest, "IncompleteBody", "The request body could not be read.")
			return
		}
		sum := md5.Sum(body) //nolint:gosec // see the import
		s.objects[key] = &object{body: body, etag: tag3(sum[:]), since: time.Now()}
		s.w.changed.Store(true)
		w.Header().Set("ETag", s.objects[key].etag)
		w.WriteHeader(http.StatusOK)
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		s.w.changed.Store(true)
		w.WriteHeader(http.StatusNoContent)
	default:
		s.read(w, r, key)
	}
}

func (s *storage) read(w http.ResponseWriter, r *http.Request, key string) {
	o := s.objects[key]
	if o == nil {
		refuse3(w, http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
		return
	}
	w.Header().Set("ETag", o.etag)
	w.Header().Set("Last-Modified", o.since.UTC().Format(http.TimeFormat))
	body, status := o.body, http.StatusOK
	var from, to int
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 {
		if from >= len(body) {
			refuse3(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange",
				"The requested range is not satisfiable")
			return
		}
		body, status = body[from:min(to+1, len(body))], http.StatusPartialContent
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}

// multipart serves one upload in parts: a part, their list, the completion, the end.
func (s *storage) multipart(w http.ResponseWriter, r *http.Request, key string, q url.Values, body []byte) {
	u := s.uploads[q.Get("uploadId")]
	if u == nil || u.key != key {
		refuse3(w, http.StatusNotFound, "NoSuchUpload",
			"The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed.")
		return
	}
	switch r.Method {
	case http.MethodPut:
		sum := md5.Sum(body) //nolint:gosec // see the import
		if check := r.Header.Get("Content-MD5"); check != "" && check != base64.StdEncoding.EncodeToString(sum[:]) {
			refuse3(w, http.StatusBadRequest, "BadDigest",
				"The Content-MD5 you specified did not match what we received.")
			return
		}
		n, err := strconv.Atoi(q.Get("partNumber"))
		if err != nil || n < 1 || n > 10_000 {
			refuse3(w, http.StatusBadRequest, "InvalidArgument",
				"Part number must be an integer between 1 and 10000, inclusive")
			return
		}
		u.parts[n] = &object{body: body, etag: tag3(sum[:]), since: time.Now()}
		w.Header().Set("ETag", u.parts[n].etag)
		w.WriteHeader(http.StatusOK)
	case http.MethodGet:
		type part struct {
			PartNumber, Size   int
			ETag, LastModified string
		}
		out := struct {
			XMLName               xml.Name `xml:"ListPartsResult"`
			Bucket, Key, UploadId string
			IsTruncated           bool
			Part                  []part
		}{Bucket: StorageBucket, Key: key, UploadId: q.Get("uploadId")}
		for _, n := range slices.Sorted(maps.Keys(u.parts)) {
			p := u.parts[n]
			out.Part = append(out.Part,
				part{PartNumber: n, Size: len(p.body), ETag: p.etag, LastModified: p.since.UTC().Format(time.RFC3339)})
		}
		answer3(w, http.StatusOK, out)
	case http.MethodPost:
		s.complete(w, key, q.Get("uploadId"), u, body)
	case http.MethodDelete:
		delete(s.uploads, q.Get("uploadId"))
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *storage) complete(w http.ResponseWriter, key, id string, u *upload, body []byte) {
	var asked struct {
		Part []struct {
			PartNumber int
			ETag       string
		}
	}
	if xml.Unmarshal(body, &asked) != nil || len(asked.Part) == 0 { //nolint:gosec // the play's own client sent it
		refuse3(w, http.StatusBadRequest, "MalformedXML",
			"The XML you provided was not well-formed or did not validate against our published schema.")
		return
	}
	var whole, sums []byte
	last := 0
	for _, a := range asked.Part {
		p := u.parts[a.PartNumber]
		switch {
		case p == nil || strings.Trim(p.etag, `"`) != strings.Trim(a.ETag, `"`):
			refuse3(w, http.StatusBadRequest, "InvalidPart",
				"One or more of the specified parts could not be found. The part might not have been uploaded, or the specified entity tag might not have matched the part's entity tag.")
			return
		case a.PartNumber <= last:
			refuse3(w, http.StatusBadRequest, "InvalidPartOrder",
				"The list of parts was not in ascending order. Parts list must be specified in order by part number.")
			return
		}
		last = a.PartNumber
		sum, _ := hex.DecodeString(strings.Trim(p.etag, `"`))
		whole, sums = append(whole, p.body...), append(sums, sum...)
	}
	sum := md5.Sum(sums) //nolint:gosec // see the import
	o := &object{
		body: whole, etag: fmt.Sprintf(`"%x-%d"`, sum, len(asked.Part)), since: time.Now(),
		parts: len(asked.Part),
	}
	s.objects[key] = o
	delete(s.uploads, id)
	s.w.changed.Store(true)
	answer3(w, http.StatusOK, struct {
		XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key, ETag string
	}{Bucket: StorageBucket, Key: key, ETag: o.etag})
}

func (s *storage) list(w http.ResponseWriter, q url.Values) {
	type content struct {
		Key, LastModified, ETag string
		Size                    int
	}
	out := struct {
		XMLName     xml.Name `xml:"ListBucketResult"`
		Name        string
		IsTruncated bool
		KeyCount    int
		Contents    []content
	}{Name: StorageBucket}
	most, err := strconv.Atoi(cmp.Or(q.Get("max-keys"), "1000"))
	if err != nil {
		most = 1000
	}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if !strings.HasPrefix(key, q.Get("prefix")) || key <= q.Get("start-after") {
			continue
		}
		if out.KeyCount == most {
			out.IsTruncated = true
			break
		}
		o := s.objects[key]
		out.KeyCount++
		out.Contents = append(out.Contents, content{
			Key: key, LastModified: o.since.UTC().Format(time.RFC3339),
			ETag: o.etag, Size: len(o.body),
		})
	}
	answer3(w, http.StatusOK, out)
}

func (s *storage) listUploads(w http.ResponseWriter, q url.Values) {
	type content struct{ Key, UploadId, Initiated string }
	out := struct {
		XMLName     xml.Name `xml:"ListMultipartUploadsResult"`
		Bucket      string
		IsTruncated bool
		Upload      []content
	}{Bucket: StorageBucket}
	for _, id := range slices.Sorted(maps.Keys(s.uploads)) {
		if u := s.uploads[id]; strings.HasPrefix(u.key, q.Get("prefix")) {
			out.Upload = append(out.Upload,
				content{Key: u.key, UploadId: id, Initiated: u.since.UTC().Format(time.RFC3339)})
		}
	}
	answer3(w, http.StatusOK, out)
}

// unchunked is a body without the frames that a client puts around it when it signs as it sends (Signature
// Calculations: Transferring Payload in Multiple Chunks); nil if it can't be read.
func unchunked(r *http.Request, body []byte) []byte {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return bytes.Clone(body)
	}
	out := []byte{}
	for {
		head, rest, ok := bytes.Cut(body, []byte("\r\n"))
		size, _, _ := strings.Cut(string(head), ";")
		n, err := strconv.ParseInt(size, 16, 32)
		switch {
		case !ok || err != nil || int(n) > len(rest):
			return nil
		case n == 0:
			return out
		}
		out, body = append(out, rest[:n]...), bytes.TrimPrefix(rest[n:], []byte("\r\n"))
	}
}

// authorized returns why a request is refused. Signed URLs are checked completely; of a header only the signer: that is
// the control plane, whose real client is tested in internal/objects.
func authorized(r *http.Request, now time.Time) (code, message string) {
	q := r.URL.Query()
	if !q.Has("X-Amz-Signature") {
		if !strings.Contains(r.Header.Get("Authorization"), "Credential="+StorageAccessKey+"/") {
			return "AccessDenied", "Access Denied"
		}
		return "", ""
	}
	at, err := time.Parse("20060102T150405Z", q.Get("X-Amz-Date"))
	seconds, errExpires := strconv.Atoi(q.Get("X-Amz-Expires"))
	switch {
	case err != nil || errExpires != nil || seconds < 1 || seconds > 604800:
		return "AuthorizationQueryParametersError", "the query parameters are not a signature's"
	case now.Before(at.Add(-15 * time.Minute)):
		return "AccessDenied", "Request is not valid yet"
	case now.After(at.Add(time.Duration(seconds) * time.Second)):
		return "AccessDenied", "Request has expired"
	}
	given := q.Get("X-Amz-Signature")
	q.Del("X-Amz-Signature")
	// Authenticating Requests: Using Query Parameters (AWS Signature Version 4).
	canonical := strings.Join([]string{
		r.Method, r.URL.EscapedPath(), strings.ReplaceAll(q.Encode(), "+", "%20"), "host:" + cmp.Or(r.Host, r.URL.Host),
		"", q.Get("X-Amz-SignedHeaders"), "UNSIGNED-PAYLOAD",
	}, "\n")
	hashed := sha256.Sum256([]byte(canonical))
	scope := strings.SplitN(q.Get("X-Amz-Credential"), "/", 2)
	if scope[0] != StorageAccessKey || len(scope) != 2 {
		return "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."
	}
	text := strings.Join([]string{"AWS4-HMAC-SHA256", q.Get("X-Amz-Date"), scope[1], hex.EncodeToString(hashed[:])},
		"\n")
	secret := []byte("AWS4" + StorageSecretKey)
	for _, part := range append(strings.Split(scope[1], "/"), text) {
		m := hmac.New(sha256.New, secret)
		_, _ = m.Write([]byte(part))
		secret = m.Sum(nil)
	}
	if hex.EncodeToString(secret) != given {
		return "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. Check your key and signing method."
	}
	return "", ""
}

// has is an object as it is now; nil if there is none.
func (s *storage) has(key string) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[key]
}

// keys are the keys of all objects, and of unfinished uploads.
func (s *storage) keys() (objects, uploads []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.uploads {
		uploads = append(uploads, u.key)
	}
	slices.Sort(uploads)
	return slices.Sorted(maps.Keys(s.objects)), uploads
}
