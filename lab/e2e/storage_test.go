package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/s3test"
)

// lateURLs is on the way to object storage. URLs that hosts were given arrive there as if they came after
// their time: signed as they were, but so long ago that it is over. The storage judges them.
type lateURLs struct {
	*httptest.Server
	store *s3test.Server
	late  atomic.Int64 // how many of the next ones
}

func startLateURLs(t testing.TB, s *s3test.Server) *lateURLs {
	t.Helper()
	to, err := url.Parse(s.Endpoint)
	require.NoError(t, err)
	l := &lateURLs{store: s}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // as without a listener
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("X-Amz-Signature") && l.late.Add(-1) >= 0 {
			l.age(r)
			// It is refused before its body is read, which would cut the sender's connection.
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body, r.ContentLength = http.NoBody, 0
			r.Header.Del("Content-MD5")
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(l.Close)
	return l
}

// age signs a URL as of a time that makes it a minute too old (AWS Signature Version 4, query parameters).
func (l *lateURLs) age(r *http.Request) {
	q := r.URL.Query()
	seconds, _ := strconv.Atoi(q.Get("X-Amz-Expires"))
	at := time.Now().UTC().Add(-time.Duration(seconds)*time.Second - time.Minute)
	day, stamp := at.Format("20060102"), at.Format("20060102T150405Z")
	scope := day + "/" + l.store.Region + "/s3/aws4_request"
	q.Del("X-Amz-Signature")
	q.Set("X-Amz-Date", stamp)
	q.Set("X-Amz-Credential", l.store.AccessKey+"/"+scope)
	query := strings.ReplaceAll(q.Encode(), "+", "%20")
	canonical := sha256.Sum256([]byte(r.Method + "\n" + r.URL.EscapedPath() + "\n" + query + "\nhost:" + r.Host + "\n\nhost\nUNSIGNED-PAYLOAD"))
	key := []byte("AWS4" + l.store.SecretKey)
	for _, part := range []string{day, l.store.Region, "s3", "aws4_request", "AWS4-HMAC-SHA256\n" + stamp + "\n" + scope + "\n" + hex.EncodeToString(canonical[:])} {
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	r.URL.RawQuery = query + "&X-Amz-Signature=" + hex.EncodeToString(key)
}

// smallDisk mounts a file system of so many bytes over a directory, until it is released.
func smallDisk(t testing.TB, at string, bytes int) (gone func()) {
	t.Helper()
	need.Root(t, "it mounts a small file system")
	require.NoError(t, syscall.Mount("none", at, "tmpfs", 0, "size="+strconv.Itoa(bytes)))
	gone = func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) }
	t.Cleanup(gone)
	return gone
}

// metric is the sum of a process's samples of a metric.
func (c *cell) metric(process, name string) float64 {
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://"+c.addr(process+"-ops")+"/metrics", nil)
	require.NoError(c.t, err)
	resp, err := need.HTTP.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0
	}
	var sum float64
	for line := range strings.Lines(string(body)) {
		if !strings.HasPrefix(line, name) {
			continue
		}
		fields := strings.Fields(line)
		var v float64
		if _, err := fmt.Sscan(fields[len(fields)-1], &v); err == nil {
			sum += v
		}
	}
	return sum
}
