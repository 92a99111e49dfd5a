package edge

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego/agent/wire"
)

// A file that Caddy reads with each request ({file.…}) holds the place of a site: a move changes no configuration of
// Caddy's, and so closes no connection. A site's WebSockets go through HAProxy, always in the same one of some
// frontends: HAProxy can list a connection's frontend and backend, so the connections of a moved site are ended, and
// hardly any other.
const (
	sitesDir      = "caddy/sites"     // below the edge's directory
	addressesDir  = "caddy/addresses" // beside it
	socketsPrefix = "haproxy-sockets-"
	socketGroups  = 16
)

// socketsOf is the group of a site's WebSockets.
func socketsOf(site string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(site))
	return strconv.Itoa(int(h.Sum32() % socketGroups))
}

// placesOf are the addresses of sites by their names. All names of a site have the same place.
func placesOf(d wire.EdgeDocument) map[string]string {
	at := map[string]string{}
	for _, h := range d.Hosts {
		if h.Route == "" && len(h.Upstreams) > 0 && h.Site != "" {
			at[h.Site] = h.Upstreams[0].Address
		}
	}
	return at
}

func backendOf(address string) string {
	return "sites-" + strings.NewReplacer("[", "", "]", "").Replace(address)
}

// sites are the frontends and backends of sites' WebSockets, and names the file that maps a name to a backend: a line
// for each, found in one tree. The file is named by its content, so that a configuration and its names belong
// together whenever HAProxy reads them.
func sites(b *strings.Builder, d wire.EdgeDocument, s Settings) (names string) {
	places := placesOf(d)
	var file strings.Builder
	addresses := map[string]bool{}
	for _, site := range slices.Sorted(maps.Keys(places)) {
		addresses[places[site]] = true
		fmt.Fprintf(&file, "%s %s\n", site, backendOf(places[site]))
	}
	names = file.String()
	lookup := fmt.Sprintf("%%[req.fhdr(%s),map_str(%s,nowhere)]", wire.HeaderSite, filepath.Join(s.namesDir, namesFile(names)))
	frontend := func(name, socket string) {
		fmt.Fprintf(b, "frontend %s\n\tmode http\n\tbind unix@%s/%s mode 666\n\toption idle-close-on-response\n\ttimeout http-request 30s\n\tuse_backend %s\n", name, s.RunDir, socket, lookup)
	}
	for n := range socketGroups { // even without sites: their sockets stay the same
		group := strconv.Itoa(n)
		frontend(socketsFrontend(group), socketsPrefix+group+".sock")
	}
	fmt.Fprintf(b, "backend nowhere\n\tmode http\n%s", failedPages)
	for _, address := range slices.Sorted(maps.Keys(addresses)) {
		// A restarting container takes no connections for some seconds, while requests wait. Idle connections are
		// closed before the other side might.
		fmt.Fprintf(b, "backend %s\n\tmode http\n\thttp-reuse safe\n\tretries 5\n%s\tserver u1 %s pool-purge-delay 2s\n", backendOf(address), failedPages, netip.MustParseAddrPort(address))
	}
	return names
}

func namesFile(names string) string {
	sum := sha256.Sum256([]byte(names))
	return namesPrefix + hex.EncodeToString(sum[:8])
}

// namesPrefix begins the names of files of names, which are beside HAProxy's configuration.
const namesPrefix = "sites-"

// movedSockets are the WebSockets of sites that have another place in the second document, or are in another network.
func movedSockets(before, after wire.EdgeDocument) map[session]bool {
	out, places := map[session]bool{}, placesOf(after)
	for _, h := range after.Hosts {
		if len(h.Via) > 0 {
			places[h.Site] = h.Via[0].Address
		}
	}
	for site, address := range placesOf(before) {
		if now := places[site]; now != "" && now != address {
			out[session{socketsFrontend(socketsOf(site)), backendOf(address)}] = true
		}
	}
	return out
}

func socketsFrontend(group string) string { return "sockets-" + group }

// placed makes Caddy find sites at their places: new or moved sites, or all if the files are not known. A site's file
// is a link to a file that all sites at its address share: 10,000 links are created in a tenth of the time of 10,000
// files, and few files are on the disk before anything leads to them.
func (e *Edge) placed(places, known map[string]string) error {
	shared := map[string]os.FileInfo{}
	for _, site := range slices.Sorted(maps.Keys(places)) {
		address := places[site]
		if known[site] == address {
			continue
		}
		if shared[address] == nil {
			info, err := e.address(address)
			if err != nil {
				return err
			}
			shared[address] = info
		}
		if err := link(e.addressFile(address), shared[address], filepath.Join(e.dir, sitesDir, site)); err != nil {
			return err
		}
	}
	return nil
}

func (e *Edge) addressFile(address string) string {
	return filepath.Join(e.dir, addressesDir, address)
}

// address makes the file of an address.
func (e *Edge) address(address string) (os.FileInfo, error) {
	file := e.addressFile(address)
	if there, err := os.ReadFile(file); err != nil || string(there) != address {
		if err := e.write(filepath.Join(addressesDir, address), []byte(address)); err != nil {
			return nil, err
		}
	}
	return os.Stat(file)
}

// link creates a site's file, or replaces it atomically.
func link(shared string, info os.FileInfo, file string) error {
	err := os.Link(shared, file)
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	if there, err := os.Stat(file); err == nil && os.SameFile(there, info) {
		return nil
	}
	draft := file + placeDraft
	if err := os.Remove(draft); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Link(shared, draft); err != nil {
		return err
	}
	return os.Rename(draft, file)
}

// placeDraft ends the name of a file that is about to take another one's place: no site's name does.
const placeDraft = "~"

// keepPlaces is how long the file of a site that is gone stays: a request that Caddy took under the configuration
// before may be about to read it, and would be answered with 502.
const keepPlaces = 10 * time.Second

// dropPlaces forgets sites that were gone for a while, and addresses at which there is none any more.
func (e *Edge) dropPlaces(before, places map[string]string, now time.Time) {
	used := map[string]bool{}
	for _, address := range places {
		used[address] = true
	}
	for site, address := range before {
		if _, there := places[site]; !there {
			e.gone[site] = now
		}
		if !used[address] {
			used[address] = true
			_ = os.Remove(e.addressFile(address))
		}
	}
	for site, since := range e.gone {
		_, there := places[site]
		if !there && now.Sub(since) < keepPlaces {
			continue
		}
		delete(e.gone, site)
		if !there {
			_ = os.Remove(filepath.Join(e.dir, sitesDir, site))
		}
	}
}

// dropStrangers deletes the files of sites that are in no document, as the life before may have left them.
func (e *Edge) dropStrangers(places map[string]string) error {
	dir := filepath.Join(e.dir, sitesDir)
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, known := places[f.Name()]; !known {
			_ = os.Remove(filepath.Join(dir, f.Name()))
		}
	}
	return nil
}
