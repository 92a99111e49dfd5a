package edge

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// TestAnEdgeNamesTheSitesThatADocumentCloses: those that answer where the document before leads, and not where this one
// does. They stay named through later documents and restarts until they answer, or all edges may have the document.
func TestAnEdgeNamesTheSitesThatADocumentCloses(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	server := func(sites ...string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !slices.Contains(sites, r.Host) || r.Header.Get(wire.HeaderSite) != r.Host {
				w.WriteHeader(http.StatusNotFound)
			}
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	all := []string{"a.example.com", "b.example.com", "c.example.com", "d.example.com"}
	here, there := server(all...), server(all[0])
	const nowhere = "127.0.0.1:1"
	hosts := func(a, b, c, d string) (out []wire.EdgeHost) {
		for i, at := range []string{a, b, c, d} {
			if at != "" {
				out = append(out, serving(all[i], "t-"+all[i][:1], at))
			}
		}
		return out
	}
	serve := func(version int64, hosts []wire.EdgeHost) []string {
		t.Helper()
		require.NoError(t, e.Apply(context.Background(), wire.EdgeDocument{Version: version, Hosts: hosts}, nil))
		return e.Closed()
	}
	require.Empty(t, serve(1, hosts(here, here, here, nowhere)))
	closed := []string{"t-b", "t-c"}
	require.Equal(t, closed, serve(2, hosts(there, there, "", there)), "a answers there, and d did not answer")
	require.Equal(t, closed, serve(3, hosts(there, there, "", "")), "the document before was not released")

	again, err := Open(e.Edge.dir, e.proxy.settings)
	require.NoError(t, err)
	e.Edge = again
	require.Equal(t, closed, serve(3, hosts(there, there, "", "")), "it restarted")
	require.Equal(t, closed[1:], serve(4, hosts(there, here, "", "")))
	suspended := hosts(there, here, here, "")
	suspended[2].State = wire.EdgeMaintenance
	require.Equal(t, closed[1:], serve(5, suspended))
	e.Release()
	require.Empty(t, e.Closed())
	require.Empty(t, serve(6, hosts(there, here, "", "")))
	require.Equal(t, closed[:1], serve(7, hosts(there, "", "", "")))
	require.Empty(t, serve(8, hosts(there, here, "", "")), "it is open again")
}
