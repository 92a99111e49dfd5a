package placement_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

// cells are nine servers with all kinds of tags (placement-pools, "Tags"); fit selects the servers with room.
func cells(fit func(id string) bool) placement.ConstraintDocument {
	tags := [][]string{
		{"staging", "Skynet"},
		{"staging", "skynet"},
		{"staging"},
		{"STAGING"},
		{"production", "skynet"},
		{"production", "skynet"},
		{"production"},
		{"production"},
		{"skynet"},
	}
	var d placement.ConstraintDocument
	for i, t := range tags {
		id := fmt.Sprint(i + 1)
		fits := fit(id)
		d.Servers = append(d.Servers, placement.DocTaggedServer{ID: id, Tags: t, Fits: &fits})
	}
	return d
}

func TestEligible(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		require, disallow []string
		full              string // ids of cells without room
		eligible          string
		code              prego.Code
	}{
		"empty":                   {eligible: "123456789"},
		"require staging":         {require: []string{"staging"}, eligible: "1234"},
		"disallow production":     {disallow: []string{"production"}, eligible: "12349"},
		"require both":            {require: []string{"staging", "skynet"}, eligible: "12"},
		"require and disallow":    {require: []string{"staging"}, disallow: []string{"skynet"}, eligible: "34"},
		"contradiction":           {require: []string{"staging"}, disallow: []string{"staging"}, code: prego.CodeCellMismatch},
		"unknown tag":             {require: []string{"alfalfa"}, code: prego.CodeCellMismatch},
		"case does not matter":    {require: []string{"STAGING"}, disallow: []string{"SkyNet"}, eligible: "34"},
		"stack is a tag":          {require: []string{"stack:lucid64"}, code: prego.CodeCellMismatch},
		"some are full":           {require: []string{"staging"}, full: "13", eligible: "24"},
		"all that match are full": {require: []string{"staging"}, full: "1234", code: prego.CodeInsufficientResources},
		"the only match is full":  {require: []string{"staging", "skynet"}, full: "1256", code: prego.CodeInsufficientResources},
		"full and none matches":   {require: []string{"alfalfa"}, full: "123456789", code: prego.CodeCellMismatch},
		"all full":                {full: "123456789", code: prego.CodeInsufficientResources},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := cells(func(id string) bool { return !strings.Contains(c.full, id) })
			d.Constraint = &prego.Constraint{Require: c.require, Disallow: c.disallow}
			servers, constraint, err := d.Build()
			require.NoError(t, err)
			ids, code := placement.Eligible(servers, constraint)
			require.Equal(t, c.eligible, strings.Join(ids, ""))
			require.Equal(t, c.code, code)
			require.Equal(t, len(ids) == 0, code != "")
		})
	}
	none := prego.CodeCellMismatch
	some := placement.ConstraintAnswer{Eligible: []string{"a"}}
	require.Equal(t, some, placement.NewConstraintAnswer([]string{"a"}, ""))
	require.Equal(t, placement.ConstraintAnswer{Error: &none}, placement.NewConstraintAnswer(nil, none))
	ids, code := placement.Eligible(nil, prego.Constraint{})
	require.Empty(t, ids)
	require.NotNil(t, ids)
	require.Equal(t, prego.CodeCellMismatch, code)
}

func TestConstraintDocumentsNameTheirFaults(t *testing.T) {
	t.Parallel()
	servers := []placement.DocTaggedServer{{ID: "a", Tags: []string{"Blue"}}}
	built, constraint, err := placement.ConstraintDocument{Servers: servers}.Build()
	require.NoError(t, err)
	require.Equal(t, []placement.TaggedServer{{ID: "a", Tags: []string{"blue"}, Fits: true}}, built)
	require.True(t, constraint.Empty())
	for field, d := range map[string]placement.ConstraintDocument{
		"constraint.require": {Constraint: &prego.Constraint{Require: []string{" "}}},
		"servers[0].id":      {Servers: []placement.DocTaggedServer{{}}},
		"servers[1].id":      {Servers: []placement.DocTaggedServer{{ID: "a"}, {ID: "a"}}},
		"servers[0].tags":    {Servers: []placement.DocTaggedServer{{ID: "a", Tags: []string{" "}}}},
	} {
		_, _, err := d.Build()
		var e *prego.Error
		require.ErrorAs(t, err, &e, field)
		require.Equal(t, field, e.Field)
	}
}
