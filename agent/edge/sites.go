package edge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// Where a site is, a file says that Caddy reads with each request ({file.…}): a site that moves
// changes no configuration of Caddy's, and so closes no connection. Its WebSockets go through
// HAProxy, in one of some frontends, a site's always in the same one: HAProxy can tell the
// frontend and the backend of a connection, and so those of a site that has moved are ended, and
// hardly any other.
const (
	sitesDir      = "caddy/sites" // below the edge's directory
	socketsPrefix = "haproxy-sockets-"
	socketGroups  = 16
)

// socketsOf is the group of a site's WebSockets.
func socketsOf(site string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(site))
	return strconv.Itoa(int(h.Sum32() % socketGroups))
}

// placesOf are the addresses of sites by their names. A site has one place, whatever its names.
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

// sites are the frontends and backends of sites' WebSockets, and names the file by which a name leads to a
// backend: a line for each, found in one tree. The file is named by its content, so that a
// configuration and its names belong together whenever HAProxy reads them.
func sites(b *strings.Builder, d wire.EdgeDocument, s Settings) (names string, err error) {
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
	for n := range socketGroups { // those without sites, too: their sockets stay the same
		group := strconv.Itoa(n)
		frontend(socketsFrontend(group), socketsPrefix+group+".sock")
	}
	fmt.Fprintf(b, "backend nowhere\n\tmode http\n%s", failedPages)
	for _, address := range slices.Sorted(maps.Keys(addresses)) {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return "", fmt.Errorf("upstream %q: %w", address, err)
		}
		// A container that restarts takes no connection for some seconds, in which requests wait.
		// Idle connections are closed before the other side might.
		fmt.Fprintf(b, "backend %s\n\tmode http\n\thttp-reuse safe\n\tretries 5\n%s\tserver u1 %s pool-purge-delay 2s\n", backendOf(address), failedPages, at)
	}
	return names, nil
}

func namesFile(names string) string {
	sum := sha256.Sum256([]byte(names))
	return namesPrefix + hex.EncodeToString(sum[:8])
}

// namesPrefix begins the names of files of names, which are beside HAProxy's configuration.
const namesPrefix = "sites-"

// movedSockets are the WebSockets of sites that have another place in the second document.
func movedSockets(before, after wire.EdgeDocument) map[session]bool {
	out, places := map[session]bool{}, placesOf(after)
	for site, address := range placesOf(before) {
		if now := places[site]; now != "" && now != address {
			out[session{socketsFrontend(socketsOf(site)), backendOf(address)}] = true
		}
	}
	return out
}

func socketsFrontend(group string) string { return "sockets-" + group }

// placed has Caddy find sites at their places: of those that are new or have moved, and all if the
// files are not known.
func (e *Edge) placed(places, known map[string]string) error {
	for _, site := range slices.Sorted(maps.Keys(places)) {
		if known[site] == places[site] {
			continue
		}
		file := filepath.Join(e.dir, sitesDir, site)
		if err := os.WriteFile(file+placeDraft, []byte(places[site]), 0o600); err != nil {
			return err
		}
		if err := os.Rename(file+placeDraft, file); err != nil {
			return err
		}
	}
	return nil
}

// placeDraft ends the name of a file that is being written: no site's name does.
const placeDraft = "~"

// dropPlaces forgets sites that are gone.
func (e *Edge) dropPlaces(before, places map[string]string) {
	for site := range before {
		if _, there := places[site]; !there {
			_ = os.Remove(filepath.Join(e.dir, sitesDir, site))
		}
	}
}
