package wire

import (
	"strings"
	"time"
)

// KindTransfer moves pieces of sealed backups between a host and object storage; nothing is
// run. The process that faces the network does it by itself, with URLs that are signed for
// this. The body is a TransferRequest, the answer a TransferResponse.
const KindTransfer CommandKind = "transfer"

// Codes of what went wrong with a backup: in TransferResponse, and after "site: " in the last
// lines that a verb writes to stderr.
const (
	FailedDiskFull   = "disk_full"
	FailedNoBackup   = "backup_missing"    // or too short
	FailedUnreadable = "backup_unreadable" // truncated, changed, or of another key
	FailedDigest     = "digest_mismatch"
	FailedIncomplete = "restore_incomplete" // of a restored site: something of the backup is not there
	// FailedURLExpired is also what a wrong clock looks like.
	FailedURLExpired = "url_expired"
	FailedRefused    = "storage_refused"
	FailedAway       = "storage_unreachable"
	FailedNoSite     = "site_missing"
	FailedHost       = "host_failed" // the process that has the files did not answer
	// Of volumes only.
	FailedTooMany    = "too_many_files"
	FailedNotStill   = "freeze_too_long" // its last pass took longer than a file system may be frozen
	FailedNoVolume   = "volume_missing"  // it is not mounted on this host
	FailedInterrupts = "interrupted"     // the volume was wanted elsewhere
	// Of databases that move.
	FailedUnsupported = "data_unsupported" // it has parts that can't move
	FailedDiffers     = "data_differs"     // the arrived data differs from the source
)

// Grouped writes a digest in hex in groups of 16: a longer run of hex in a command's output is
// taken for a key, and masked.
func Grouped(digest string) string {
	var groups []string
	for len(digest) > 16 {
		groups, digest = append(groups, digest[:16]), digest[16:]
	}
	return strings.Join(append(groups, digest), ":")
}

// Ungrouped is the inverse of Grouped.
func Ungrouped(text string) string { return strings.ReplaceAll(text, ":", "") }

// SealedBackup is the result of seal-backup: sizes in bytes, digests SHA-256 in hex (Grouped).
type SealedBackup struct {
	Name        string       `json:"name"`
	Recipient   string       `json:"recipient"`
	PlainBytes  int64        `json:"plain_bytes"` // of the archive before it was compressed
	PlainSHA256 string       `json:"plain_sha256"`
	Bytes       int64        `json:"bytes"`
	SHA256      string       `json:"sha256"`
	Files       []SealedFile `json:"files"`
	TakenAt     time.Time    `json:"taken_at"` // of the oldest file, by the host's clock
}

// PackedSite is the result of pack-site: an archive of a site's directory. Its files are only counted.
type PackedSite struct {
	SealedBackup
	All     int `json:"all"`     // files that the site has
	Changed int `json:"changed"` // of them, those in the archive
}

// PackedData is the result of pack-data: an archive of a site's database, or of its changes.
type PackedData struct {
	SealedBackup
	Tables int   `json:"tables"` // that the database has
	Whole  int   `json:"whole"`  // tables that are in the archive with all their rows
	Keys   int64 `json:"keys"`   // rows of others that changed
	Rows   int64 `json:"rows"`   // in the archive
}

// SealedFile is a file of the archive.
type SealedFile struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// MaxPiece is how large a piece may be: the host holds one in memory.
const MaxPiece = 64 << 20

// MaxPieces is how many one request may have.
const MaxPieces = 64

// SealedVolume is the result of the verb seal of KindVolume. Sizes are in bytes.
type SealedVolume struct {
	SealedBackup
	Entries int   `json:"entries"` // files, directories and links
	Content int64 `json:"content"` // of all files
	Passes  int   `json:"passes"`  // over the files, the one while it was frozen among them
	Last    int64 `json:"last"`    // of the files that were read while it was frozen
	Skipped int   `json:"skipped"` // sockets and devices
	// Frozen means that writes were blocked while the last pass ran, for FrozenMS.
	Frozen   bool  `json:"frozen"`
	FrozenMS int64 `json:"frozen_ms"`
}

// OpenedVolume is the result of the verbs open and try of KindVolume: all of it was read again and
// is as in the backup.
type OpenedVolume struct {
	Name    string `json:"name"`
	Entries int    `json:"entries"`
	Bytes   int64  `json:"bytes,omitempty"` // of the files, without holes
}

// TransferRequest asks for an upload of pieces, each to its own URL, or for a download of
// pieces of one object, in order. URLs are secrets.
type TransferRequest struct {
	ServerID string      `json:"serverId"`
	Kind     CommandKind `json:"kind"` // KindTransfer
	// Site or Volume (the provider's id) is what it is of.
	Site     string  `json:"site,omitempty"`
	Volume   string  `json:"volume,omitempty"`
	Backup   string  `json:"backup"`
	Upload   []Piece `json:"upload,omitempty"`
	Download []Piece `json:"download,omitempty"`
	// Ends is set by the request with the last pieces of an upload, and holds what the host
	// then reports to the gateway (PathBackupReport).
	Ends *BackupReport `json:"ends,omitempty"`
}

// Piece is a range of a sealed backup.
type Piece struct {
	Number int    `json:"number"` // of the part, from 1
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	URL    string `json:"url"`
}

// TransferResponse lists the completed pieces, in order, until the first failure.
type TransferResponse struct {
	Done   []PieceDone     `json:"done"`
	Failed *TransferFailed `json:"failed,omitempty"`
}

// PieceDone is a piece that was transferred.
type PieceDone struct {
	Number int    `json:"number"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	ETag   string `json:"etag,omitempty"` // of the storage, for an upload
}

// TransferFailed is why a piece was not transferred, after retries where they make sense.
type TransferFailed struct {
	Number  int    `json:"number"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// IsFailure reports whether a word is one of the codes above.
func IsFailure(code string) bool {
	switch code {
	case FailedDiskFull, FailedNoBackup, FailedUnreadable, FailedDigest, FailedIncomplete, FailedURLExpired, FailedRefused, FailedAway, FailedNoSite, FailedHost,
		FailedTooMany, FailedNotStill, FailedNoVolume, FailedInterrupts, FailedUnsupported, FailedDiffers:
		return true
	}
	return false
}

// CheckedSite is what check-restored found in a site that was restored.
type CheckedSite struct {
	Tables int64    `json:"tables"`
	Rows   int64    `json:"rows"` // in the tables of the backup
	Files  int64    `json:"files"`
	Apps   []string `json:"apps"`
}
