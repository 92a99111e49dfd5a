package objects_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/s3test"
)

func open(t *testing.T, s *s3test.Server, change ...func(*objects.Config)) *objects.Store {
	t.Helper()
	c := objects.Config{
		Endpoint: s.Endpoint, Bucket: s.Bucket, Region: s.Region, AccessKey: s.AccessKey, SecretKey: s.SecretKey,
		PathStyle: true, MayDelete: s3test.MayDelete,
	}
	for _, f := range change {
		f(&c)
	}
	o, err := objects.New(c)
	require.NoError(t, err)
	return o
}

// send makes a request with a signed URL, as a host does: it has nothing else.
func send(t *testing.T, method, url string, body []byte) (status int, answer []byte, etag string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, url, bytes.NewReader(body))
	require.NoError(t, err)
	resp, err := need.HTTP.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, answer, strings.Trim(resp.Header.Get("ETag"), `"`)
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// TestAnObjectInParts: from the upload to the proof that it is gone.
func TestAnObjectInParts(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	o, ctx := open(t, s), context.Background()
	require.NoError(t, o.Check(ctx))
	const key = "e/tenants/t-1/bak-1/site.age"
	id, err := o.Begin(ctx, key)
	require.NoError(t, err)
	uploads, err := o.Uploads(ctx, "e/")
	require.NoError(t, err)
	require.Len(t, uploads, 1)
	require.Equal(t, id, uploads[0].ID)
	require.Equal(t, key, uploads[0].Key)
	require.WithinDuration(t, time.Now(), uploads[0].Initiated, time.Minute)

	content := [][]byte{noise(objects.MinPart), noise(1000)}
	for i, b := range content {
		url, err := o.PresignPart(ctx, key, id, i+1, time.Minute)
		require.NoError(t, err)
		status, answer, etag := send(t, http.MethodPut, url, b)
		require.Equal(t, http.StatusOK, status, "%s", answer)
		require.NotEmpty(t, etag)
	}
	_, there, err := o.Head(ctx, key)
	require.NoError(t, err)
	require.False(t, there, "an upload is no object before it is completed")

	// Uploads are found again after any process died, even the storage.
	s.Kill()
	_, err = o.Parts(ctx, key, id)
	require.Equal(t, objects.Unreachable, objects.ClassOf(err))
	s.Boot()
	parts, err := o.Parts(ctx, key, id)
	require.NoError(t, err)
	require.Len(t, parts, 2)
	require.EqualValues(t, objects.MinPart, parts[0].Bytes)
	require.EqualValues(t, 1000, parts[1].Bytes)

	etag, err := o.Complete(ctx, key, id, parts)
	require.NoError(t, err)
	// Repeated, it is done or gone, depending on the storage; neither is a failure.
	if _, err = o.Complete(ctx, key, id, parts); err != nil {
		require.Equal(t, objects.Gone, objects.ClassOf(err), "%v", err)
	}
	require.NoError(t, o.Abort(ctx, key, id), "aborting a complete upload does nothing")
	got, there, err := o.Head(ctx, key)
	require.NoError(t, err)
	require.True(t, there)
	require.EqualValues(t, objects.MinPart+1000, got.Bytes)
	require.Equal(t, etag, got.ETag)

	url, err := o.PresignGet(ctx, key, time.Minute)
	require.NoError(t, err)
	status, answer, _ := send(t, http.MethodGet, url, nil)
	require.Equal(t, http.StatusOK, status)
	require.True(t, bytes.Equal(bytes.Join(content, nil), answer))

	require.NoError(t, o.Put(ctx, "e/tenants/t-1/bak-1/manifest.json", []byte("{}")))
	list, err := o.List(ctx, "e/", "", 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	list, err = o.List(ctx, "e/", list[0].Key, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	b, err := o.Get(ctx, "e/tenants/t-1/bak-1/manifest.json", 2)
	require.NoError(t, err)
	require.Equal(t, "{}", string(b))
	_, err = o.Get(ctx, "e/tenants/t-1/bak-1/manifest.json", 1)
	require.ErrorContains(t, err, "larger than 1 bytes")

	require.NoError(t, o.Delete(ctx, key))
	require.NoError(t, o.Delete(ctx, key), "deleting is repeated")
	_, there, err = o.Head(ctx, key)
	require.NoError(t, err)
	require.False(t, there)
	_, err = o.Get(ctx, key, 10)
	require.Equal(t, objects.Gone, objects.ClassOf(err))
}

// TestAnUploadIsAborted: its parts are gone, and its URLs with it.
func TestAnUploadIsAborted(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	o, ctx := open(t, s), context.Background()
	id, err := o.Begin(ctx, "k")
	require.NoError(t, err)
	url, err := o.PresignPart(ctx, "k", id, 1, time.Minute)
	require.NoError(t, err)
	status, _, _ := send(t, http.MethodPut, url, []byte("x"))
	require.Equal(t, http.StatusOK, status)
	require.NoError(t, o.Abort(ctx, "k", id))
	require.NoError(t, o.Abort(ctx, "k", id))
	status, answer, _ := send(t, http.MethodPut, url, []byte("x"))
	require.Equal(t, http.StatusNotFound, status, "%s", answer)
	_, err = o.Parts(ctx, "k", id)
	require.Equal(t, objects.Gone, objects.ClassOf(err))
	uploads, err := o.Uploads(ctx, "")
	require.NoError(t, err)
	require.Empty(t, uploads)
}

// TestWhatASignedURLIsGoodFor: one part of one upload, for a time.
func TestWhatASignedURLIsGoodFor(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	o, ctx := open(t, s), context.Background()
	id, err := o.Begin(ctx, "k")
	require.NoError(t, err)
	short, err := o.PresignPart(ctx, "k", id, 1, time.Second)
	require.NoError(t, err)
	url, err := o.PresignPart(ctx, "k", id, 1, time.Minute)
	require.NoError(t, err)
	require.NotContains(t, url, s.SecretKey)
	for what, other := range map[string]string{
		"another part":   strings.Replace(url, "partNumber=1", "partNumber=2", 1),
		"another object": strings.Replace(url, "/k?", "/other?", 1),
	} {
		require.NotEqual(t, url, other)
		status, answer, _ := send(t, http.MethodPut, other, []byte("x"))
		require.Equal(t, http.StatusForbidden, status, "%s: %s", what, answer)
	}
	status, answer, _ := send(t, http.MethodGet, url, nil)
	require.Equal(t, http.StatusForbidden, status, "%s", answer)
	require.Eventually(t, func() bool {
		status, answer, _ = send(t, http.MethodPut, short, []byte("x"))
		return status == http.StatusForbidden
	}, 10*time.Second, 200*time.Millisecond)
	require.Contains(t, string(answer), "expired")
}

// TestHowStorageRefuses: retryable refusals are distinguished from permanent ones.
func TestHowStorageRefuses(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	ctx := context.Background()
	for what, change := range map[string]func(*objects.Config){
		"a bucket that is not there": func(c *objects.Config) { c.Bucket = "another" },
		"an unknown access key":      func(c *objects.Config) { c.AccessKey = "stranger" },
		"a wrong secret":             func(c *objects.Config) { c.SecretKey = "wrong" },
	} {
		o := open(t, s, change)
		require.Equal(t, objects.Refused, objects.ClassOf(o.Check(ctx)), "%s: %v", what, o.Check(ctx))
		require.Error(t, o.Put(ctx, "k", []byte("x")), what)
	}
	o := open(t, s, func(c *objects.Config) { c.Endpoint = "http://127.0.0.1:1" })
	err := o.Put(ctx, "k", []byte("x"))
	require.Equal(t, objects.Unreachable, objects.ClassOf(err))
	require.NotContains(t, err.Error(), "Signature")
	for _, bad := range []string{"", "s3.example.com", "ftp://s3.example.com", "https://s3.example.com/bucket", "https://user@s3.example.com"} {
		_, err := objects.New(objects.Config{Endpoint: bad, Bucket: "backups", MayDelete: s3test.MayDelete})
		require.Error(t, err, bad)
	}
	_, err = objects.New(objects.Config{Endpoint: "https://s3.example.com", Bucket: "backups"})
	require.ErrorContains(t, err, "a gate before deletions is required")
}

// TestADamagedObjectIsSeen: the storage serves what its disk has; it is for the reader to
// compare digests.
func TestADamagedObjectIsSeen(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	o, ctx := open(t, s), context.Background()
	require.NoError(t, o.Put(ctx, "k", []byte("a manifest")))
	b, err := os.ReadFile(s.File("k"))
	require.NoError(t, err)
	require.Equal(t, "a manifest", string(b), "the tests of damage write to this file")
}

// TestWhoMayDeleteIsAsked before the storage is.
func TestWhoMayDeleteIsAsked(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	refused := errors.New("frozen")
	var keys []string
	o := open(t, s, func(c *objects.Config) {
		c.MayDelete = func(_ context.Context, key string) error { keys = append(keys, key); return refused }
	})
	require.NoError(t, o.Put(t.Context(), "a/b", []byte("x")))
	require.ErrorIs(t, o.Delete(t.Context(), "a/b"), refused)
	_, there, err := o.Head(t.Context(), "a/b")
	require.NoError(t, err)
	require.True(t, there)
	refused = nil
	require.NoError(t, o.Delete(t.Context(), "a/b"))
	require.Equal(t, []string{"a/b", "a/b"}, keys)
}
