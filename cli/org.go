package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/prego/prego/api"
)

var quotaColumns = computed(map[string]func(api.OrgQuota) string{
	"limit":    func(q api.OrgQuota) string { return amount(q.Dimension, q.Limit) },
	"usage":    func(q api.OrgQuota) string { return amount(q.Dimension, q.Usage) },
	"headroom": func(q api.OrgQuota) string { return amount(q.Dimension, q.Headroom) },
	"reserved": func(q api.OrgQuota) string { return amount(q.Dimension, q.Reserved) },
})

// amount formats an amount of a dimension, with its unit if that is bytes.
func amount(dimension string, n float64) string {
	switch {
	case dimension == "max_monthly_euros":
		return fmt.Sprintf("€ %.2f", n)
	case !strings.HasSuffix(dimension, "_bytes"):
		return number(n)
	case strings.Contains(dimension, "memory"):
		return bytesText(int64(n))
	}
	return diskText(int64(n))
}

// limitOf parses a limit; one in bytes may have a unit.
func limitOf(dimension, text string) (float64, error) {
	if limit, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(limit) && !math.IsInf(limit, 0) {
		return limit, nil
	}
	read := disk
	if strings.Contains(dimension, "memory") {
		read = memory
	}
	n, err := read(text)
	if err != nil || !strings.HasSuffix(dimension, "_bytes") {
		return 0, usagef("LIMIT must be a number, or a size like 64G where it is in bytes, not %q", text)
	}
	return float64(n), nil
}

var setQuota = hook{body: func(in *call, body object) (_ any, err error) {
	body["limit"], err = limitOf(in.args["dimension"], in.typed)
	return body, err
}}

var limitRequestColumns = computed(map[string]func(api.LimitRequest) string{
	"old_limit":       func(r api.LimitRequest) string { return amount(r.Dimension, r.OldLimit) },
	"requested_limit": func(r api.LimitRequest) string { return amount(r.Dimension, r.RequestedLimit) },
	"granted_limit": func(r api.LimitRequest) string {
		if r.GrantedLimit == nil {
			return ""
		}
		return amount(r.Dimension, *r.GrantedLimit)
	},
})
