package edge

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// forms are the lines of HAProxy's configuration, all that it ever has.
var forms = regexp.MustCompile(`^(global|defaults|(frontend|backend|listen) [A-Za-z0-9._:\[\]-]+|` +
	`\tserver u\d+ [0-9a-f.:\[\]]+ (weight \d+( ssl verify none sni req\.hdr\(host\),field\(1,:\))?|pool-purge-delay 2s)|` +
	`\tbind (unix@/run/x/[a-z0-9.-]+ mode 666|[0-9a-f.:\[\]]+( v4v6)?)|` +
	`\t(fd-hard-limit|no log|hard-stop-after|mode|timeout|retries|option|balance|use_backend|http-reuse|http-request|errorfile|http-error|acl|default-server|http-response|http-after-response|errorfiles)[^\n]*)$`)

// FuzzDocument: a document is refused, or becomes configurations with its content and not a line more, with any names
// and addresses.
func FuzzDocument(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"hosts":[{"name":"a.example.com","route":"rt-1","state":"serving","upstreams":[{"address":"10.0.0.2:80","weight":3}],"upstream_tls":true}]}`,
		`{"hosts":[{"name":"a.example.com","tenant":"t-1","site":"a.example.com","state":"serving","upstreams":[{"address":"[fd00::2]:80"}]}]}`,
		`{"tcp":[{"route":"rt-2","port":5432,"upstreams":[{"address":"10.0.0.2:5432"}]},{"route":"rt-3","address":"127.0.0.2","port":1,"upstreams":[{"address":"10.0.0.3:1"}]}]}`,
		`{"hosts":[{"name":"a","route":"x\n\tbind :1","state":"serving"}]}`,
		`{"hosts":[{"name":"a","site":"x sites-1\ny","state":"serving","upstreams":[{"address":"10.0.0.2:80"}]}]}`,
		`{"tcp":[{"route":"rt-2","port":5432,"upstreams":[{"address":"[fe80::1%x weight 1\n\tbind :1]:5432"}]}]}`,
		`{"tcp":[{"route":"rt-2","address":"fe80::1%x\n\tbind :1","port":5432,"upstreams":[{"address":"10.0.0.2:5432"}]}]}`,
		`{"challenges":[{"host":"a.example.com","token":"../x","key_authorization":"{env.HOME}"}]}`,
	} {
		f.Add([]byte(s))
	}
	settings := Settings{RunDir: "/run/x", sitesDir: "/run/x/names", namesDir: "/run/x/sites", Own: func(string) bool { return true }}
	f.Fuzz(func(t *testing.T, text []byte) {
		var d wire.EdgeDocument
		if json.Unmarshal(text, &d) != nil {
			return
		}
		if config, err := Caddy(d, nil, settings); err == nil {
			require.True(t, json.Valid(config))
		}
		config, names, err := HAProxy(d, settings)
		if err != nil {
			return
		}
		sections := map[string]bool{}
		for line := range strings.Lines(config) {
			line = strings.TrimSuffix(line, "\n")
			require.Regexp(t, forms, line)
			if kind, name, ok := strings.Cut(line, " "); ok && !strings.HasPrefix(line, "\t") {
				sections[kind+" "+name] = true
			}
		}
		for section := range sections {
			kind, name, _ := strings.Cut(section, " ")
			known := name == "routes" || name == "nowhere" || strings.HasPrefix(name, "sockets-")
			for _, h := range d.Hosts {
				known = known || kind == "backend" && name == h.Route
				for _, u := range h.Upstreams {
					known = known || kind == "backend" && name == backendOf(u.Address)
				}
			}
			for _, tcp := range d.TCP {
				known = known || kind == "listen" && name == tcp.Route
			}
			require.True(t, known, "%q is in no document", section)
		}
		places := placesOf(d)
		require.Equal(t, len(places), strings.Count(names, "\n"))
		for line := range strings.Lines(names) {
			site, backend, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			require.Equal(t, backendOf(places[site]), backend)
			_, err := netip.ParseAddrPort(places[site])
			require.NoError(t, err)
		}
	})
}
