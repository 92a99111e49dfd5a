package online

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/lab/agenttest"
	"github.com/prego/prego/lab/s3test"
)

const testSite = "a.example.com"

// siteDir makes a finished site on a host, and returns where its backups are.
func siteDir(t testing.TB, h *host.Host) string {
	t.Helper()
	dir := filepath.Join(h.Path(wire.BenchDir), "sites", testSite)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, wire.SnapshotsDir), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "site_config.json"), []byte(`{"db_name":"pool_a"}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prego_site.json"), []byte(`{"db_name":"pool_a","made":true}`), 0o600))
	return filepath.Join(dir, wire.SnapshotsDir)
}

// transferring asks an agent for a transfer as the control plane does.
func transferring(t testing.TB, g *agenttest.Gateway, a *Agent, in wire.TransferRequest) (out wire.TransferResponse, refused wire.Problem) {
	t.Helper()
	in.ServerID, in.Kind = agenttest.Server, wire.KindTransfer
	body, err := json.Marshal(in)
	require.NoError(t, err)
	token := g.Token(t, func(c jwt.MapClaims) { c["body"], c["scope"] = policy.Digest(body), "exec.transfer" })
	req, err := http.NewRequest(http.MethodPost, a.url(wire.PathExec), bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	var resp *http.Response
	client := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	client.Timeout = time.Minute // megabytes go to a shared disk
	require.Eventually(t, func() bool {
		req.Body = io.NopCloser(bytes.NewReader(body))
		resp, err = client.Do(req)
		return err == nil || !strings.Contains(err.Error(), "connection refused")
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&refused))
		return out, refused
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&out))
	return out, refused
}

func storageOf(t testing.TB, s *s3test.Server) *objects.Store {
	t.Helper()
	o, err := objects.New(objects.Config{
		Endpoint: s.Endpoint, Bucket: s.Bucket, Region: s.Region, AccessKey: s.AccessKey, SecretKey: s.SecretKey,
		PathStyle: true, MayDelete: s3test.MayDelete,
	})
	require.NoError(t, err)
	return o
}

// TestASealedBackupTravels: up in parts to a real S3 server that dies in between, and down
// again to another name, byte for byte.
func TestASealedBackupTravels(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	o, ctx := storageOf(t, s), context.Background()
	g, a := serving(t)
	dir := siteDir(t, a.host)
	content := make([]byte, 2*objects.MinPart+4321)
	_, _ = rand.Read(content)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".sealed-bak-1"), content, 0o600))

	id, err := o.Begin(ctx, "k")
	require.NoError(t, err)
	var pieces []wire.Piece
	for i, at := 0, int64(0); at < int64(len(content)); i, at = i+1, at+objects.MinPart {
		url, err := o.PresignPart(ctx, "k", id, i+1, time.Minute)
		require.NoError(t, err)
		pieces = append(pieces, wire.Piece{Number: i + 1, Offset: at, Bytes: min(objects.MinPart, int64(len(content))-at), URL: url})
	}
	s.Kill()
	got, _ := transferring(t, g, a, wire.TransferRequest{Site: testSite, Backup: "bak-1", Upload: pieces})
	require.Empty(t, got.Done)
	require.Equal(t, wire.FailedAway, got.Failed.Code)
	require.NotContains(t, got.Failed.Message, "X-Amz-Signature", "a signature is a secret")
	s.Boot()
	got, _ = transferring(t, g, a, wire.TransferRequest{Site: testSite, Backup: "bak-1", Upload: pieces})
	require.Nil(t, got.Failed)
	require.Len(t, got.Done, 3)
	var parts []objects.Part
	for i, p := range got.Done {
		end := min(len(content), (i+1)*objects.MinPart)
		sum := sha256.Sum256(content[i*objects.MinPart : end])
		require.Equal(t, hex.EncodeToString(sum[:]), p.SHA256)
		parts = append(parts, objects.Part{Number: p.Number, Bytes: p.Bytes, ETag: p.ETag})
	}
	there, err := o.Parts(ctx, "k", id)
	require.NoError(t, err)
	require.Equal(t, parts, there)
	_, err = o.Complete(ctx, "k", id, parts)
	require.NoError(t, err)

	url, err := o.PresignGet(ctx, "k", time.Minute)
	require.NoError(t, err)
	for i := range pieces {
		pieces[i].URL = url
	}
	got, _ = transferring(t, g, a, wire.TransferRequest{Site: testSite, Backup: "in-1", Download: pieces})
	require.Nil(t, got.Failed)
	back, err := os.ReadFile(filepath.Join(dir, ".sealed-in-1"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, back))

	// Impossible requests fail, each with its code.
	pieces[0].Number, pieces[0].Offset = 1, int64(len(content))
	got, _ = transferring(t, g, a, wire.TransferRequest{Site: testSite, Backup: "in-1", Download: pieces[:1]})
	require.Equal(t, wire.FailedUnreadable, got.Failed.Code)
	got, _ = transferring(t, g, a, wire.TransferRequest{Site: testSite, Backup: "no-such", Upload: pieces[1:]})
	require.Equal(t, wire.FailedNoBackup, got.Failed.Code)
	short, err := o.PresignGet(ctx, "k", time.Second)
	require.NoError(t, err)
	time.Sleep(1100 * time.Millisecond)
	require.Eventually(t, func() bool {
		got, _ = transferring(t, g, a, wire.TransferRequest{Site: testSite, Backup: "in-1", Download: []wire.Piece{{Number: 1, Bytes: 10, URL: short}}})
		return got.Failed != nil && got.Failed.Code == wire.FailedURLExpired
	}, 10*time.Second, 500*time.Millisecond)
	got, _ = transferring(t, g, a, wire.TransferRequest{Site: testSite, Backup: "in-1", Download: []wire.Piece{{Number: 1, Bytes: 10, URL: url + "0"}}})
	require.Equal(t, wire.FailedRefused, got.Failed.Code)
	id, err = o.Begin(ctx, "k2")
	require.NoError(t, err)
	url, err = o.PresignPart(ctx, "k2", id, 1, time.Minute)
	require.NoError(t, err)
	// A small one: a storage that refuses while much is still on its way may reset the connection, and its answer is lost.
	got, _ = transferring(t, g, a, wire.TransferRequest{Site: testSite, Backup: "in-1", Upload: []wire.Piece{{Number: 1, Bytes: 1000, URL: url + "0"}}})
	require.Equal(t, wire.FailedRefused, got.Failed.Code, got.Failed.Message)
}

// TestAPieceIsTriedAgain: a connection that is cut, an error of the storage's, and a body that
// was damaged on its way.
func TestAPieceIsTriedAgain(t *testing.T) {
	t.Parallel()
	g, a := serving(t)
	dir := siteDir(t, a.host)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".sealed-bak-1"), []byte("0123456789"), 0o600))
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch calls.Add(1) {
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusInternalServerError)
		case 3:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, "<Error><Code>BadDigest</Code><Message>x</Message></Error>")
		default:
			require.Equal(t, "345", string(body))
			require.NotEmpty(t, r.Header.Get("Content-MD5"))
			w.Header().Set("ETag", `"e"`)
		}
	}))
	t.Cleanup(srv.Close)
	got, _ := transferring(t, g, a, wire.TransferRequest{Site: testSite, Backup: "bak-1", Upload: []wire.Piece{{Number: 1, Offset: 3, Bytes: 3, URL: srv.URL}}})
	require.Nil(t, got.Failed)
	require.Equal(t, "e", got.Done[0].ETag)
	require.EqualValues(t, 4, calls.Load())
}

// TestWhyAPieceIsNotWritten: a refusal has its reason, even if much of the piece is still on its way.
func TestWhyAPieceIsNotWritten(t *testing.T) {
	t.Parallel()
	g, a := serving(t)
	siteDir(t, a.host)
	content := make([]byte, 16<<20)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}))
	t.Cleanup(srv.Close)
	for range 5 {
		got, _ := transferring(t, g, a, wire.TransferRequest{Site: testSite, Backup: "in-1", Download: []wire.Piece{{Number: 2, Offset: 5, Bytes: int64(len(content)) - 5, URL: srv.URL}}})
		require.Equal(t, wire.FailedNoBackup, got.Failed.Code, got.Failed.Message)
	}
}

// TestATransferIsBackedByItsToken: what isn't a transfer of this host, or leads elsewhere, is
// refused before anything moves.
func TestTransfersThatAreRefused(t *testing.T) {
	t.Parallel()
	g, a := serving(t)
	good := wire.Piece{Number: 1, Bytes: 1, URL: "https://s3.example.com/k"}
	for name, in := range map[string]wire.TransferRequest{
		"nothing":            {Site: testSite, Backup: "bak-1"},
		"both":               {Site: testSite, Backup: "bak-1", Upload: []wire.Piece{good}, Download: []wire.Piece{good}},
		"no site":            {Site: "../x", Backup: "bak-1", Upload: []wire.Piece{good}},
		"no backup":          {Site: testSite, Backup: "../x", Upload: []wire.Piece{good}},
		"in clear":           {Site: testSite, Backup: "bak-1", Upload: []wire.Piece{{Number: 1, Bytes: 1, URL: "http://s3.example.com/k"}}},
		"a file":             {Site: testSite, Backup: "bak-1", Upload: []wire.Piece{{Number: 1, Bytes: 1, URL: "file:///etc/passwd"}}},
		"credentials":        {Site: testSite, Backup: "bak-1", Upload: []wire.Piece{{Number: 1, Bytes: 1, URL: "https://u:p@s3.example.com/k"}}},
		"too large":          {Site: testSite, Backup: "bak-1", Upload: []wire.Piece{{Number: 1, Bytes: wire.MaxPiece + 1, URL: good.URL}}},
		"before the start":   {Site: testSite, Backup: "bak-1", Upload: []wire.Piece{{Number: 1, Offset: -1, Bytes: 1, URL: good.URL}}},
		"a public one, http": {Site: testSite, Backup: "bak-1", Upload: []wire.Piece{{Number: 1, Bytes: 1, URL: "http://203.0.113.1/k"}}},
	} {
		_, refused := transferring(t, g, a, in)
		require.Equal(t, "invalid_field", refused.Code, name)
	}
	body := `{"serverId":"app-1","kind":"transfer","site":"a.example.com","backup":"b"}`
	resp, err := a.try(g.Caller(t, agenttest.ControlPlane(t, g.ExecCA)), g.TokenFor(t, body), body)
	require.NoError(t, err)
	require.Equal(t, "scope_missing", resp.problem.Code, "a token for bench is none for transfers")
	// Nobody but the agent reads pieces, and no command does.
	body = `{"serverId":"app-1","kind":"spool","args":["--site","a.example.com","read-sealed","b","0","1"]}`
	resp, err = a.try(g.Caller(t, agenttest.ControlPlane(t, g.ExecCA)), g.TokenFor(t, body), body)
	require.NoError(t, err)
	require.Equal(t, "kind_unknown", resp.problem.Code)
}
