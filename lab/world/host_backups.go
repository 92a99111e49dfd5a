package world

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // S3's check of what it received
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// filler is how much of a backup is noise, in bytes, so that it has several parts.
const filler = 700

// backups are the verbs of backups on a site that is finished (agent/site/backup.go, sealed.go, adopt.go, check.go).
func (h *host) backups(name string, s *site, verb string, args []string, secrets map[string]string) (out string,
	known bool, err error,
) {
	switch verb {
	case "backup": // an existing one is the answer to a repeated call
		if _, there := s.kept[args[0]]; !there {
			put(&s.kept, args[0], kept{Of: args[0], Site: name, contents: s.clone()})
		}
		return backupReport(name, args[0]), true, nil
	case "delete-backup":
		s.drop(args[0])
		delete(s.kept, args[0])
		return fmt.Sprintf(`{"name": %q, "deleted": true}`, args[0]), true, nil
	case "seal-backup":
		out, err = h.sealBackup(s, args[0], args[1])
	case "open-backup":
		out, err = h.openBackup(name, s, args[0], args[1], args[2], secrets)
	case "adopt-config": // nothing of the settings is of the world's
	case "restore":
		out, err = h.restore(name, s, args[0])
	case "check-restored":
		k, there := s.kept[args[0]]
		switch {
		case !there:
			err = coded3(wire.FailedNoBackup, "site %s has no backup %s", name, args[0])
		case !s.same(k.contents) || !slices.Equal(s.Apps, k.Apps):
			err = coded3(wire.FailedIncomplete, "the site lacks content of the backup")
		default:
			out = printed(wire.CheckedSite{
				Tables: 1, Rows: int64(len(s.Rows)), Files: int64(len(s.Files)),
				Apps: append([]string{"frappe"}, s.Apps...),
			})
		}
	default:
		return "", false, nil
	}
	return out, true, err
}

// coded3 is a failure that a verb ends with on stderr (agent/site/sealed.go, coded).
func coded3(code, format string, args ...any) error {
	return fmt.Errorf("site: "+code+": "+format, args...)
}

func printed(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("world: " + err.Error())
	}
	return string(text)
}

func put[V any](m *map[string]V, key string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = v
}

// backupReport is what saysBackup prints (agent/site/backup.go).
func backupReport(name, backup string) string {
	dir := name + "/" + wire.SnapshotsDir + "/" + backup + "/" + backup
	return fmt.Sprintf(`{"name": %q, "files": [{"path": "%s-database.sql.gz", "bytes": 1000}, {"path": "%s-files.tar", "bytes": 100}, {"path": "%s-private-files.tar", "bytes": 100}], "bytes": 1200}`, backup, dir, dir, dir)
}

// drop deletes sealed files, complete or not (agent/site/sealed.go, dropSealed).
func (s *site) drop(name string) {
	delete(s.spool, name)
	delete(s.report, name)
}

// filled is the remainder of a command on a full disk.
func (h *host) filled(args []string) {
	if len(args) > 3 && args[2] == "restore" { // Frappe has dropped the database by then
		if s := h.sites[args[1]]; s != nil {
			s.contents = contents{Apps: s.Apps, Scheduler: s.Scheduler}
		}
	}
}

// sealed makes a sealed archive of one document, as agent/seal does, and remembers what it holds.
func (h *host) sealed(s *site, name, recipient string, out *wire.SealedBackup, file string, document any,
	holds contents,
) error {
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return errors.New("the recipient is no public key of age's")
	}
	text, noise := []byte(printed(document)), make([]byte, filler)
	if _, err := rand.Read(noise); err != nil {
		return err
	}
	*out = wire.SealedBackup{
		Name: name, Recipient: recipient,
		Files:   []wire.SealedFile{{Path: file, Bytes: int64(len(text))}},
		TakenAt: time.Now().UTC().Truncate(time.Second),
	}
	var body bytes.Buffer
	if err := seal.Write(&body, to, out, func(archive *tar.Writer) error {
		for _, f := range []struct {
			name string
			text []byte
		}{{file, text}, {"noise", noise}} {
			if err := archive.WriteHeader(&tar.Header{
				Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.text)),
				Mode: 0o600, Format: tar.FormatPAX,
			}); err != nil {
				return err
			}
			if _, err := archive.Write(f.text); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	put(&s.spool, name, body.Bytes())
	h.w.mu.Lock()
	h.w.sealed[wire.Ungrouped(out.PlainSHA256)] = holds
	h.w.mu.Unlock()
	return nil
}

// unsealed reads a sealed archive that has come whole (agent/site/sealed.go, openSealed and unsealWith).
func (s *site) unsealed(name, sum, plainSum, file string, secrets map[string]string, into any) error {
	key, err := age.ParseX25519Identity(secrets[wire.SecretBackupIdentity])
	if err != nil {
		return coded3(wire.FailedUnreadable, "the identity is no private key of age's")
	}
	body, there := s.spool[name]
	if !there {
		return coded3(wire.FailedNoBackup, "there is no sealed backup %s", name)
	}
	if got := sha256.Sum256(body); hex.EncodeToString(got[:]) != sum {
		return coded3(wire.FailedDigest, "sealed backup %s has another digest", name)
	}
	err = seal.Read(bytes.NewReader(body), key, plainSum, func(archive *tar.Reader) error {
		for {
			head, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if head.Name == file {
				if err := json.NewDecoder(archive).Decode(into); err != nil {
					return err
				}
			}
		}
	})
	if f := (*seal.Failure)(nil); errors.As(err, &f) {
		return coded3(f.Code, "%v", f.Err)
	}
	return err
}

const databaseFile = "database.sql.gz"

func (h *host) sealBackup(s *site, name, recipient string) (string, error) {
	if r, ok := s.report[name].(wire.SealedBackup); ok && r.Recipient == recipient { // the answer to a repeated call
		delete(s.kept, name)
		return printed(r), nil
	}
	k, there := s.kept[name]
	if !there {
		return "", fmt.Errorf("the site has no backup %s", name)
	}
	var out wire.SealedBackup
	if err := h.sealed(s, name, recipient, &out, databaseFile, k, k.contents); err != nil {
		return "", err
	}
	put(&s.report, name, any(out))
	delete(s.kept, name)
	return printed(out), nil
}

func (h *host) openBackup(site string, s *site, name, sum, plainSum string, secrets map[string]string) (string, error) {
	if _, there := s.kept[name]; there && s.spool[name] == nil {
		return backupReport(site, name), nil // this call is repeated
	}
	var k kept
	if err := s.unsealed(name, sum, plainSum, databaseFile, secrets, &k); err != nil {
		return "", err
	}
	put(&s.kept, name, k)
	s.drop(name)
	return backupReport(site, name), nil
}

// restore is agent/site/backup.go's: the scheduler is afterwards as it was before. From now on what the backup
// holds is what the tenant has, unless it is restored for a look.
func (h *host) restore(name string, s *site, backup string) (string, error) {
	k, there := s.kept[backup]
	if !there {
		return "", fmt.Errorf("site %s has no backup %s", name, backup)
	}
	scheduler := s.Scheduler
	s.contents = k.clone()
	s.Scheduler, s.Restored = scheduler, k.Of
	if !strings.HasPrefix(name, "drill-") {
		h.w.mu.Lock()
		h.w.written[name] = k.clone()
		h.w.mu.Unlock()
	}
	return fmt.Sprintf(`{"site": %q, "name": %q, "with_files": true}`, name, backup), nil
}

// Transfer has a host move pieces between its disk and object storage (agent/online/transfer.go): with the URLs that it
// is given, one after the other, until one fails or the caller goes.
func (a *Agents) Transfer(ctx context.Context, serverID prego.ServerID, addr string,
	in wire.TransferRequest,
) (out wire.TransferResponse, err error) {
	what := fmt.Sprintf("transfer %d up %d down of %s on %s", len(in.Upload), len(in.Download), in.Backup, serverID)
	unreachable := func(err error) error {
		if ctx.Err() != nil {
			return fmt.Errorf("%s on %s: %w", wire.KindTransfer, serverID, ctx.Err())
		}
		return &server.CommandError{
			Kind: string(wire.KindTransfer), Code: server.CommandUnreachable,
			Message: err.Error(),
		}
	}
	h, err := a.reach(ctx, what, serverID, addr)
	if err != nil {
		return out, unreachable(err)
	}
	hs := a.l.w.hosts
	client := &http.Client{
		Transport:     hs.storage(h),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	out.Done = []wire.PieceDone{}
	one, pieces := h.upload, in.Upload
	if len(in.Download) > 0 {
		one, pieces = h.download, in.Download
	}
	for _, p := range pieces {
		done, failed := one(ctx, client, in, p)
		if failed != nil {
			if ctx.Err() != nil {
				return wire.TransferResponse{}, unreachable(ctx.Err())
			}
			out.Failed = failed
			break
		}
		out.Done = append(out.Done, done)
	}
	if in.Ends != nil && out.Failed == nil {
		in.Ends.FinishedAt = time.Now().UTC()
		h.mu.Lock()
		token := h.identity.Token
		h.mu.Unlock()
		// a notification: that it is lost does no harm
		_, _, _ = hs.ask(ctx, h, http.MethodPost, wire.PathBackupReport, token, *in.Ends)
	}
	if err := a.l.step(ctx, what+" answers"); err != nil {
		return wire.TransferResponse{}, unreachable(err)
	}
	if a.l.w.Faults.hit("exec_lost", what) {
		return wire.TransferResponse{}, unreachable(errLost)
	}
	return out, nil
}

// repeated is agent/online/transfer.go's again.
func repeated(ctx context.Context, number int, try func() *wire.TransferFailed) *wire.TransferFailed {
	wait := 200 * time.Millisecond
	for n := 1; ; n++ {
		failed := try()
		if failed == nil {
			return nil
		}
		failed.Number = number
		if n == 4 || (failed.Code != wire.FailedAway && failed.Code != wire.FailedHost) || pause(ctx, wait) != nil {
			return failed
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// spooled is the site whose sealed files are read or written.
func (h *host) spooled(name string) (*site, *wire.TransferFailed) {
	s := h.sites[name]
	if s == nil || !h.up {
		return nil, &wire.TransferFailed{Code: wire.FailedNoSite, Message: name + " does not exist"}
	}
	return s, nil
}

func (h *host) upload(ctx context.Context, client *http.Client, in wire.TransferRequest,
	p wire.Piece,
) (out wire.PieceDone, failed *wire.TransferFailed) {
	content, failed := func() ([]byte, *wire.TransferFailed) { // agent/site/sealed.go, readSealed
		h.mu.Lock()
		defer h.mu.Unlock()
		s, failed := h.spooled(in.Site)
		if failed != nil {
			return nil, failed
		}
		all, there := s.spool[in.Backup]
		if !there || int64(len(all)) < p.Offset+p.Bytes {
			return nil, &wire.TransferFailed{
				Code:    wire.FailedNoBackup,
				Message: "there is no sealed backup " + in.Backup,
			}
		}
		return slices.Clone(all[p.Offset : p.Offset+p.Bytes]), nil
	}()
	if failed != nil {
		failed.Number = p.Number
		return out, failed
	}
	sum, check := sha256.Sum256(content), md5.Sum(content) //nolint:gosec // see the import
	out = wire.PieceDone{Number: p.Number, Bytes: p.Bytes, SHA256: hex.EncodeToString(sum[:])}
	return out, repeated(ctx, p.Number, func() *wire.TransferFailed {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, p.URL, bytes.NewReader(content))
		if err != nil {
			return &wire.TransferFailed{Code: wire.FailedRefused, Message: "the URL is none"}
		}
		req.Header.Set("Content-MD5", base64.StdEncoding.EncodeToString(check[:]))
		resp, err := client.Do(req)
		if err != nil {
			return &wire.TransferFailed{Code: wire.FailedAway, Message: "the storage is away"}
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return refused3(resp)
		}
		out.ETag = strings.Trim(resp.Header.Get("ETag"), `"`)
		return nil
	})
}

func (h *host) download(ctx context.Context, client *http.Client, in wire.TransferRequest,
	p wire.Piece,
) (out wire.PieceDone, failed *wire.TransferFailed) {
	var content []byte
	if failed := repeated(ctx, p.Number, func() *wire.TransferFailed {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, http.NoBody)
		if err != nil {
			return &wire.TransferFailed{Code: wire.FailedRefused, Message: "the URL is none"}
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", p.Offset, p.Offset+p.Bytes-1))
		resp, err := client.Do(req)
		if err != nil {
			return &wire.TransferFailed{Code: wire.FailedAway, Message: "the storage is away"}
		}
		defer func() { _ = resp.Body.Close() }()
		switch {
		case resp.StatusCode == http.StatusNotFound:
			return &wire.TransferFailed{Code: wire.FailedNoBackup, Message: "the storage has no such object"}
		case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable ||
			resp.StatusCode == http.StatusPartialContent && resp.ContentLength != p.Bytes:
			return &wire.TransferFailed{Code: wire.FailedUnreadable, Message: "the object is not as large as it was"}
		case resp.StatusCode != http.StatusPartialContent:
			return refused3(resp)
		}
		if content, err = io.ReadAll(resp.Body); err != nil {
			return &wire.TransferFailed{Code: wire.FailedAway, Message: err.Error()}
		}
		return nil
	}); failed != nil {
		return out, failed
	}
	sum := sha256.Sum256(content)
	out = wire.PieceDone{Number: p.Number, Bytes: p.Bytes, SHA256: hex.EncodeToString(sum[:])}
	h.mu.Lock()
	defer h.mu.Unlock()
	s, failed := h.spooled(in.Site)
	if failed == nil {
		if p.Offset == 0 { // agent/site/sealed.go, writeSealed
			s.drop(in.Backup)
		}
		before := s.spool[in.Backup]
		if int64(len(before)) < p.Offset {
			failed = &wire.TransferFailed{
				Code:    wire.FailedNoBackup,
				Message: fmt.Sprintf("only %d bytes of %s are there", len(before), in.Backup),
			}
		} else {
			put(&s.spool, in.Backup, append(slices.Clone(before[:p.Offset]), content...))
		}
	}
	if failed != nil {
		failed.Number = p.Number
	}
	return out, failed
}

// refused3 is agent/online/transfer.go's storageRefusal.
func refused3(resp *http.Response) *wire.TransferFailed {
	var why struct{ Code, Message string }
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	_ = xml.Unmarshal(text, &why)
	out := &wire.TransferFailed{Code: wire.FailedRefused, Message: fmt.Sprintf("%d %s: %s", resp.StatusCode, why.Code,
		why.Message)}
	said := strings.ToLower(why.Message)
	switch {
	case resp.StatusCode >= 500, why.Code == "BadDigest":
		out.Code = wire.FailedAway
	case strings.Contains(said, "expired"), strings.Contains(said, "not valid yet"):
		out.Code = wire.FailedURLExpired
	}
	return out
}
