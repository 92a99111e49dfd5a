package region_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/region"
)

func answer(t require.TestingT, doc string) (region.ResizeAnswer, error) {
	var d region.ResizeDocument
	require.NoError(t, json.Unmarshal([]byte("{"+doc+"}"), &d))
	r, b, err := d.Build()
	if err != nil {
		return region.ResizeAnswer{}, err
	}
	return region.NewResizeAnswer(region.ParseResize(r, b)), nil
}

func TestResize(t *testing.T) {
	t.Parallel()
	const exact, by, percent = `"adjustment_type":"EXACT_CAPACITY","number":`, `"adjustment_type":"CHANGE_IN_CAPACITY","number":`, `"adjustment_type":"CHANGE_IN_PERCENTAGE","number":`
	const relaxed = `,"strict":false`
	for _, c := range []struct {
		doc     string
		desired int64
		code    prego.Code
	}{
		{doc: exact + `5,"current":3`, desired: 5},
		{doc: exact + `0,"current":3`, desired: 0},
		{doc: exact + `3,"current":3`, desired: 3},
		{doc: exact + `5,"cluster":{"desired_capacity":4}`, desired: 5},
		{doc: by + `2,"current":3`, desired: 5},
		{doc: by + `-2,"current":3`, desired: 1},
		{doc: by + `0,"current":3`, desired: 3},
		{doc: by + `1,"min_step":5,"current":3`, desired: 4}, // min_step is for percentages
		{doc: by + `2,"current":1,"cluster":{"desired_capacity":9}`, desired: 3},
		{doc: `"current":3`, desired: 3},

		// n·current/100: below one node away from zero, else truncated.
		{doc: percent + `50,"current":10`, desired: 15},
		{doc: percent + `1,"current":10`, desired: 11},
		{doc: percent + `-1,"current":10`, desired: 9},
		{doc: percent + `19,"current":10`, desired: 11},
		{doc: percent + `-19,"current":10`, desired: 9},
		{doc: percent + `29,"current":100`, desired: 129}, // 0.29·100 is 28.999… in binary fractions
		{doc: percent + `-100,"current":7`, desired: 0},
		{doc: percent + `0,"current":7,"min_step":3`, desired: 7},
		{doc: percent + `25,"current":0`, desired: 0},
		{doc: percent + `25,"current":0,"min_step":2`, desired: 2},
		{doc: percent + `10,"current":10,"min_step":3`, desired: 13},
		{doc: percent + `-10,"current":10,"min_step":3`, desired: 7},
		{doc: percent + `50,"current":10,"min_step":3`, desired: 15},
		{doc: percent + `-99,"current":1000000000,"global_max":1000000000`, desired: 10_000_000},

		// Not strict: up to the least, then down to the most.
		{doc: exact + `1,"current":3,"cluster":{"min_size":2}` + relaxed, desired: 2},
		{doc: by + `-9,"current":3` + relaxed, desired: 0},
		{doc: exact + `9,"current":3,"cluster":{"max_size":5}` + relaxed, desired: 5},
		{doc: exact + `1,"current":3,"min_size":2,"cluster":{"min_size":3}` + relaxed, desired: 2},
		{doc: exact + `9,"current":3,"max_size":7,"cluster":{"max_size":5}` + relaxed, desired: 7},
		{doc: exact + `9,"current":3,"max_size":-1,"cluster":{"max_size":5}` + relaxed, desired: 9},
		{doc: `"current":3,"max_size":2` + relaxed, desired: 2},
		{doc: `"current":3,"min_size":4` + relaxed, desired: 4},

		// Refusals, in order.
		{doc: exact + `1001,"current":3,"min_size":1002`, code: region.CodeAboveServiceLimit},
		{doc: exact + `11,"current":3,"global_max":10` + relaxed, code: region.CodeAboveServiceLimit},
		{doc: exact + `1,"current":3,"min_size":2,"cluster":{"min_size":4}`, code: region.CodeBelowMin},
		{doc: exact + `1,"current":3,"cluster":{"min_size":2}`, code: region.CodeBelowFleetMin},
		{doc: by + `-4,"current":3`, code: region.CodeBelowFleetMin},
		{doc: exact + `9,"current":3,"max_size":8,"cluster":{"max_size":7}`, code: region.CodeAboveMax},
		{doc: exact + `9,"current":3,"cluster":{"max_size":8}`, code: region.CodeAboveFleetMax},
		{doc: exact + `3,"current":3,"min_size":5,"max_size":4`, code: region.CodeMinAboveMax},
		{doc: exact + `3,"current":3,"min_size":5,"max_size":4` + relaxed, code: region.CodeMinAboveMax},
		{doc: exact + `3,"current":3,"min_size":9,"cluster":{"max_size":8}`, code: region.CodeBelowMin},
		{doc: exact + `3,"current":3,"min_size":9,"cluster":{"max_size":8}` + relaxed, code: region.CodeBelowMin},
		{doc: exact + `3,"current":3,"max_size":1001`, code: region.CodeMaxAboveServiceLimit},
		{doc: exact + `3,"current":3,"max_size":2,"cluster":{"min_size":3}` + relaxed, code: region.CodeMaxBelowFleetMin},

		// Every bound itself is allowed.
		{doc: exact + `1000,"current":3`, desired: 1000},
		{doc: exact + `3,"current":3,"min_size":3,"max_size":3,"global_max":3`, desired: 3},
		{doc: exact + `3,"current":3,"cluster":{"min_size":3,"max_size":3}`, desired: 3},
		{doc: exact + `3,"current":3,"max_size":3,"cluster":{"min_size":3}`, desired: 3},
		{doc: exact + `1,"current":1,"global_max":1`, desired: 1},
		{doc: exact + `0,"current":1,"min_size":0,"max_size":0`, desired: 0},
		{
			doc: exact + `1000000000,"current":1000000000,"global_max":1000000000,` +
				`"min_size":1000000000,"max_size":1000000000`,
			desired: 1e9,
		},
		{
			doc: `"min_step":1000000000,"global_max":1000000000,` +
				`"cluster":{"desired_capacity":1000000000,"min_size":1000000000,"max_size":1000000000}`,
			desired: 1e9,
		},
		{doc: by + `-1000000000,"current":1000000000,"global_max":1000000000`, desired: 0},
	} {
		t.Run(c.doc, func(t *testing.T) {
			t.Parallel()
			a, err := answer(t, c.doc)
			require.NoError(t, err)
			if c.code != "" {
				require.Equal(t, region.StatusError, a.Status)
				require.Equal(t, c.code, a.Code)
				require.NotEmpty(t, a.Reason)
				require.Nil(t, a.Desired)
				return
			}
			require.Equal(t, region.StatusOK, a.Status, a.Reason)
			require.Equal(t, c.desired, *a.Desired)
		})
	}
}

func TestResizeAnswer(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		`"adjustment_type":"EXACT_CAPACITY","number":5,"current":3`: `{"status":"OK","desired":5,"creation":{"count":2}}`,
		`"adjustment_type":"EXACT_CAPACITY","number":0,"current":3`: `{"status":"OK","desired":0,"deletion":{"count":3}}`,
		`"current":0`: `{"status":"OK","desired":0}`,
		`"adjustment_type":"EXACT_CAPACITY","number":5,"current":3,"max_size":4`: `{"status":"ERROR","code":"target_above_max_size","reason":"The target capacity (5) is greater than the specified max_size (4)."}`,
	} {
		a, err := answer(t, doc)
		require.NoError(t, err)
		got, err := json.Marshal(a)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}

// TestResizeProperties restates the arithmetic in fractions.
func TestResizeProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Int64Range(-250, 250), rapid.Int64Range(-1e9, 1e9)).Draw(t, "number")
		current := rapid.OneOf(rapid.Int64Range(0, 30), rapid.Int64Range(0, 1e9)).Draw(t, "current")
		step := rapid.Int64Range(0, 9).Draw(t, "min_step")
		least, most := rapid.Int64Range(0, 20).Draw(t, "min"), rapid.Int64Range(20, 40).Draw(t, "max")
		b := region.Bounds{Current: current, MinSize: least, MaxSize: most, GlobalMax: 1e9}
		got, err := region.ParseResize(region.Resize{Adjustment: region.ChangeInPercentage, Number: number, MinStep: step}, b)
		require.NoError(t, err)

		exact := big.NewRat(number, 1)
		exact.Mul(exact, big.NewRat(current, 100))
		size := new(big.Int).Quo(new(big.Int).Abs(exact.Num()), exact.Denom()).Int64()
		if size == 0 && exact.Sign() != 0 {
			size = 1
		}
		size = max(size, step)
		switch {
		case number == 0:
			size = 0
		case number < 0:
			size = -size
		}
		require.Equal(t, min(max(current+size, least), most), got.Desired)
		require.Equal(t, got.Desired, current+got.Creation-got.Deletion)
		require.Zero(t, min(got.Creation, got.Deletion))
		require.GreaterOrEqual(t, min(got.Creation, got.Deletion), int64(0))
	})
}

func TestResizeBadInput(t *testing.T) {
	t.Parallel()
	for doc, field := range map[string]string{
		`"adjustment_type":"EXACT_CAPACITY","current":1`:                         "number",
		`"number":3,"current":1`:                                                 "adjustment_type",
		`"adjustment_type":"","number":3,"current":1`:                            "adjustment_type",
		`"adjustment_type":"exact_capacity","number":3,"current":1`:              "adjustment_type",
		`"adjustment_type":"EXACT_CAPACITY","number":-1,"current":1`:             "number",
		`"adjustment_type":"CHANGE_IN_CAPACITY","number":1000000001,"current":1`: "number",
		`"current":-1`:                                      "current",
		`"min_size":1`:                                      "current",
		`"current":1,"min_size":-1`:                         "min_size",
		`"current":1,"max_size":-2`:                         "max_size",
		`"current":1,"min_step":-1`:                         "min_step",
		`"current":1,"global_max":0`:                        "global_max",
		`"current":1,"cluster":{"min_size":-1}`:             "cluster.min_size",
		`"current":1,"cluster":{"max_size":-2}`:             "cluster.max_size",
		`"current":1,"cluster":{"min_size":3,"max_size":2}`: "cluster.min_size",
		`"current":1,"cluster":{"desired_capacity":-1}`:     "cluster.desired_capacity",
		`"cluster":{"desired_capacity":1000000001}`:         "cluster.desired_capacity",
	} {
		_, err := answer(t, doc)
		refused(t, err, prego.CodeInvalidField, field)
	}
}

// TestEveryRefusalHasItsField is the list of codes, for user interfaces.
func TestEveryRefusalHasItsField(t *testing.T) {
	t.Parallel()
	p := func(n int64) *int64 { return &n }
	b := region.Bounds{Current: 3, MinSize: 2, MaxSize: 8, GlobalMax: 10}
	for _, c := range []struct {
		r     region.Resize
		code  prego.Code
		field string
	}{
		{region.Resize{Adjustment: region.ExactCapacity, Number: 11, Strict: true}, region.CodeAboveServiceLimit, "number"},
		{region.Resize{Adjustment: region.ExactCapacity, Number: 1, MinSize: p(2), Strict: true}, region.CodeBelowMin, "number"},
		{region.Resize{Adjustment: region.ExactCapacity, Number: 1, Strict: true}, region.CodeBelowFleetMin, "number"},
		{region.Resize{Adjustment: region.ExactCapacity, Number: 7, MaxSize: p(6), Strict: true}, region.CodeAboveMax, "number"},
		{region.Resize{Adjustment: region.ExactCapacity, Number: 9, Strict: true}, region.CodeAboveFleetMax, "number"},
		{region.Resize{MinSize: p(5), MaxSize: p(4)}, region.CodeMinAboveMax, "min_size"},
		{region.Resize{MaxSize: p(11)}, region.CodeMaxAboveServiceLimit, "max_size"},
		{region.Resize{MaxSize: p(1)}, region.CodeMaxBelowFleetMin, "max_size"},
	} {
		_, err := region.ParseResize(c.r, b)
		refused(t, err, c.code, c.field)
		require.Equal(t, fmt.Sprint(c.code), string(region.NewResizeAnswer(region.ResizeResult{}, err).Code))
	}
	_, err := region.ParseResize(region.Resize{Adjustment: "x"}, b)
	require.Equal(t, "invalid_field: adjustment_type must be EXACT_CAPACITY, CHANGE_IN_CAPACITY or CHANGE_IN_PERCENTAGE", region.NewResizeAnswer(region.ResizeResult{}, err).Reason)
}
