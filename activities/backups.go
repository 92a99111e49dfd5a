package activities

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"filippo.io/age"
	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// ObjectStorage keeps backups. A failure is a *tenant.StorageError. Every call may be repeated.
type ObjectStorage interface {
	Begin(ctx context.Context, key string) (uploadID string, err error)
	PresignPart(ctx context.Context, key, uploadID string, number int, valid time.Duration) (string, error)
	PresignGet(ctx context.Context, key string, valid time.Duration) (string, error)
	Parts(ctx context.Context, key, uploadID string) ([]tenant.ObjectPart, error)
	Complete(ctx context.Context, key, uploadID string, parts []tenant.ObjectPart) (etag string, err error)
	Abort(ctx context.Context, key, uploadID string) error
	Uploads(ctx context.Context, prefix string) ([]tenant.ObjectUpload, error)
	Put(ctx context.Context, key string, body []byte) error
	Get(ctx context.Context, key string, limit int64) ([]byte, error)
	Head(ctx context.Context, key string) (o tenant.StoredObject, ok bool, err error)
	List(ctx context.Context, prefix, after string, n int) ([]tenant.StoredObject, error)
	// Delete returns nil once the object is known to be gone.
	Delete(ctx context.Context, key string) error
}

// BackupVault seals what opens backups, each for its own.
type BackupVault interface {
	Seal(belongsTo string, secret []byte) (sealed []byte, keyID string, err error)
	Open(belongsTo, keyID string, sealed []byte) ([]byte, error)
	MAC(keyID string, text []byte) ([]byte, error)
}

// Transfers has hosts move pieces of sealed backups. A failure is a *server.CommandError.
type Transfers interface {
	Transfer(ctx context.Context, serverID prego.ServerID, addr string, in wire.TransferRequest) (wire.TransferResponse, error)
}

// BackupSettings are the numbers of backups.
type BackupSettings struct {
	Environment string
	PartBytes   int64         // of an upload, at least; more for large sites
	MaxParts    int           // that the storage takes
	URLTTL      time.Duration // of signed URLs
	UploadFor   time.Duration // how long an upload or a download may take
	PerHost     int           // run concurrently
	PerRegion   int
	LateAfter   time.Duration // a turn that came so long ago, without a backup since, is late
	FinalFor    time.Duration // how long a tenant's last backup is kept
	Quiet       time.Duration // a backup that was begun so long ago may have lost its run
}

// Backups are the steps of backups in object storage.
type Backups struct {
	Store    *store.Store
	Tenants  *Tenants
	Objects  ObjectStorage // nil: there is none, and backups stay on their hosts
	Vault    BackupVault
	Hosts    Transfers
	Audit    *store.Store
	Runs     Runs
	Settings BackupSettings
	Metrics  *BackupMetrics
	Log      *zap.Logger
	NewID    func() prego.BackupID
	// Volumes has the steps that bring volumes to servers.
	Volumes *OrgResources
}

// BackupMetrics count backups in object storage.
type BackupMetrics struct {
	Ended *prometheus.CounterVec // by kind and outcome
	Bytes prometheus.Counter     // uploaded
	Late  prometheus.Gauge       // tenants and volumes whose last turn came long ago, without a backup since
	Over  prometheus.Gauge       // orgs whose backups have reached their limit
	Kept  prometheus.Gauge       // bytes of all backups
	// Objects that the last comparison found without a row, and rows without their objects.
	Objects *prometheus.GaugeVec
}

// NewBackupMetrics registers them.
func NewBackupMetrics(reg prometheus.Registerer) *BackupMetrics {
	m := &BackupMetrics{
		Ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prego.MetricBackups, Help: "Backups to object storage that ended, by kind and outcome (stored, or the reason of failure)."}, []string{"kind", "outcome"}),
		Bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "prego_backup_bytes_total", Help: "Bytes of backups that were stored."}),
		Late:  prometheus.NewGauge(prometheus.GaugeOpts{Name: prego.MetricBackupsLate, Help: "Tenants and volumes whose scheduled backup is late: its time came more than 2 hours ago, and none was stored since."}),
	}
	m.Over = prometheus.NewGauge(prometheus.GaugeOpts{Name: prego.MetricBackupsOver, Help: "Orgs whose backups have reached their limit of bytes: backups on request are refused."})
	m.Kept = prometheus.NewGauge(prometheus.GaugeOpts{Name: "prego_backup_stored_bytes", Help: "Bytes that all backups occupy in object storage."})
	m.Objects = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prego.MetricBackupObjects, Help: "Found by the last comparison of the bucket with the rows: objects without a row (unknown), and backups whose objects are not there (missing)."}, []string{"what"})
	reg.MustRegister(m.Ended, m.Bytes, m.Late, m.Over, m.Kept, m.Objects)
	for _, k := range tenant.BackupKinds() {
		m.Ended.WithLabelValues(string(k), string(tenant.BackupStored))
	}
	return m
}

// BackupPlan is the state of a backup.
type BackupPlan struct {
	OrgID     prego.OrgID       `json:"org_id"`
	TenantID  prego.TenantID    `json:"tenant_id"`
	VolumeID  prego.VolumeID    `json:"volume_id,omitempty"` // "" for a tenant's backup
	Kind      tenant.BackupKind `json:"kind"`
	Done      bool              `json:"done,omitempty"`
	Step      time.Duration     `json:"step"`
	UploadFor time.Duration     `json:"upload_for"`
}

// PlanStoredBackup reads the backup's row.
func (a *Backups) PlanStoredBackup(ctx context.Context, id prego.BackupID) (BackupPlan, error) {
	b, err := a.Store.BackupRecord(ctx, id)
	return BackupPlan{
		OrgID: b.OrgID, TenantID: b.TenantID, VolumeID: b.VolumeID, Kind: b.Kind, Done: !b.State.UnderWay(), Step: a.Tenants.Settings.StepTimeout, UploadFor: a.Settings.UploadFor,
	}, permanentIfCoded(err)
}

func (a *Backups) run(ctx context.Context, id prego.BackupID) (b tenant.BackupRecord, t tenant.Record, err error) {
	if a.Objects == nil {
		return b, t, because(true, tenant.ReasonNoStorage, "no object storage is configured (PREGO_BACKUP_ENDPOINT)")
	}
	if b, err = a.Store.BackupRecord(ctx, id); err != nil {
		return b, t, permanentIfCoded(err)
	}
	if b.VolumeID != "" {
		return b, t, nil
	}
	if t, err = a.Tenants.Store.TenantRecord(ctx, b.TenantID); err != nil {
		return b, t, fromStore(err)
	}
	return b, t, nil
}

// runOnHost is run for a backup whose site is still where it is made.
func (a *Backups) runOnHost(ctx context.Context, id prego.BackupID) (tenant.BackupRecord, tenant.Record, error) {
	b, t, err := a.run(ctx, id)
	if err == nil && b.VolumeID == "" && (t.Allocation == nil || t.Allocation.AppServerID != b.ServerID || t.Site != b.Site) {
		err = because(true, tenant.ReasonBackupSuperseded, fmt.Sprintf("site %s is on server %s no longer", b.Site, b.ServerID))
	}
	return b, t, err
}

// MakeBackup has the host dump, compress and encrypt the site, to an identity that is made here.
// The host gets its public half.
func (a *Backups) MakeBackup(ctx context.Context, id prego.BackupID) error {
	b, t, err := a.runOnHost(ctx, id)
	if err != nil || b.State != tenant.BackupMaking {
		return err
	}
	if b.Recipient == "" {
		if b, err = a.newIdentity(ctx, id); err != nil {
			return err
		}
	}
	if b.VolumeID != "" {
		return a.makeVolumeBackup(ctx, b)
	}
	what := func(verb string) string { return fmt.Sprintf("%s-%s-%d", id, verb, activity.GetInfo(ctx).Attempt) }
	a.Tenants.hook("stored-backup/start")
	made, err := a.Tenants.backup(ctx, t, what("dump"), string(id))
	if err != nil {
		return verbReason(err)
	}
	out, err := a.Tenants.forTenant(ctx, t, what("seal"), a.Tenants.Settings.SiteTimeout, "--site", t.Site, "seal-backup", string(id), b.Recipient)
	if err != nil {
		return verbReason(err)
	}
	object, manifest := tenant.BackupKeys(a.Settings.Environment, b.TenantID, id)
	return a.sealed(ctx, b, out, made.Bytes, object, manifest)
}

// sealed records the sealed files that a host reports, and their source's size in bytes.
func (a *Backups) sealed(ctx context.Context, b tenant.BackupRecord, report string, of int64, object, manifest string) error {
	var sealed tenant.SealedBackup
	err := json.Unmarshal([]byte(report), &sealed)
	sealed.SHA256, sealed.PlainSHA256 = wire.Ungrouped(sealed.SHA256), wire.Ungrouped(sealed.PlainSHA256)
	if err != nil || sealed.Name != string(b.BackupID) || sealed.Recipient != b.Recipient || sealed.Bytes < 1 || !sha256Hex.MatchString(sealed.SHA256) || !sha256Hex.MatchString(sealed.PlainSHA256) {
		return permanentError(ErrTypeCommand, "the host's report of what it sealed can't be read", nil)
	}
	a.Tenants.hook("stored-backup/sealed")
	// A sealed file is never larger than its source, except for the overhead of age and tar.
	part := tenant.PartBytes(max(sealed.Bytes, of), a.Settings.PartBytes, a.Settings.MaxParts)
	if part > wire.MaxPiece {
		return because(true, tenant.ReasonStorageRefused, fmt.Sprintf("%d bytes are more than the storage takes in parts of %d", sealed.Bytes, wire.MaxPiece))
	}
	return a.Store.BackupSealed(ctx, b.BackupID, sealed, part, object, manifest)
}

// newIdentity makes and keeps a backup's identity; the private half is in the row only sealed.
func (a *Backups) newIdentity(ctx context.Context, id prego.BackupID) (tenant.BackupRecord, error) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return tenant.BackupRecord{}, err
	}
	var sealed tenant.SealedIdentity
	if sealed.Sealed, sealed.KeyID, err = a.Vault.Seal(tenant.BackupKeyFor(id), []byte(key.String())); err != nil {
		return tenant.BackupRecord{}, err
	}
	if err := a.Store.BackupKey(ctx, id, key.Recipient().String(), sealed); err != nil {
		return tenant.BackupRecord{}, err
	}
	return a.Store.BackupRecord(ctx, id)
}

func isBecause(err error, reason prego.Reason) bool {
	var app *temporal.ApplicationError
	return errors.As(err, &app) && app.Type() == string(reason)
}

var sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)

// batchBytes bounds what one request to a host uploads or downloads, so that a call does not
// take too long to be cut and asked again.
const batchBytes = 256 << 20

// batchPieces bounds it too: the URLs of a request have to fit into it.
const batchPieces = 24

// UploadBackup uploads the parts that the storage lacks. The storage knows which it has, so this
// continues after any crash.
func (a *Backups) UploadBackup(ctx context.Context, id prego.BackupID) error {
	b, t, err := a.runOnHost(ctx, id)
	if err != nil || b.State != tenant.BackupUploading {
		return err
	}
	at, err := a.placeOf(ctx, b, t)
	if err != nil {
		return err
	}
	for {
		missing, err := a.missingParts(ctx, &b)
		if err != nil || len(missing) == 0 {
			return err
		}
		if len(missing) == b.Parts {
			a.Tenants.hook("stored-backup/upload")
		}
		for len(missing) > 0 {
			n := min(len(missing), batchPieces, int(max(1, batchBytes/b.PartBytes)))
			if err := a.uploadParts(ctx, b, at, missing[:n], n == len(missing)); err != nil {
				return err
			}
			missing = missing[n:]
			a.Tenants.hook("stored-backup/uploaded")
		}
	}
}

// missingParts are the parts that the upload lacks. An upload that the storage does not know any
// more is restarted, unless it was completed.
func (a *Backups) missingParts(ctx context.Context, b *tenant.BackupRecord) (missing []int, err error) {
	var have []tenant.ObjectPart
	if b.UploadID != "" {
		have, err = a.Objects.Parts(ctx, b.Object, b.UploadID)
		if err != nil && tenant.StorageClassOf(err) != tenant.StorageGone {
			return nil, ofStorage(err)
		}
	}
	if b.UploadID == "" || err != nil {
		if done, err := a.isThere(ctx, b.Backup); err != nil || done {
			return nil, err
		}
		if err := a.beginUpload(ctx, b); err != nil {
			return nil, err
		}
		have = nil
	}
	size := make(map[int]int64, len(have))
	for _, p := range have {
		size[p.Number] = p.Bytes
	}
	for n := 1; n <= b.Parts; n++ {
		if _, bytes := partOf(*b, n); size[n] != bytes {
			missing = append(missing, n)
		}
	}
	return missing, nil
}

func (a *Backups) beginUpload(ctx context.Context, b *tenant.BackupRecord) error {
	upload, err := a.Objects.Begin(ctx, b.Object)
	if err != nil {
		return ofStorage(err)
	}
	ours, err := a.Store.BackupUpload(ctx, b.BackupID, upload, b.UploadID)
	if err != nil {
		return err
	}
	if !ours { // a step that was thought dead was faster
		if err := a.Objects.Abort(ctx, b.Object, upload); err != nil {
			return ofStorage(err)
		}
		return because(false, tenant.ReasonStorageAway, "another upload was begun meanwhile")
	}
	b.UploadID = upload
	return nil
}

// isThere reports whether the whole object is in the storage.
func (a *Backups) isThere(ctx context.Context, b tenant.Backup) (bool, error) {
	o, ok, err := a.Objects.Head(ctx, b.Object)
	if err != nil {
		return false, ofStorage(err)
	}
	return ok && o.Bytes == b.Bytes, nil
}

// partOf is where a part begins, and how long it is.
func partOf(b tenant.BackupRecord, number int) (offset, bytes int64) {
	offset = int64(number-1) * b.PartBytes
	return offset, min(b.PartBytes, b.Bytes-offset)
}

func (a *Backups) uploadParts(ctx context.Context, b tenant.BackupRecord, at siteAt, numbers []int, last bool) error {
	in := wire.TransferRequest{Site: at.Site, Volume: at.Volume, Backup: string(b.BackupID)}
	for _, n := range numbers {
		url, err := a.Objects.PresignPart(ctx, b.Object, b.UploadID, n, a.Settings.URLTTL)
		if err != nil {
			return ofStorage(err)
		}
		offset, bytes := partOf(b, n)
		in.Upload = append(in.Upload, wire.Piece{Number: n, Offset: offset, Bytes: bytes, URL: url})
	}
	if last && b.TakenAt != nil && b.Site != "" {
		in.Ends = &wire.BackupReport{Site: b.Site, Status: "succeeded", Bytes: b.Bytes, SHA256: b.SHA256, StartedAt: *b.TakenAt, FinishedAt: *b.TakenAt, Message: string(b.BackupID)}
	}
	out, err := a.transfer(ctx, at, "upload", string(b.BackupID), in)
	if err != nil {
		return err
	}
	if out.Failed != nil {
		return a.transferFailed(ctx, b.BackupID, out.Failed)
	}
	return a.Store.BackupMessage(ctx, b.BackupID, fmt.Sprintf("part %d of %d is uploaded", numbers[len(numbers)-1], b.Parts))
}

// transferFailed records on the row why a transfer is stuck, and gives the error its type. A
// missing backup is permanent: nothing brings it back.
func (a *Backups) transferFailed(ctx context.Context, id prego.BackupID, f *wire.TransferFailed) error {
	message := fmt.Sprintf("part %d: %s: %s", f.Number, f.Code, f.Message)
	if err := a.Store.BackupMessage(ctx, id, message); err != nil {
		return err
	}
	return because(f.Code == wire.FailedNoBackup || f.Code == wire.FailedUnreadable, prego.Reason(f.Code), message)
}

// transfer asks the host of a site, with a row in the audit of commands; what distinguishes the transfers of one step.
func (a *Backups) transfer(ctx context.Context, at siteAt, verb, what string, in wire.TransferRequest) (out wire.TransferResponse, err error) {
	info := activity.GetInfo(ctx)
	pieces := slices.Concat(in.Upload, in.Download)
	of := []string{"--site", in.Site}
	if in.Volume != "" {
		of = []string{"--volume", in.Volume}
	}
	cmd := server.Command{
		AuditID: fmt.Sprintf("%s-%s-%s-%s-%d-%d", info.WorkflowExecution.ID, info.WorkflowExecution.RunID, verb, what, pieces[0].Number, info.Attempt), ServerID: at.ServerID,
		WorkflowID: info.WorkflowExecution.ID, Kind: string(wire.KindTransfer), Actor: prego.ActorWorkflow,
		Args: []string{verb, of[0], of[1], in.Backup, fmt.Sprintf("%d-%d", pieces[0].Number, pieces[len(pieces)-1].Number)},
	}
	if err := a.Audit.BeginCommand(ctx, cmd); err != nil {
		return out, err
	}
	began := time.Now()
	out, err = a.Hosts.Transfer(ctx, at.ServerID, at.Addr, in)
	outcome := server.CommandOutcome{Duration: time.Since(began)}
	var ce *server.CommandError
	switch {
	case err != nil:
		outcome = server.UnknownOutcome(err, time.Since(began))
		if errors.As(err, &ce) {
			err = because(ce.Permanent, prego.Reason(wire.FailedHost), ce.Error())
		}
	default:
		code := 0
		if out.Failed != nil {
			code, outcome.Stderr = 1, out.Failed.Code+": "+out.Failed.Message
		}
		outcome.ExitCode, outcome.Stdout = &code, fmt.Sprintf("%d parts", len(out.Done))
	}
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	if kept := a.Audit.FinishCommand(record, cmd.AuditID, outcome); err == nil {
		err = kept
	}
	return out, err
}

// maxManifest bounds a manifest, in bytes: 10,000 parts take a tenth of it.
const maxManifest = 16 << 20

// SealManifest completes the upload, writes the manifest, reads it back, and records that the
// backup is stored.
func (a *Backups) SealManifest(ctx context.Context, id prego.BackupID) error {
	b, t, err := a.run(ctx, id)
	if err != nil || b.State != tenant.BackupUploading {
		return err
	}
	parts, err := a.complete(ctx, b)
	if err != nil {
		return err
	}
	a.Tenants.hook("stored-backup/completed")
	text, err := a.manifest(ctx, b, t, parts)
	if err != nil {
		return err
	}
	if err := a.Objects.Put(ctx, b.Manifest, text); err != nil {
		return ofStorage(err)
	}
	back, err := a.Objects.Get(ctx, b.Manifest, maxManifest)
	if err != nil {
		return ofStorage(err)
	}
	o, ok, err := a.Objects.Head(ctx, b.Object)
	switch {
	case err != nil:
		return ofStorage(err)
	case !bytes.Equal(back, text), !ok, o.Bytes != b.Bytes:
		return because(false, tenant.ReasonDigest, "the storage does not have what it was given")
	}
	sum := sha256.Sum256(text)
	a.Tenants.hook("stored-backup/manifest")
	if err := a.Store.BackupStored(ctx, id, hex.EncodeToString(sum[:]), o.ETag); err != nil {
		return err
	}
	a.Metrics.Ended.WithLabelValues(string(b.Kind), string(tenant.BackupStored)).Inc()
	a.Metrics.Bytes.Add(float64(b.Bytes))
	return nil
}

// complete makes an object of the parts. A repeated call finds it there; its parts are then
// not known any more.
func (a *Backups) complete(ctx context.Context, b tenant.BackupRecord) ([]tenant.ObjectPart, error) {
	parts, err := a.Objects.Parts(ctx, b.Object, b.UploadID)
	if err == nil {
		var sum int64
		for _, p := range parts {
			sum += p.Bytes
		}
		if len(parts) != b.Parts || sum != b.Bytes {
			return nil, because(false, tenant.ReasonDigest, fmt.Sprintf("the storage has %d parts with %d bytes, and %d with %d were sealed", len(parts), sum, b.Parts, b.Bytes))
		}
		_, err = a.Objects.Complete(ctx, b.Object, b.UploadID, parts)
	}
	if err != nil && tenant.StorageClassOf(err) != tenant.StorageGone {
		return nil, ofStorage(err)
	}
	done, thereErr := a.isThere(ctx, b.Backup)
	if thereErr == nil && !done {
		thereErr = because(false, tenant.ReasonStorageRefused, fmt.Sprintf("the upload is gone, and the object is not there: %v", err))
	}
	return parts, thereErr
}

// manifest is a backup's description, with a code that who can write to the bucket can't make.
func (a *Backups) manifest(ctx context.Context, b tenant.BackupRecord, t tenant.Record, parts []tenant.ObjectPart) ([]byte, error) {
	m := tenant.Manifest{
		Format: 1, Environment: a.Settings.Environment, BackupID: b.BackupID, OrgID: b.OrgID, TenantID: b.TenantID, Slug: t.Slug, Plan: t.Plan, Region: t.Region,
		ServerID: b.ServerID, Site: b.Site, Apps: t.Apps, Kind: b.Kind, TakenAt: *b.TakenAt, Object: b.Object, Bytes: b.Bytes, SHA256: b.SHA256,
		PlainBytes: b.PlainBytes, PlainSHA256: b.PlainSHA256, PartBytes: b.PartBytes, Parts: parts, Encryption: "tar, zstd, age",
		Recipient: b.Recipient, SealedIdentity: b.Sealed, KeyID: b.KeyID,
	}
	if b.VolumeID != "" {
		v, err := a.Volumes.Store.VolumeEver(ctx, b.VolumeID)
		if err != nil {
			return nil, permanentIfCoded(err)
		}
		m.Region, m.Volume = v.Region, &tenant.VolumeManifest{VolumeID: v.VolumeID, Name: v.Name, Location: v.Location, SizeBytes: v.SizeBytes, Entries: b.Entries}
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if m.MAC, err = a.Vault.MAC(b.KeyID, text); err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

// BackupEnd is why a backup was not made.
type BackupEnd struct {
	BackupID prego.BackupID    `json:"backup_id"`
	Kind     tenant.BackupKind `json:"kind"`
	Reason   prego.Reason      `json:"reason"`
	Message  string            `json:"message"`
}

// FailBackup records it.
func (a *Backups) FailBackup(ctx context.Context, in BackupEnd) error {
	a.Metrics.Ended.WithLabelValues(string(in.Kind), string(in.Reason)).Inc()
	return a.Store.BackupFailed(ctx, in.BackupID, in.Reason, in.Message)
}

// ClearHost deletes a backup's files from the host, and begins the backups that waited for it. A site that has moved
// took the files along, or left them to be erased with the rest.
func (a *Backups) ClearHost(ctx context.Context, id prego.BackupID) error {
	b, t, err := a.runOnHost(ctx, id)
	if err != nil {
		return err
	}
	if b.VolumeID != "" {
		err = a.clearVolumesHost(ctx, b)
	} else {
		verb := fmt.Sprintf("%s-clear-%d", id, activity.GetInfo(ctx).Attempt)
		_, err = a.Tenants.forTenant(ctx, t, verb, a.Tenants.Settings.CommandTimeout, "--site", b.Site, "delete-backup", string(id))
	}
	if err != nil {
		return err
	}
	if _, err := a.admit(ctx); err != nil {
		a.Log.Warn("the next backups are not begun; the look begins them", zap.Error(err))
	}
	return nil
}

// EraseBackup deletes the objects of a backup that failed or is being deleted, and every upload of
// them, until the storage reports none.
func (a *Backups) EraseBackup(ctx context.Context, id prego.BackupID) error {
	b, _, err := a.run(ctx, id)
	if err != nil || (b.State != tenant.BackupFailed && b.State != tenant.BackupDeleting) ||
		b.KeptUntil != nil {
		return err
	}
	if b.Object != "" {
		// The manifest first: a backup without one is not taken for whole.
		for _, key := range []string{b.Manifest, b.Object} {
			if err := a.Objects.Delete(ctx, key); err != nil {
				return ofStorage(err)
			}
		}
		a.Tenants.hook("stored-backup/deleted")
		uploads, err := a.Objects.Uploads(ctx, b.Object)
		if err != nil {
			return ofStorage(err)
		}
		for _, u := range uploads {
			if err := a.Objects.Abort(ctx, u.Key, u.ID); err != nil {
				return ofStorage(err)
			}
		}
	}
	return a.Store.BackupGone(ctx, id, b.Object)
}

// RetainBackups deletes what retention does not keep of a tenant's backups.
func (a *Backups) RetainBackups(ctx context.Context, tenantID prego.TenantID) (deleted int, err error) {
	p, err := a.Store.BackupPolicy(ctx, tenantID)
	if err != nil {
		return 0, permanentIfCoded(err)
	}
	all, err := a.Store.Retained(ctx, tenantID)
	return a.giveUpSurplus(ctx, tenant.BackupLeft{TenantID: tenantID}, p, all, err)
}

// giveUpSurplus starts the deletion of the backups of a tenant or a volume that its policy does not keep.
func (a *Backups) giveUpSurplus(
	ctx context.Context, of tenant.BackupLeft, p tenant.BackupPolicy, all []tenant.Retained, err error,
) (deleted int, _ error) {
	if err != nil {
		return 0, err
	}
	for _, of.BackupID = range tenant.Surplus(all, p.Retention, time.Now()) {
		if err := a.giveUp(ctx, of); err != nil {
			return deleted, err
		}
		deleted++
	}
	return deleted, nil
}

// giveUp starts the deletion of a backup, unless it was put on hold or is being restored meanwhile.
func (a *Backups) giveUp(ctx context.Context, b tenant.BackupLeft) error {
	of := tenant.BackupOwner{TenantID: b.TenantID, VolumeID: b.VolumeID}
	_, err := a.Store.DeleteBackup(impact.Standing(ctx, "retention"), of, b.BackupID, "retention")
	if prego.CodeOf(err) == prego.CodeBackupNotReady {
		return nil
	}
	if err == nil {
		_, err = a.Runs.EnsureBackupDelete(ctx, b.BackupID)
	}
	return err
}

// BackupWanted asks for a backup on behalf of a run that waits for it.
type BackupWanted struct {
	TenantID prego.TenantID    `json:"tenant_id"`
	Kind     tenant.BackupKind `json:"kind"`
	BackupID prego.BackupID    `json:"backup_id,omitempty"` // of an earlier answer
}

// BackupGranted identifies the backup and reports whether it is already stored.
type BackupGranted struct {
	BackupID prego.BackupID `json:"backup_id"`
	Stored   bool           `json:"stored,omitempty"`
	// None: the tenant has no site.
	None bool `json:"none,omitempty"`
}

// WantBackup accepts a backup that a run waits for. A tenant has one final backup, unless it
// failed. While another backup of the tenant is under way this is tried again.
func (a *Backups) WantBackup(ctx context.Context, in BackupWanted) (BackupGranted, error) {
	t, err := a.Tenants.Store.TenantRecord(ctx, in.TenantID)
	if err != nil {
		return BackupGranted{}, fromStore(err)
	}
	keep := time.Duration(0)
	if in.Kind == tenant.BackupFinal {
		keep = a.Settings.FinalFor
		b, err := a.Store.FinalBackup(ctx, in.TenantID)
		if err != nil {
			return BackupGranted{}, err
		}
		if b != nil && (b.State == tenant.BackupStored || b.State.UnderWay()) {
			return BackupGranted{BackupID: b.BackupID, Stored: b.State == tenant.BackupStored}, nil
		}
	}
	if t.Allocation == nil || t.Site == "" {
		return BackupGranted{None: true}, nil
	}
	id := in.BackupID
	if id == "" {
		id = a.NewID()
	}
	b, err := a.Store.RequestBackup(ctx, tenant.BackupAsked{ID: id, TenantID: in.TenantID, Kind: in.Kind, By: string(prego.ActorWorkflow), AtOnce: true, Keep: keep})
	if err != nil && prego.CodeOf(err) != prego.CodeBackupUnderWay {
		return BackupGranted{}, permanentIfCoded(err)
	}
	return BackupGranted{BackupID: b.BackupID, Stored: b.State == tenant.BackupStored}, err
}

// ExpireBackups lets a purged tenant's backups go, the last one after a while.
func (a *Backups) ExpireBackups(ctx context.Context, tenantID prego.TenantID) error {
	return a.Store.ExpireBackups(ctx, tenantID, a.Settings.FinalFor)
}
