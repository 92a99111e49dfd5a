package tenant

// ImportOutcome is what became of a backup that was found in the storage.
type ImportOutcome string

// The outcomes.
const (
	ImportKnown    ImportOutcome = "known"    // its row is there
	ImportBackup   ImportOutcome = "imported" // its row is written
	ImportTenant   ImportOutcome = "imported with its tenant"
	ImportVolume   ImportOutcome = "imported with its volume"
	ImportDeleting ImportOutcome = "deleted" // its row is deleted: the objects are left
	ImportRefused  ImportOutcome = "refused"
)
