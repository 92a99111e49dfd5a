package store_test

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prego/prego/placement"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/store"
)

func init() { //nolint:gochecknoinits // the benchmark's package can't import who imports the store
	metrics := placer.NewMetrics(prometheus.NewRegistry())
	store.NewPlacer = func(s *store.Store, policy placement.Policy) store.PlaceFunc {
		return (&placer.Placer{Store: s, Policy: policy, SiteDomain: "sites.bench", ReserveFor: time.Minute, Metrics: metrics}).Place
	}
}
