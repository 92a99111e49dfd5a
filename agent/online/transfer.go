package online

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // S3's check of what it received (RFC 1864); what counts is SHA-256
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego/agent/gateway"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// storage calls object storage with URLs that the control plane signed. It follows no
// redirects: a signature is for one host.
func newStorage() *http.Client {
	return &http.Client{
		Timeout:       host.PieceTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, TLSHandshakeTimeout: 10 * time.Second,
			ResponseHeaderTimeout: 2 * time.Minute, IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 2, DisableCompression: true,
		},
	}
}

// transfer uploads or downloads pieces of a sealed backup. When the caller goes, it ends: what
// the storage or the host has by then is found again.
func (a *Agent) transfer(ctx context.Context, w http.ResponseWriter, r *http.Request, claims execClaims, body []byte, log *slog.Logger) *policy.Problem {
	if refused := a.spend(claims, string(wire.KindTransfer), log); refused != nil {
		return refused
	}
	var in wire.TransferRequest
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return &policy.Problem{Status: http.StatusBadRequest, Code: "invalid_json", Detail: "the body is no transfer"}
	}
	if refused := a.checkTransfer(in); refused != nil {
		return refused
	}
	select {
	case a.transfers <- struct{}{}:
		defer func() { <-a.transfers }()
	default:
		return &policy.Problem{Status: http.StatusTooManyRequests, Code: "busy", Detail: "too many transfers are under way on this host", RetryAfter: 2}
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	defer func() { _ = control.SetWriteDeadline(time.Now().Add(host.WriteTime)) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.Context(), func() { cancel(r.Context().Err()) })()

	out := wire.TransferResponse{Done: []wire.PieceDone{}}
	one := a.upload
	pieces := in.Upload
	if len(in.Download) > 0 {
		one, pieces = a.download, in.Download
	}
	for _, p := range pieces {
		done, failed := one(ctx, in, p)
		if failed != nil {
			if ctx.Err() != nil {
				return policy.Stopping()
			}
			log.Warn("a piece of a backup was not transferred", "backup", in.Backup, "piece", p.Number, "code", failed.Code, "error", failed.Message)
			out.Failed = failed
			break
		}
		out.Done = append(out.Done, done)
	}
	if in.Ends != nil && out.Failed == nil {
		in.Ends.FinishedAt = time.Now().UTC()
		// The gateway is told that the backup ended (direct-provisioning §8). The storage is authoritative for it.
		s := a.current.Load()
		if err := s.Gateway.PostJSON(ctx, wire.PathBackupReport, s.ID.Token, in.Ends, nil); err != nil {
			log.Warn("a backup was not reported", "site", in.Ends.Site, "error", err.Error())
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
	return nil
}

func (a *Agent) checkTransfer(in wire.TransferRequest) *policy.Problem {
	up, down := len(in.Upload), len(in.Download)
	switch {
	case in.ServerID != a.host.Config.ServerID:
		return policy.Invalid("serverId", "this is another server")
	case (in.Site == "") == (in.Volume == ""):
		return policy.Invalid("site", "a backup is of a site or of a volume")
	case in.Volume != "" && !policy.Is("VOLUME", in.Volume):
		return policy.Invalid("volume", "must be a volume's id")
	case in.Volume == "" && !policy.Is("SITE", in.Site):
		return policy.Invalid("site", "must be a site's name")
	case !policy.Is("BACKUP", in.Backup):
		return policy.Invalid("backup", "must be a backup's name")
	case (up == 0) == (down == 0) || up+down > wire.MaxPieces:
		return policy.Invalid("upload", fmt.Sprintf("there must be 1 to %d pieces to upload or to download", wire.MaxPieces))
	}
	for _, p := range append(in.Upload, in.Download...) {
		if p.Number < 1 || p.Offset < 0 || p.Bytes < 1 || p.Bytes > wire.MaxPiece {
			return policy.Invalid("bytes", fmt.Sprintf("a piece has 1 to %d bytes", wire.MaxPiece))
		}
		if !safeURL(p.URL) {
			return policy.Invalid("url", "must be a URL with https; http is for private addresses only")
		}
	}
	return nil
}

// safeURL accepts storage over TLS, and without TLS only at an address of this machine or of a private network, where
// eavesdroppers are unlikely. The content is encrypted anyway; a signature is not.
func safeURL(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil {
		return false
	}
	if u.Scheme == "https" {
		return true
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "http" && err == nil && (addr.IsLoopback() || addr.IsPrivate())
}

// attempts is how often a piece is tried before the failure is reported.
const attempts = 4

// again repeats what may work the next time.
func (a *Agent) again(ctx context.Context, number int, try func() *wire.TransferFailed) *wire.TransferFailed {
	wait := gateway.Backoff{Base: 200 * time.Millisecond, Cap: 5 * time.Second}
	for n := 1; ; n++ {
		failed := try()
		if failed == nil {
			return nil
		}
		failed.Number = number
		if n == attempts || (failed.Code != wire.FailedAway && failed.Code != wire.FailedHost) || a.host.Pause(ctx, wait.Next(100*time.Millisecond)) != nil {
			return failed
		}
	}
}

func (a *Agent) upload(ctx context.Context, in wire.TransferRequest, p wire.Piece) (out wire.PieceDone, failed *wire.TransferFailed) {
	var content []byte
	if failed := a.again(ctx, p.Number, func() (failed *wire.TransferFailed) {
		content, failed = a.readPiece(ctx, in, p)
		return failed
	}); failed != nil {
		return out, failed
	}
	sum, check := sha256.Sum256(content), md5.Sum(content) //nolint:gosec // see the import
	out = wire.PieceDone{Number: p.Number, Bytes: p.Bytes, SHA256: hex.EncodeToString(sum[:])}
	return out, a.again(ctx, p.Number, func() *wire.TransferFailed {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, p.URL, bytes.NewReader(content))
		if err != nil {
			return &wire.TransferFailed{Code: wire.FailedRefused, Message: "the URL is none"}
		}
		req.Header.Set("Content-MD5", base64.StdEncoding.EncodeToString(check[:]))
		resp, err := a.storage.Do(req)
		if err != nil {
			return away(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return storageRefusal(resp)
		}
		if out.ETag = strings.Trim(resp.Header.Get("ETag"), `"`); out.ETag == "" {
			return &wire.TransferFailed{Code: wire.FailedRefused, Message: "the storage named no ETag"}
		}
		return nil
	})
}

func (a *Agent) download(ctx context.Context, in wire.TransferRequest, p wire.Piece) (out wire.PieceDone, failed *wire.TransferFailed) {
	content := make([]byte, p.Bytes)
	if failed := a.again(ctx, p.Number, func() *wire.TransferFailed {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
		if err != nil {
			return &wire.TransferFailed{Code: wire.FailedRefused, Message: "the URL is none"}
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", p.Offset, p.Offset+p.Bytes-1))
		resp, err := a.storage.Do(req)
		if err != nil {
			return away(err)
		}
		defer func() { _ = resp.Body.Close() }()
		whole := resp.StatusCode == http.StatusOK && p.Offset == 0 && resp.ContentLength == p.Bytes
		if resp.StatusCode != http.StatusPartialContent && !whole {
			if resp.StatusCode == http.StatusNotFound {
				return &wire.TransferFailed{Code: wire.FailedNoBackup, Message: "the storage has no such object"}
			}
			if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
				return &wire.TransferFailed{Code: wire.FailedUnreadable, Message: "the object is not as large as it was"}
			}
			return storageRefusal(resp)
		}
		if resp.ContentLength >= 0 && resp.ContentLength != p.Bytes {
			return &wire.TransferFailed{Code: wire.FailedUnreadable, Message: "the object is not as large as it was"}
		}
		if _, err := io.ReadFull(resp.Body, content); err != nil {
			return away(err)
		}
		return nil
	}); failed != nil {
		return out, failed
	}
	sum := sha256.Sum256(content)
	out = wire.PieceDone{Number: p.Number, Bytes: p.Bytes, SHA256: hex.EncodeToString(sum[:])}
	return out, a.again(ctx, p.Number, func() *wire.TransferFailed { return a.writePiece(ctx, in, p, content) })
}

// readPiece reads a piece from the process that can.
func (a *Agent) readPiece(ctx context.Context, in wire.TransferRequest, p wire.Piece) ([]byte, *wire.TransferFailed) {
	content := make([]byte, p.Bytes)
	return content, a.askSpool(ctx, http.MethodGet, in, p, nil, func(resp *http.Response) error {
		_, err := io.ReadFull(resp.Body, content)
		return err
	})
}

func (a *Agent) writePiece(ctx context.Context, in wire.TransferRequest, p wire.Piece, content []byte) *wire.TransferFailed {
	return a.askSpool(ctx, http.MethodPut, in, p, content, func(*http.Response) error { return nil })
}

func (a *Agent) askSpool(ctx context.Context, method string, in wire.TransferRequest, p wire.Piece, content []byte, read func(*http.Response) error) *wire.TransferFailed {
	broken := func(err error) *wire.TransferFailed {
		return &wire.TransferFailed{Code: wire.FailedHost, Message: "the process that has the backup: " + err.Error()}
	}
	req, err := http.NewRequestWithContext(ctx, method, host.SpoolURL(in.Site, in.Volume, in.Backup, p.Offset, p.Bytes), bytes.NewReader(content))
	if err != nil {
		return broken(err)
	}
	resp, err := a.executor.Do(req)
	if err != nil {
		return broken(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNoContent {
		if err := read(resp); err != nil {
			return broken(err)
		}
		return nil
	}
	var why wire.Problem
	if json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&why) != nil {
		return broken(errors.New(resp.Status))
	}
	if !wire.IsFailure(why.Code) {
		why.Code = wire.FailedHost
	}
	return &wire.TransferFailed{Code: why.Code, Message: host.Clip(why.Detail, maxReason)}
}

// maxReason bounds the description of a failure, in bytes.
const maxReason = 500

// away is a failure of the network. Its text has no URL: that is a secret.
func away(err error) *wire.TransferFailed {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &wire.TransferFailed{Code: wire.FailedAway, Message: host.Clip(host.Printable(err.Error()), maxReason)}
}

// storageRefusal reads why the storage refused. S3 reports an expired or not yet valid signature as AccessDenied with
// a sentence.
func storageRefusal(resp *http.Response) *wire.TransferFailed {
	var why struct {
		Code    string
		Message string
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	_ = xml.Unmarshal(text, &why)
	out := &wire.TransferFailed{Code: wire.FailedRefused, Message: host.Clip(host.Printable(strconv.Itoa(resp.StatusCode)+" "+why.Code+": "+why.Message), maxReason)}
	said := strings.ToLower(why.Message)
	switch {
	case resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusRequestTimeout, why.Code == "RequestTimeout", why.Code == "BadDigest":
		out.Code = wire.FailedAway
	case why.Code == "ExpiredToken", why.Code == "RequestTimeTooSkewed", strings.Contains(said, "expired"), strings.Contains(said, "not valid yet"), strings.Contains(said, "not yet valid"):
		out.Code = wire.FailedURLExpired
	}
	return out
}
