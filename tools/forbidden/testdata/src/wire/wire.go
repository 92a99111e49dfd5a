package wire

type CommandKind string

const (
	KindBench CommandKind = "bench"
	KindShell CommandKind = "shell" // want `a new kind`
)
