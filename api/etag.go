package api

import (
	"net/http"
	"regexp"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
)

// entityTag is one tag of a list (RFC 9110 §8.8.3). The contract defines the list's
// syntax.
var entityTag = regexp.MustCompile(`(W/)?"([^"]*)"`)

// ifMatch are the versions that a PUT may replace: none where any will do, "*" for any
// that there is. Weak tags name no version, and match none.
func ifMatch(c echo.Context) (versions []string) {
	given := c.Request().Header.Get("If-Match")
	if given == "*" {
		return []string{given}
	}
	for _, tag := range entityTag.FindAllStringSubmatch(given, -1) {
		versions = append(versions, tag[1]+tag[2])
	}
	return versions
}

// tag gives an answer the ETag of what it shows. It is read first: a version that is
// older than the shown state makes a replacement fail; a newer one would lose a change.
func (a *API) tag(c echo.Context, what prego.Replaceable, key ...any) (version string, err error) {
	if version, err = a.d.Store.Version(c.Request().Context(), what, key...); version != "" {
		c.Response().Header().Set("ETag", `"`+version+`"`)
	}
	return version, err
}

// showTagged is show with an ETag, for what holds nothing but what its PUT replaces: who
// has this version already (If-None-Match) gets no other.
func (a *API) showTagged(c echo.Context, what prego.Replaceable, key []any, show func() error) error {
	version, err := a.tag(c, what, key...)
	if err != nil {
		return err
	}
	given := c.Request().Header.Get("If-None-Match")
	has := func(tag []string) bool { return tag[2] == version }
	if version != "" && (given == "*" || slices.ContainsFunc(entityTag.FindAllStringSubmatch(given, -1), has)) {
		return c.NoContent(http.StatusNotModified)
	}
	return show()
}

// among picks the requested item of a short list.
func among[T any](all []T, err error, is func(T) bool) (one T, _ error) {
	if err != nil {
		return one, err
	}
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i], nil
	}
	return one, prego.Errorf(prego.CodeNotFound, "it does not exist")
}
