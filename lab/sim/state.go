package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// state is everything that the cloud stores.
type state struct {
	NextID      int64                            `json:"next_id"`
	Servers     map[int64]*server                `json:"servers"`
	Actions     map[int64]*schema.Action         `json:"actions"`
	Volumes     map[int64]*schema.Volume         `json:"volumes"`
	Firewalls   map[int64]*schema.Firewall       `json:"firewalls"`
	Groups      map[int64]*schema.PlacementGroup `json:"placement_groups"`
	PrimaryIPs  map[int64]*schema.PrimaryIP      `json:"primary_ips"`
	FloatingIPs map[int64]*schema.FloatingIP     `json:"floating_ips"`
	Snapshots   map[int64]*schema.Image          `json:"snapshots"`
	Networks    map[int64]*schema.Network        `json:"networks"`
	Zones       map[int64]*zone                  `json:"zones"`
	Ledger      []*LedgerEntry                   `json:"ledger"`
	StockOut    map[string]bool                  `json:"stock_out"` // "type/location"
	// Retiring are deprecations, by "type/location"; the provider announces them per location.
	Retiring map[string]schema.DeprecationInfo `json:"retiring"`
}

// server is a server, including what the API never shows.
type server struct {
	schema.Server
	UserData string `json:"user_data"`
	Booted   bool   `json:"booted"` // cloud-init has run
	// From is the snapshot that its disk is still to be copied from; 0 for none.
	From int64 `json:"from,omitempty"`
	// Inside is where its host is reached while it has no public IPv4 address; not over the API.
	Inside string `json:"inside,omitempty"`
	// Interfaces are the numbers of its private interfaces, from 1, by network.
	Interfaces map[int64]int `json:"interfaces,omitempty"`
}

// LedgerEntry is one billed resource from its creation to its deletion, with what it costs a
// month since its last change.
type LedgerEntry struct {
	Kind     string            `json:"kind"`
	ID       int64             `json:"id"`
	Name     string            `json:"name"`
	Type     string            `json:"type,omitempty"`
	Location string            `json:"location,omitempty"`
	Labels   map[string]string `json:"labels"`
	Monthly  float64           `json:"monthly_eur"`
	Opened   time.Time         `json:"opened_at"`
	Closed   *time.Time        `json:"closed_at"`
}

func (st *state) load(path string) error {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("sim state: %w", err)
	}
	if err == nil {
		if err := json.Unmarshal(b, st); err != nil {
			return fmt.Errorf("sim state %s: %w", path, err)
		}
	}
	if st.NextID == 0 {
		st.NextID = 1_000_000
	}
	initMap(&st.Servers)
	initMap(&st.Actions)
	initMap(&st.Volumes)
	initMap(&st.Firewalls)
	initMap(&st.Groups)
	initMap(&st.PrimaryIPs)
	initMap(&st.FloatingIPs)
	initMap(&st.Snapshots)
	initMap(&st.Networks)
	initMap(&st.Zones)
	initMap(&st.StockOut)
	initMap(&st.Retiring)
	return nil
}

func initMap[K comparable, V any](m *map[K]V) {
	if *m == nil {
		*m = make(map[K]V)
	}
}

func (st *state) save(path string) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (st *state) id() int64 {
	st.NextID++
	return st.NextID
}

func (st *state) open(e LedgerEntry) {
	e.Opened = time.Now().UTC()
	st.Ledger = append(st.Ledger, &e)
}

func (st *state) close(kind string, id int64) {
	now := time.Now().UTC()
	st.current(kind, id, func(e *LedgerEntry) { e.Closed = &now })
}

// current are the open entries of a resource.
func (st *state) current(kind string, id int64, change func(e *LedgerEntry)) {
	for _, e := range st.Ledger {
		if e.Kind == kind && e.ID == id && e.Closed == nil {
			change(e)
		}
	}
}

// reprice notes what a resource costs from now on, and its type if that changed.
func (st *state) reprice(kind string, id int64, typ string, monthly float64) {
	st.current(kind, id, func(e *LedgerEntry) {
		e.Monthly = monthly
		if typ != "" {
			e.Type = typ
		}
	})
}

func (st *state) rename(kind string, id int64, name string) {
	st.current(kind, id, func(e *LedgerEntry) { e.Name = name })
}

func (st *state) relabel(kind string, id int64, labels map[string]string) {
	st.current(kind, id, func(e *LedgerEntry) { e.Labels = labels })
}
