package prego

// Each kind of id has its own type, so that two can't be swapped.
//
//nolint:revive // the names explain themselves
type (
	ServerID    string
	NetworkID   string
	TenantID    string
	OrgID       string
	AppID       string
	EnvID       string
	GroupID     string
	InstanceID  string
	RouteID     string
	DomainID    string
	VolumeID    string
	SnapshotID  string
	BackupID    string
	MoveID      string
	FleetID     string
	RebalanceID string
	// PatchWaveID names servers that are patched together.
	PatchWaveID string
	PolicyID    string
	ImageID     string
	ShardID     string
	RedisPoolID string
	// CertificateID is derived from a certificate's names.
	CertificateID string
)

// Strings converts ids to plain strings.
func Strings[T ~string](ids []T) []string { return converted[string](ids) }

// IDs converts plain strings to ids.
func IDs[T ~string](texts []string) []T { return converted[T](texts) }

func converted[To, From ~string](in []From) []To {
	if in == nil {
		return nil
	}
	out := make([]To, len(in))
	for i, s := range in {
		out[i] = To(s)
	}
	return out
}
