package console

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPagesAreFoundByPartOfTheirNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, []found{{Kind: "page", Thing: value{Text: "Costs", Href: "/console/costs"}}}, operator.pagesNamed("OST"))
	require.Empty(t, operator.pagesNamed("nowhere"))
	b := setupLive(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"results": [{"kind": "tenant", "id": "t-1", "name": "costa", "href": "/v1/tenants/t-1"}]}`))
	})
	w, done := b.open(t.Context(), "/console/search?q=cost")
	<-done
	require.Equal(t, http.StatusOK, w.Code)
	require.Regexp(t, `(?s)data-q="cost".*href="/console/costs">Costs<.*href="/console/tenants/t-1"`, w.Body.String())
}
