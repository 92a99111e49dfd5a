package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/need"
)

// replaced is what PUTs replace: the first body creates it where a PUT does, and each of
// the others differs from it.
var replaced = map[string][]string{
	"/v1/placement-pools/gpu":         {`{"require":["a"]}`, `{"require":["b"]}`, `{"require":["c"]}`},
	"/v1/policies/oldest":             {`{"spec":{"criteria":"OLDEST_FIRST"}}`, `{"spec":{"criteria":"RANDOM"}}`, `{"spec":{"criteria":"YOUNGEST_FIRST"}}`},
	"/v1/orgs/acme":                   {`{"tier":"paid"}`, `{"tier":"free"}`, `{"tier":"enterprise"}`},
	"/v1/registries/r.example":        {`{"username":"a","password":"p"}`, `{"username":"b","password":"p"}`, `{"username":"c","password":"p"}`},
	"/v1/orgs/owner/quotas/max_apps":  {`{"limit":7,"reason":"x"}`, `{"limit":8,"reason":"x"}`, `{"limit":9,"reason":"x"}`},
	"/v1/site-pool-policies/business": {`{"low_watermark":1,"target":1,"slo_seconds":1}`, `{"low_watermark":1,"target":2,"slo_seconds":1}`, `{"low_watermark":1,"target":3,"slo_seconds":1}`},
	"/v1/warm-pools/eu/starter":       {`{"target":1}`, `{"target":2}`, `{"target":3}`},
}

func replacing(t *testing.T) *bundle {
	b := setup(t, nil)
	b.org("owner", "")
	b.ok(201, "POST", "/v1/placement-pools", `{"name":"gpu"}`)
	b.ok(201, "POST", "/v1/policies", `{"policy_id":"oldest","type":"deletion","spec":{"criteria":"OLDEST_PROFILE_FIRST"}}`)
	return b
}

func TestEveryPutOfAnObjectTakesIfMatch(t *testing.T) {
	t.Parallel()
	for path, item := range contract(t).Paths.Map() {
		if item.Put == nil || item.Put.Parameters.GetByInAndName("header", "If-Match") == nil {
			continue
		}
		found := false
		for of := range replaced {
			found = found || len(strings.Split(path, "/")) == len(strings.Split(of, "/")) && strings.HasPrefix(of, path[:strings.Index(path, "{")])
		}
		require.True(t, found, "%s is in no test", path)
		require.NotNil(t, item.Put.Responses.Status(http.StatusPreconditionFailed), path)
		require.NotNil(t, item.Get.Responses.Status(http.StatusOK).Value.Headers["ETag"], path)
	}
}

func TestIfMatchRefusesWhatChangedMeanwhile(t *testing.T) {
	t.Parallel()
	b := replacing(t)
	for path, bodies := range replaced {
		put := func(body, match string) int {
			resp, answer := b.sendWith("PUT", path, body, "If-Match", match)
			if resp.StatusCode == http.StatusPreconditionFailed {
				p := as[api.Problem](t, answer)
				require.Equal(t, "precondition_failed If-Match", p.Code+" "+deref(p.Field))
			}
			return resp.StatusCode / 100
		}
		tag := func() string {
			resp, _ := b.do("GET", path, "viewer", "", "")
			return resp.Header.Get("ETag")
		}
		resp, answer := b.do("PUT", path, "operator", js, bodies[0])
		require.Equal(t, 2, resp.StatusCode/100, "%s: no header: %s", path, answer)
		first, shown := tag(), b.ok(200, "GET", path, "")
		require.Regexp(t, `^"[!-~]+"$`, first, path)
		require.Equal(t, first, tag(), "reading changes nothing")
		for _, other := range []string{`"0"`, "W/" + first, `"x", "y"`} {
			require.Equal(t, 4, put(bodies[1], other), "%s %s", path, other)
			require.Equal(t, string(shown), string(b.ok(200, "GET", path, "")), "nothing is changed")
		}
		require.Equal(t, 2, put(bodies[1], `"x", `+first), path)
		require.NotEqual(t, first, tag(), path)
		require.Equal(t, 4, put(bodies[2], first), path)
		require.Equal(t, 2, put(bodies[2], "*"), path)
		resp, answer = b.sendWith("PUT", path, bodies[0], "If-Match", "first")
		require.Equal(t, 422, resp.StatusCode, "%s", answer)
	}
	for _, nothing := range []string{"/v1/orgs/nope", "/v1/registries/nope.example", "/v1/warm-pools/us/trial", "/v1/placement-pools/nope"} {
		body := map[string]string{"/v1/o": `{}`, "/v1/r": `{"username":"a","password":"p"}`, "/v1/w": `{"target":1}`, "/v1/p": `{}`}[nothing[:5]]
		resp, answer := b.sendWith("PUT", nothing, body, "If-Match", "*")
		require.Equal(t, 412, resp.StatusCode, "%s: %s", nothing, answer)
		b.ok(404, "GET", nothing, "")
	}
}

// An org whose limit is its tier's also has an ETag.
func TestTheFirstOverrideCanDependOnTheTier(t *testing.T) {
	t.Parallel()
	b := replacing(t)
	const path = "/v1/orgs/owner/quotas/max_apps"
	resp, _ := b.do("GET", path, "viewer", "", "")
	of := resp.Header.Get("ETag")
	b.ok(200, "PUT", "/v1/orgs/owner", `{"tier":"paid"}`)
	resp, _ = b.sendWith("PUT", path, `{"limit":7,"reason":"x"}`, "If-Match", of)
	require.Equal(t, 412, resp.StatusCode)
	resp, _ = b.do("GET", path, "viewer", "", "")
	resp, _ = b.sendWith("PUT", path, `{"limit":7,"reason":"x"}`, "If-Match", resp.Header.Get("ETag"))
	require.Equal(t, 200, resp.StatusCode)
}

func TestOfTwoWritersOneWins(t *testing.T) {
	t.Parallel()
	b := replacing(t)
	for path, bodies := range replaced {
		b.do("PUT", path, "operator", js, bodies[0])
		for round := range 3 {
			resp, _ := b.do("GET", path, "viewer", "", "")
			tag := resp.Header.Get("ETag")
			var won, lost atomic.Int32
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					body := strings.NewReplacer(`"limit":7`, fmt.Sprint(`"limit":`, 100*round+10+i)).Replace(bodies[0])
					resp, err := need.HTTP.Do(withHeader(request(t, b.srv.URL, "PUT", path, "operator", js, body), "If-Match", tag))
					if err != nil {
						return
					}
					_ = resp.Body.Close()
					switch resp.StatusCode {
					case http.StatusOK, http.StatusAccepted:
						won.Add(1)
					case http.StatusPreconditionFailed:
						lost.Add(1)
					}
				})
			}
			wg.Wait()
			require.Equal(t, []int32{1, 3}, []int32{won.Load(), lost.Load()}, path)
		}
	}
}

func withHeader(r *http.Request, name, value string) *http.Request {
	r.Header.Set(name, value)
	return r
}

func TestWhoHasThisVersionGetsNoOther(t *testing.T) {
	t.Parallel()
	b := replacing(t)
	for _, path := range []string{"/v1/policies/oldest", "/v1/orgs/owner", "/v1/site-pool-policies/business"} {
		resp, _ := b.do("GET", path, "viewer", "", "")
		tag := resp.Header.Get("ETag")
		for _, known := range []string{tag, "W/" + tag, `"x", ` + tag, "*"} {
			for _, method := range []string{"GET", "HEAD"} {
				resp, body := b.sendWith(method, path, "", "If-None-Match", known)
				require.Equal(t, 304, resp.StatusCode, known)
				require.Equal(t, tag, resp.Header.Get("ETag"))
				require.Empty(t, body)
			}
		}
		resp, body := b.sendWith("GET", path, "", "If-None-Match", `"x"`)
		require.Equal(t, 200, resp.StatusCode, "%s", body)
	}
}
