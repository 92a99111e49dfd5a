package server

import "time"

// SampleEvery is how much time one sample stands for, and SampledFor how far back they can be read.
const (
	SampleEvery = 5 * time.Minute
	SampledFor  = 24 * time.Hour
)

// Sample is what an agent reported of its host in a span of SampleEvery: there is none if it was silent
// in all of it. Figures are nil if they are unknown.
type Sample struct {
	At             time.Time // when the span began
	Load1          *float64  // as in Server
	MemoryPct      *float64
	DiskPct        *float64
	CPUPct         *float64
	WorkerSlotsPct *float64
	DBDiskPct      *float64
	RedisMemoryPct *float64
}
