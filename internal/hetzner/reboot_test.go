package hetzner_test

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

func TestReboot(t *testing.T) {
	t.Parallel()
	for verb, hard := range map[string]bool{"reboot": false, "reset": true} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			hz := p.provider(nil)
			h := p.running("app-1")
			require.NoError(t, hz.RebootServer(context.Background(), prego.ServerID(h.ProviderServerID), hard))
			require.True(t, slices.ContainsFunc(p.requests, func(r request) bool {
				return r.Method == http.MethodPost && r.Path == "/servers/"+h.ProviderServerID+"/actions/"+verb
			}), "%+v", p.requests)
			var ie *server.InfraError
			require.ErrorAs(t, hz.RebootServer(context.Background(), "4711", hard), &ie)
			require.Equal(t, server.InfraNotFound, ie.Class)
		})
	}
}
