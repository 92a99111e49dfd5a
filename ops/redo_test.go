package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/ops"
)

// TestOnlyEntriesOfOneMomentCompleteADatabase, and none that an operator has rejected.
func TestOnlyEntriesOfOneMomentCompleteADatabase(t *testing.T) {
	t.Parallel()
	entry := func(n int64) ops.RedoEntry { return ops.RedoEntry{Number: n} }
	cut := func(n int64) ops.RedoEntry { return ops.RedoEntry{Number: n, More: true} }
	void := func(n, from int64) ops.RedoEntry { return ops.RedoEntry{Number: n, Void: from} }
	for name, c := range map[string]struct {
		log  []ops.RedoEntry
		want []int64
	}{
		"all":                  {[]ops.RedoEntry{entry(1), entry(2)}, []int64{1, 2}},
		"a burst that ended":   {[]ops.RedoEntry{entry(1), cut(2), cut(3), entry(4)}, []int64{1, 2, 3, 4}},
		"a burst that did not": {[]ops.RedoEntry{entry(1), cut(2), cut(3)}, []int64{1}},
		"rejected":             {[]ops.RedoEntry{entry(1), entry(2), entry(3), void(4, 2), entry(5)}, []int64{1, 5}},
		"rejected twice":       {[]ops.RedoEntry{entry(1), entry(2), void(3, 2), entry(4), void(5, 1), entry(6)}, []int64{6}},
		"nothing":              {nil, nil},
	} {
		var got []int64
		for _, e := range ops.Valid(c.log) {
			got = append(got, e.Number)
		}
		require.Equal(t, c.want, got, name)
	}
}
