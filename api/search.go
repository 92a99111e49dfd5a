package api

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

// Search finds things by ids, names and addresses.
func (a *API) Search(c echo.Context, p SearchParams) error {
	q := ops.SearchQuery{Text: strings.TrimSpace(p.Q), Kinds: deref(p.Kind), Limit: 50}
	if p.Limit != nil {
		q.Limit = *p.Limit
	}
	if len([]rune(q.Text)) < 2 {
		return prego.Invalid("q", "must be 2 to 200 characters, not counting spaces around them")
	}
	found, more, err := a.d.Store.Search(c.Request().Context(), q)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, SearchResults{Results: views(found, foundView), Truncated: more})
}

func foundView(f ops.Found) SearchResult {
	out := viewOf[SearchResult](f)
	out.Href = ObjectPath(f.Kind, f.ID, f.Within)
	return out
}

// paths are the paths of objects by kind; %i is the id, %w its parent's.
var paths = map[string]string{
	"server": "/v1/servers/%i", "tenant": "/v1/tenants/%i", "org": "/v1/orgs/%i", "app": "/v1/apps/%i", "env": "/v1/envs/%i", "group": "/v1/groups/%i",
	"instance": "/v1/instances/%i", "route": "/v1/envs/%w/routes/%i", "ipv4": "/v1/envs/%w/ipv4", "volume": "/v1/volumes/%i", "attachment": "/v1/volumes/%w",
	"domain": "/v1/domains/%i", "certificate": "/v1/certificates/%i", "snapshot": "/v1/tenants/%w/snapshots/%i", "restore": "/v1/tenants/%w/restores/%i",
	"volume_restore": "/v1/volumes/%w/restores/%i", "move": "/v1/tenants/%w/moves/%i", "resource": "/v1/servers/%w", "fleet": "/v1/fleets/%i", "policy": "/v1/policies/%i",
	"placement_pool": "/v1/placement-pools/%i", "image": "/v1/images/%i", "release": "/v1/releases/%i", "agent_release": "/v1/agent-releases/%i",
	"rebalance": "/v1/rebalances/%i", "patch_wave": "/v1/patch-waves/%i", "registry": "/v1/registries/%i", "operation": "/v1/operations/%i",
	"backup": "/v1/%o/%w/backups/%i", "drill": "/v1/%o/%w/drills",
}

// ObjectPath is the path of an object in the API, "" if it has none.
func ObjectPath(kind, id, within string) string {
	path := paths[kind]
	if strings.Contains(path, "%w") && within == "" {
		return ""
	}
	owner := "tenants"
	if strings.HasPrefix(within, "vol-") {
		owner = "volumes"
	}
	return strings.NewReplacer("%i", url.PathEscape(id), "%w", url.PathEscape(within), "%o", owner).Replace(path)
}
