package prego_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// cells are the tags of nine servers, of all kinds that the examples need.
var cells = [][]string{
	1: {"staging", "skynet"}, 2: {"staging", "skynet"}, 3: {"staging"}, 4: {"staging"},
	5: {"production", "skynet"}, 6: {"production", "skynet"}, 7: {"production"}, 8: {"production"}, 9: {"skynet"},
}

// TestTheExamplesOfConstraints has an example of each kind (placement-pools,
// "Constraints").
func TestTheExamplesOfConstraints(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		c    prego.Constraint
		want []int
	}{
		"nothing required or disallowed": {prego.Constraint{}, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}},
		"staging":                        {prego.Constraint{Require: []string{"staging"}}, []int{1, 2, 3, 4}},
		"not production":                 {prego.Constraint{Disallow: []string{"production"}}, []int{1, 2, 3, 4, 9}},
		"staging of skynet":              {prego.Constraint{Require: []string{"staging", "skynet"}}, []int{1, 2}},
		"staging of others":              {prego.Constraint{Require: []string{"staging"}, Disallow: []string{"skynet"}}, []int{3, 4}},
		"a contradiction":                {prego.Constraint{Require: []string{"staging"}, Disallow: []string{"staging"}}, nil},
		"an unused tag":                  {prego.Constraint{Require: []string{"alfalfa"}}, nil},
		"in another case":                {prego.Constraint{Require: []string{"STAGING", "SkyNet"}}, []int{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, tc.c.Validate("constraint"), "a contradiction is also accepted")
			var got []int
			for i, tags := range cells {
				if i > 0 && tc.c.SatisfiedBy(tags) {
					got = append(got, i)
				}
			}
			require.Equal(t, tc.want, got)
		})
	}
	require.False(t, prego.Constraint{Require: []string{"a"}, Disallow: []string{"a"}}.Satisfiable())
	require.True(t, prego.Constraint{Require: []string{"alfalfa"}}.Satisfiable(), "by a server that has it")
}

func TestTagsThatAreRefused(t *testing.T) {
	t.Parallel()
	many := make([]string, prego.MaxTags+1)
	for i := range many {
		many[i] = fmt.Sprint("t", i)
	}
	for name, tags := range map[string][]string{
		"64 characters": {strings.Repeat("a", 64)}, "empty": {""}, "a space": {"a b"}, "a tab": {"a\tb"}, "a NUL": {"a\x00"}, "not ASCII": {"é"},
		"DEL": {"a\x7f"}, "twice": {"a", "a"}, "twice in another case": {"Blue", "bLUE"}, "too many": many,
	} {
		c := prego.Constraint{Disallow: tags}
		var invalid *prego.Error
		require.ErrorAs(t, c.Validate("constraint"), &invalid, name)
		require.Equal(t, prego.CodeInvalidField, invalid.Code, name)
		require.Equal(t, "constraint.disallow", invalid.Field, name)
		s := server.Spec{Tags: tags}
		require.ErrorAs(t, s.Validate(), &invalid, name)
		require.Equal(t, "spec.tags", invalid.Field, name)
	}
	s := server.Spec{Tags: []string{strings.Repeat("A", 63), "stack:Lucid64"}}
	require.NoError(t, s.Validate())
	require.Equal(t, []string{strings.Repeat("a", 63), "stack:lucid64"}, s.Tags, "kept in lower case")
}

func TestAStackIsATag(t *testing.T) {
	t.Parallel()
	ask := func(change func(*tenant.CreateRequest)) (tenant.CreateRequest, error) {
		r := tenant.CreateRequest{Slug: "a", OrgID: "o", Region: "eu", Plan: prego.PlanStarter}
		change(&r)
		return r, r.Validate()
	}
	stacked, err := ask(func(r *tenant.CreateRequest) { r.Stack = "Lucid64" })
	require.NoError(t, err)
	require.Equal(t, []string{"stack:lucid64"}, stacked.Constraint.Require)
	tagged, err := ask(func(r *tenant.CreateRequest) { r.Constraint.Require = []string{"stack:lucid64"} })
	require.NoError(t, err)
	require.Equal(t, tagged.Hash(), stacked.Hash(), "both ways are the same request")
	both, err := ask(func(r *tenant.CreateRequest) {
		r.Stack, r.Constraint.Require = "lucid64", []string{"STACK:lucid64"}
	})
	require.NoError(t, err)
	require.Equal(t, []string{"stack:lucid64"}, both.Constraint.Require)
	for _, bad := range []string{"a b", strings.Repeat("a", 58), "a\n"} {
		_, err = ask(func(r *tenant.CreateRequest) { r.Stack = bad })
		var invalid *prego.Error
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "stack", invalid.Field)
	}
}

func drawTags(t *rapid.T, name string) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "B", "c", "D", "stack:X", "f"}), 0, 4, strings.ToLower).Draw(t, name)
}

func drawConstraint(t *rapid.T, name string) prego.Constraint {
	c := prego.Constraint{Require: drawTags(t, name+" requires"), Disallow: drawTags(t, name+" disallows")}
	require.NoError(t, c.Validate("constraint"))
	return c
}

// TestUnion: a server satisfies a union exactly when it satisfies every part, in any
// order.
func TestUnion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := drawConstraint(t, "a"), drawConstraint(t, "b"), drawConstraint(t, "c")
		tags, err := prego.NormalizeTags(drawTags(t, "server"))
		require.NoError(t, err)
		u := a.Union(b, c)
		require.Equal(t, a.SatisfiedBy(tags) && b.SatisfiedBy(tags) && c.SatisfiedBy(tags), u.SatisfiedBy(tags))
		require.True(t, u.Equal(c.Union(a).Union(b)))
		require.True(t, u.Equal(u.Union(u)))
		require.True(t, a.Union().Equal(a))
		require.True(t, slices.IsSorted(u.Require) && slices.IsSorted(u.Disallow))
		require.Equal(t, !slices.ContainsFunc(u.Require, func(t string) bool { return slices.Contains(u.Disallow, t) }), u.Satisfiable())
		require.Equal(t, a.Empty() && b.Empty() && c.Empty(), u.Empty())
		require.True(t, prego.Constraint{}.SatisfiedBy(tags))
		pools := []prego.AppliedPool{{Require: b.Require, Disallow: b.Disallow}, {Require: c.Require, Disallow: c.Disallow}}
		require.True(t, u.Equal(prego.EffectiveConstraint(a, pools)))
	})
}

// TestFolding: case never matters, and folding twice is folding once.
func TestFolding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tags := rapid.SliceOfN(rapid.StringMatching(`[!-~]{1,63}`), 0, prego.MaxTags).Draw(t, "tags")
		once, err := prego.NormalizeTags(tags)
		require.NoError(t, err)
		twice, err := prego.NormalizeTags(once)
		require.NoError(t, err)
		require.Equal(t, once, twice)
		upper := make([]string, len(tags))
		for i, tag := range tags {
			upper[i] = strings.ToUpper(tag)
		}
		folded, err := prego.NormalizeTags(upper)
		require.NoError(t, err)
		require.Equal(t, once, folded)
		_, err = prego.DistinctTags("tags", tags)
		require.Equal(t, len(once) < len(tags), err != nil)
		require.True(t, prego.Constraint{Require: once}.SatisfiedBy(once))
		require.Equal(t, len(once) == 0, prego.Constraint{Disallow: once}.SatisfiedBy(once))
	})
}
