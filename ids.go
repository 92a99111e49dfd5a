package prego

// Each kind of id has its own type, so that two can't be swapped.
//
//nolint:revive // the names say it
type (
	ServerID    string
	TenantID    string
	OrgID       string
	AppID       string
	EnvID       string
	GroupID     string
	InstanceID  string
	RouteID     string
	VolumeID    string
	SnapshotID  string
	FleetID     string
	PolicyID    string
	ImageID     string
	ShardID     string
	RedisPoolID string
)

// Strings converts ids to plain strings.
func Strings[T ~string](ids []T) []string {
	if ids == nil {
		return nil
	}
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}

// IDs converts plain strings to ids.
func IDs[T ~string](texts []string) []T {
	if texts == nil {
		return nil
	}
	out := make([]T, len(texts))
	for i, s := range texts {
		out[i] = T(s)
	}
	return out
}
