package cli

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
)

var simulate = hook{
	body: func(in *call, _ object) (any, error) {
		b, err := read(in.InOrStdin(), in.typed)
		if b = bytes.TrimSpace(b); err == nil && !json.Valid(b) {
			err = usagef("%s is not one valid JSON document", in.typed)
		}
		return json.RawMessage(b), err
	},
	say: said(func(_ *call, r api.SimulationResult) string {
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		for _, line := range r.Results {
			_ = enc.Encode(line) // it came as JSON
		}
		return string(bytes.TrimSpace(out.Bytes()))
	}),
}

var override = hook{after: more(func(in *call, l placement.Line) error {
	in.pairs(in.w, explained(l.Decision)...)
	return nil
})}

var defaultPool = hook{
	flags: func(_ *cobra.Command, f *pflag.FlagSet) { f.Bool("unset", false, "unset it as the default") },
	method: func(in *call) string {
		return map[bool]string{true: http.MethodDelete, false: http.MethodPut}[in.is("unset")]
	},
}

// poolsOf shows the placement pools that apply to an org.
var poolsOf = hook{after: more(func(in *call, o api.OrgPlacementPools) error {
	return parts(in.printer, "PlacementPool", o.PlacementPools)
})}
