package world

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/lab/s3test"
)

// TestTheStorageIsS3ForItsClients: for the control plane's client, and for a host, which has signed URLs alone.
func TestTheStorageIsS3ForItsClients(t *testing.T) {
	bare(t, func(w *World) {
		w.storage = newStorage(w)
		over := caller3{s: w.storage, step: func(context.Context, string) error { return nil }, who: func(context.Context) string { return "test" }}
		o, err := objects.New(objects.Config{
			Endpoint: StorageEndpoint, Bucket: StorageBucket, Region: StorageRegion, AccessKey: StorageAccessKey,
			SecretKey: StorageSecretKey, PathStyle: true, Transport: over, MayDelete: s3test.MayDelete,
		})
		require.NoError(t, err)
		ctx := context.Background()
		require.NoError(t, o.Check(ctx))
		id, err := o.Begin(ctx, "e/a")
		require.NoError(t, err)
		send := func(method, url string, body string) (int, string) {
			req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
			require.NoError(t, err)
			resp, err := over.RoundTrip(req)
			require.NoError(t, err)
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			return resp.StatusCode, string(text)
		}
		for i, part := range []string{"first ", "second"} {
			url, err := o.PresignPart(ctx, "e/a", id, i+1, time.Minute)
			require.NoError(t, err)
			status, text := send(http.MethodPut, url, part)
			require.Equal(t, http.StatusOK, status, text)
			status, text = send(http.MethodPut, strings.Replace(url, "partNumber=", "partNumber=1", 1), part)
			require.Equal(t, http.StatusForbidden, status, text)
			require.Contains(t, text, "SignatureDoesNotMatch")
			time.Sleep(2 * time.Minute)
			status, text = send(http.MethodPut, url, part)
			require.Equal(t, http.StatusForbidden, status, text)
			require.Contains(t, text, "expired")
		}
		parts, err := o.Parts(ctx, "e/a", id)
		require.NoError(t, err)
		require.Len(t, parts, 2)
		uploads, err := o.Uploads(ctx, "e/")
		require.NoError(t, err)
		require.Len(t, uploads, 1)
		wrong := append([]objects.Part{}, parts...)
		wrong[0].ETag = parts[1].ETag
		_, err = o.Complete(ctx, "e/a", id, wrong)
		require.Equal(t, objects.Refused, objects.ClassOf(err))
		etag, err := o.Complete(ctx, "e/a", id, parts)
		require.NoError(t, err)
		_, err = o.Complete(ctx, "e/a", id, parts)
		require.Equal(t, objects.Gone, objects.ClassOf(err))
		got, there, err := o.Head(ctx, "e/a")
		require.NoError(t, err)
		require.True(t, there)
		require.EqualValues(t, 12, got.Bytes)
		require.Equal(t, etag, got.ETag)
		require.NoError(t, o.Put(ctx, "e/b", []byte("{}")))
		back, err := o.Get(ctx, "e/b", 10)
		require.NoError(t, err)
		require.True(t, bytes.Equal([]byte("{}"), back))
		list, err := o.List(ctx, "e/", "e/a", 10)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.NoError(t, o.Delete(ctx, "e/a"))
		_, there, err = o.Head(ctx, "e/a")
		require.NoError(t, err)
		require.False(t, there)
		other, err := o.Begin(ctx, "e/c")
		require.NoError(t, err)
		require.NoError(t, o.Abort(ctx, "e/c", other))
		_, err = o.Parts(ctx, "e/c", other)
		require.Equal(t, objects.Gone, objects.ClassOf(err))
	})
}
