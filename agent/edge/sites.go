package edge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// A site's WebSockets go through HAProxy, always in the same one of some frontends: HAProxy can list a connection's
// frontend and backend, so the connections of a moved site are ended, and hardly any other.
const (
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
	lookup := fmt.Sprintf("%%[req.fhdr(%s),map_str(%s,nowhere)]", wire.HeaderSite, filepath.Join(s.sitesDir, namesFile(names)))
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
