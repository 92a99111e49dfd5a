package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

func TestGoldenImagesOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx := context.Background()
	for body, want := range map[string]struct {
		status int
		code   string
	}{
		`{"debian":"sid"}`:  {http.StatusUnprocessableEntity, "invalid_field"},
		`{"region":"mars"}`: {http.StatusUnprocessableEntity, "invalid_field"},
		`{"os":"plan9"}`:    {http.StatusBadRequest, "unknown_field"},
	} {
		resp, answer := b.do("POST", "/v1/images", "operator", js, body)
		require.Equal(t, want.status, resp.StatusCode, "%s: %s", body, answer)
		require.Equal(t, want.code, as[api.Problem](t, answer).Code)
	}
	b.sells()
	resp, answer := b.do("POST", "/v1/images", "operator", js, `{"debian":"13"}`)
	require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "the provider has no such image")
	require.Equal(t, "image_unknown", as[api.Problem](t, answer).Code)
	resp, _ = b.do("POST", "/v1/images", "viewer", js, `{}`)
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	require.Empty(t, b.runs.asked())

	resp, answer = b.do("POST", "/v1/images", "operator", js, `{"debian":"12","region":"us"}`)
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", answer)
	g := as[api.GoldenImage](t, answer)
	require.Equal(t, "debian-12", g.BaseImage)
	require.EqualValues(t, "us", g.Region)
	require.Equal(t, string("image-build/"+g.ImageId), g.WorkflowId)
	require.Equal(t, []string{"image build"}, b.runs.asked())
	resp, answer = b.do("POST", "/v1/images", "operator", js, `{"debian":"12"}`)
	require.Equal(t, http.StatusConflict, resp.StatusCode)
	require.Equal(t, "golden_image_building", as[api.Problem](t, answer).Code)

	path := "/v1/images/" + g.ImageId
	resp, answer = b.do("DELETE", string(path), "operator", "", "")
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", answer)
	require.Equal(t, "image cancel", b.runs.asked()[1], "a running build is cancelled")

	set := func(sql string) {
		_, err := b.pool.Exec(ctx, `UPDATE golden_images SET `+sql)
		require.NoError(t, err)
	}
	set(`status = 'ready', provider_image_id = '4711', current = true, verified_at = now()`)
	resp, answer = b.do("DELETE", string(path), "operator", "", "")
	require.Equal(t, http.StatusConflict, resp.StatusCode)
	require.Equal(t, "golden_image_current", as[api.Problem](t, answer).Code)
	resp, answer = b.do("POST", create, "operator", js, strings.Replace(valid, `"spec":{}`, `"spec":{"image":"4711"}`, 1))
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "a new image is not in the catalog yet: %s", answer)

	set(`current = false`)
	_, err := b.pool.Exec(ctx, `UPDATE servers SET image = '4711'`)
	require.NoError(t, err)
	resp, answer = b.do("DELETE", string(path), "operator", "", "")
	require.Equal(t, http.StatusConflict, resp.StatusCode)
	require.Equal(t, "golden_image_in_use", as[api.Problem](t, answer).Code)
	b.set("app-1", server.Active)
	resp, answer = b.do("DELETE", string(path), "operator", "", "")
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "a server that runs needs its image no longer: %s", answer)
	require.EqualValues(t, "deleting", as[api.GoldenImage](t, answer).Status)
	require.Equal(t, "image delete", b.runs.asked()[len(b.runs.asked())-1])

	set(`status = 'deleted', deleted_at = now()`)
	list := func(query string) []api.GoldenImage {
		resp, answer := b.do("GET", "/v1/images"+query, "viewer", "", "")
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)
		return as[api.GoldenImagePage](t, answer).Images
	}
	require.Empty(t, list(""))
	require.Len(t, list("?all=true"), 1)
	resp, answer = b.do("GET", "/v1/images/img-none", "viewer", "", "")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	require.Equal(t, "golden_image_not_found", as[api.Problem](t, answer).Code)
}
