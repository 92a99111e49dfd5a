package console

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBarsNameWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	o, err := decoded([]byte(`{"progress": [
		{"kind": "drain", "subject": {"kind": "server", "id": "app-3", "name": "app-3"},
			"unit": "tenants moved",
			"done": 2, "total": 7, "running": true,
			"expected_at": "` + noon.Add(3*time.Minute).Format(time.RFC3339) + `",
			"current": [{"kind": "tenant", "id": "t-1", "name": "acme-eu", "state": "copying"}],
			"message": "app-3 is being emptied: 2 of 7 tenants moved, acme-eu copying"},
		{"kind": "restore", "subject": {"kind": "tenant", "id": "t-2", "name": "corp"}, "done": 0, "total": 0,
			"expected_at": "` + noon.Add(-time.Minute).Format(time.RFC3339) + `", "current": [],
			"message": "corp is being restored"}]}`))
	require.NoError(t, err)
	bars := worksOf(o, noon)
	require.Equal(t, []value{
		{},
		{Text: "app-3", Href: "/console/servers/app-3"},
		{Text: " is being emptied: 2 of 7 tenants moved, "},
		{Text: "acme-eu", Href: "/console/tenants/t-1"},
		{Text: " copying"},
	}, bars[0].Text)
	require.Equal(t, "2", bars[0].Done)
	require.Equal(t, "7", bars[0].Total)
	require.Equal(t, "in 3 min", bars[0].Left.Text)
	require.Empty(t, bars[1].Total, "nothing is counted")
	require.Equal(t, "now", bars[1].Left.Text, "an estimate never lies in the past")
	html, err := rendered("bars", bars)
	require.NoError(t, err)
	require.Contains(t, html, `max="7" value="2"`)
	require.Contains(t, html, `<progress aria-label="corp is being restored">`)
}
