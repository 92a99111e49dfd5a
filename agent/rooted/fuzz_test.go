package rooted

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// ruleForm are the rules of a ruleset that depend on a document.
var ruleForm = regexp.MustCompile(`^\t\t((ip6? daddr [0-9a-f.:]+ )?ip6? saddr \{ [0-9a-f.:/, ]+ \} )?tcp dport \{ [0-9, ]+ \} accept$|` +
	`^\t\tct status dnat ct direction original (ct original ip6? daddr [0-9a-f.:]+ )?meta l4proto tcp ct original proto-dst \{ [0-9, ]+ \}( ip6? saddr \{ [0-9a-f.:, ]+ \})? accept$`)

// FuzzPeersDocument: a signed document is applied, or refused with a reason while the active one stays; its ruleset
// only has lines of known forms. A document with a foreign signature, or of another server, is never applied.
func FuzzPeersDocument(f *testing.F) {
	h := agenttest.NewGateway(f).Host(f)
	key, stranger := agenttest.NewPeersKey(f, "k1"), agenttest.NewPeersKey(f, "k1")
	good := wire.PeersDocument{
		Environment: h.Config.Environment, ServerID: h.Config.ServerID, Version: 5, Address: "10.0.0.2", Control: wire.PeersControl{CIDRs: []string{"203.0.113.7/32"}, Ports: []int{443}},
		Access: []wire.PeersAccess{{Ports: []int{3306}, From: []string{"10.0.0.3"}}, {Ports: []int{80}, From: []string{wire.PeersEveryone}}},
	}
	empty := NewPeersFirewall(h, false, agenttest.Quiet())
	rules, _, err := empty.rules(wire.PeersDocument{Environment: good.Environment, ServerID: good.ServerID, Version: 1, Control: good.Control})
	require.NoError(f, err)
	fixed := map[string]bool{}
	for line := range strings.Lines(rules) {
		fixed[line] = true
	}
	for _, change := range []func(*wire.PeersDocument){
		func(*wire.PeersDocument) {}, func(d *wire.PeersDocument) { d.Control.CIDRs = nil }, func(d *wire.PeersDocument) { d.ServerID = "other" },
		func(d *wire.PeersDocument) { d.Version = -1 }, func(d *wire.PeersDocument) { d.Access[1].Ports = []int{h.Config.AgentPort} },
		func(d *wire.PeersDocument) {
			d.Address, d.Access[0].From = "fe80::1%x accept\n\t\taccept", []string{"fe80::2"}
		},
		func(d *wire.PeersDocument) { d.Access[0].From = []string{"10.0.0.3 }", "::ffff:10.0.0.3"} },
		func(d *wire.PeersDocument) { d.Access[0].Ports = []int{0, 70000} },
	} {
		d := good
		d.Access = append([]wire.PeersAccess{}, good.Access...)
		change(&d)
		text, err := json.Marshal(d)
		require.NoError(f, err)
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text []byte, ours bool) {
		var doc wire.PeersDocument
		if json.Unmarshal(text, &doc) != nil {
			return
		}
		doc.Keys = nil
		k := NewPeersFirewall(h, false, agenttest.Quiet())
		by := key
		if !ours {
			by = stranger
		}
		_, _, refused := k.accept(t.Context(), map[string]string{key.ID: key.Public}, 3, host.PeersRequest{Signed: by.Sign(t, doc)})
		rules, _, err := k.rules(doc)
		if refused != nil {
			require.NotEmpty(t, refused.Error())
			return
		}
		require.NoError(t, err)
		require.True(t, ours, "another signed it")
		require.Equal(t, []any{h.Config.Environment, h.Config.ServerID}, []any{doc.Environment, doc.ServerID})
		require.GreaterOrEqual(t, doc.Version, int64(3))
		for line := range strings.Lines(rules) {
			if !fixed[line] {
				require.Regexp(t, ruleForm, strings.TrimSuffix(line, "\n"))
			}
		}
	})
}
