//go:build !race

package api_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/prego/prego/lab/deep"
)

// spent is what do costs: the CPU time of this process, whatever else runs on the machine, and the bytes that it
// allocates, which are at least as many as it holds at any time.
func spent(t *testing.T, do func()) (cpu time.Duration, allocated uint64) {
	t.Helper()
	now := func() (time.Duration, uint64) {
		var used unix.Timespec
		require.NoError(t, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used))
		heap := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(heap)
		return time.Duration(used.Nano()), heap[0].Value.Uint64()
	}
	cpu, allocated = now()
	do()
	after, total := now()
	return after - cpu, total - allocated
}

// dear are the operations that may cost more than others, each with the reason.
var dear = map[string]struct {
	cpu       time.Duration
	allocated uint64
	reason    string
}{
	"simulatePlacements": {
		2 * time.Second, 256 << 20, "a fleet of 200,000 values; eight run at a time in a process, and two of a caller",
	},
}

// cheap sends a request, whose cost and answer are bounded. Of an expensive request the cheapest of five counts, as
// far as it is answered alike: a collection of garbage counts for whatever happens to run.
func (b *bundle) cheap(operation, what string, req func() *http.Request) (allocated uint64) {
	b.t.Helper()
	const answers = 16 << 10 // bytes
	limit := dear[operation]
	limit.cpu, limit.allocated = max(limit.cpu, 200*time.Millisecond), max(limit.allocated, 32<<20)
	var cpu time.Duration
	var first int
	for try := range 5 {
		r, answer := req(), httptest.NewRecorder()
		c, m := spent(b.t, func() { b.api.Handler().ServeHTTP(answer, r) })
		if try == 0 {
			cpu, allocated, first = c, m, answer.Code
		} else if answer.Code == first {
			cpu, allocated = min(cpu, c), min(allocated, m)
		}
		require.NotEqual(b.t, http.StatusInternalServerError, answer.Code, "%s: %s: %s", operation, what, answer.Body)
		if answer.Code >= 400 {
			require.Less(b.t, answer.Body.Len(), answers, "%s: %s", operation, what)
		}
		if cpu < limit.cpu && allocated < limit.allocated {
			return allocated
		}
		runtime.GC()
	}
	require.Less(b.t, cpu, limit.cpu, "%s: %s", operation, what)
	require.Less(b.t, allocated, limit.allocated, "%s: %s", operation, what)
	return allocated
}

// filled is a text of at most size bytes: start, as many of each's parts as fit, at most most, with commas between
// them, and end.
func filled(size, most int, start, end string, each func(i int) string) string {
	var b strings.Builder
	b.WriteString(start)
	for i := range most {
		part := each(i)
		if i > 0 {
			part = "," + part
		}
		if b.Len()+len(part)+len(end) > size {
			break
		}
		b.WriteString(part)
	}
	return b.String() + end
}

// place is where a body may hold a value: what is before it and after it in the smallest body.
type place struct {
	name, before, after string
	schema              *openapi3.Schema
}

// small is a value that a schema allows, or nearly.
func small(s *openapi3.Schema) any {
	switch {
	case s.Example != nil:
		return s.Example
	case len(s.Enum) > 0:
		return s.Enum[0]
	case s.Type.Is("object"):
		out := map[string]any{}
		for _, name := range s.Required {
			out[name] = small(s.Properties[name].Value)
		}
		return out
	case s.Type.Is("array"):
		out := make([]any, s.MinItems)
		for i := range out {
			out[i] = small(s.Items.Value)
		}
		return out
	case s.Type.Is("string"):
		for _, text := range []string{"a", "eu", "2030-01-01T00:00:00Z", "a@b.example", "0 0 * * *", "10.0.0.1"} {
			if s.VisitJSON(text) == nil {
				return text
			}
		}
		return strings.Repeat("a", int(s.MinLength))
	case s.Type.Is("boolean"):
		return true
	case s.Min != nil:
		return *s.Min
	}
	return 1
}

func jsonOf(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

// placesIn are the places of a schema's values, at most depth levels below it.
func placesIn(s *openapi3.Schema, name, before, after string, depth int) []place {
	out := []place{{name, before, after, s}}
	if depth == 0 {
		return out
	}
	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		at := before + "{"
		for _, other := range s.Required {
			if other != field {
				at += fmt.Sprintf("%q:%s,", other, jsonOf(small(s.Properties[other].Value)))
			}
		}
		at += fmt.Sprintf("%q:", field)
		out = append(out, placesIn(s.Properties[field].Value, name+"."+field, at, "}"+after, depth-1)...)
	}
	if s.Items != nil {
		out = append(out, placesIn(s.Items.Value, name+"[]", before+"[", "]"+after, depth-1)...)
	}
	if of := s.AdditionalProperties.Schema; of != nil {
		out = append(out, placesIn(of.Value, name+".k", before+`{"k":`, "}"+after, depth-1)...)
	}
	return out
}

// oversized are bodies of size bytes, by kind: allowed as far as possible, or wrong in as many ways as possible.
func oversized(size int, p place) map[string]string {
	const values = 190_000 // of one body; more are refused before they are parsed
	room := size - len(p.before) - len(p.after) - 2
	out := map[string]string{}
	put := func(kind, value string) { out[kind] = p.before + value + p.after }
	list := func(kind string, most int, start, end string, each func(i int) string) {
		put(kind, filled(room, most, start, end, each))
	}
	always := func(text string) func(int) string { return func(int) string { return text } }
	key := func(i int) string { return fmt.Sprintf(`"k%d":0`, i) }
	levels := min(room/2-10, 9_000) // encoding/json reads 10,000 levels
	put("deep nesting", `{"k":`+strings.Repeat("[", levels)+strings.Repeat("]", levels)+"}")
	put("a long text", `"`+strings.Repeat("pAss9", room/5)+`"`)
	put("a long name", `{"`+strings.Repeat("pAss9", room/5-2)+`":0}`)
	put("a long number", strings.Repeat("1", room))
	list("unknown fields", values, "{", "}", key)
	list("numbers", values, "[", "]", always("0"))
	list("empty objects", values, "[", "]", always("{}"))
	if p.name == "" {
		list("too many values", size, `{"k":[`, "]}", always("0"))
	}
	if p.schema.Items != nil {
		item := p.schema.Items.Value
		one, wrong := small(item), map[string]any{}
		list("allowed", values/(1+len(item.Required)), "[", "]", always(jsonOf(one)))
		for name := range item.Properties {
			wrong[name] = []any{}
		}
		list("wrong items", values/(2+2*len(wrong)), "[", "]", always(jsonOf(wrong)))
		if item.Type.Is("string") {
			list("different texts", values, "[", "]", func(i int) string { return fmt.Sprintf(`"t%d"`, i) })
		}
	}
	if p.schema.Type.Is("string") {
		most := room
		if p.schema.MaxLength != nil {
			most = min(most, int(*p.schema.MaxLength))
		}
		for _, part := range []string{"a", "a.", "a/", "1,", "1h", "*/1 ", "a=b,", "(", "%41"} {
			put("as much of "+part+" as fits", `"`+strings.Repeat(part, most/len(part))+`"`)
		}
	}
	return out
}

// TestHostileBodiesCostLittle: no body that is read, be it allowed or wrong, costs more than 200 ms of CPU and 32 MiB,
// and its refusal is short. The database's part is not counted.
//
//nolint:paralleltest // it measures the process
func TestHostileBodiesCostLittle(t *testing.T) {
	b := setup(t, nil)
	b.org("acme", "")
	type body struct {
		operation, method, path string
		at                      place
		kind                    string
		size                    int
	}
	var usual, large []body
	for _, path := range contract(t).Paths.InMatchingOrder() {
		for method, op := range contract(t).Paths.Find(path).Operations() {
			if op.RequestBody == nil {
				continue
			}
			size, depth, list := 64<<10, 6, &usual
			if limit, ok := op.Extensions["x-max-body"].(float64); ok {
				size, depth, list = int(limit), 3, &large
			}
			for _, p := range placesIn(op.RequestBody.Value.Content[js].Schema.Value, "", "", "", depth) {
				if items := p.schema.MaxItems; items != nil { // the longest list that the contract allows fits
					require.LessOrEqual(t, *items*uint64(len(jsonOf(small(p.schema.Items.Value)))+1), uint64(size), "%s %s", op.OperationID, p.name)
				}
				for _, kind := range slices.Sorted(maps.Keys(oversized(1_000, p))) {
					*list = append(*list, body{op.OperationID, method, path, p, kind, size})
				}
			}
		}
	}
	slices.SortStableFunc(usual, func(x, y body) int { return strings.Compare(x.operation, y.operation) })
	require.Greater(t, len(usual), 4_000)
	most := map[string]uint64{}
	all := slices.Concat(deep.Some(t, 400, usual), deep.Some(t, 15, large))
	for _, x := range large { // the most expensive ones
		if x.kind == "allowed" {
			all = append(all, x)
		}
	}
	for _, x := range all {
		text := oversized(x.size, x.at)[x.kind]
		require.LessOrEqual(t, len(text), x.size, "%s %s: %s", x.operation, x.at.name, x.kind)
		queries := []string{""}
		if x.at.name == "" { // what else is wrong does not have it read
			queries = append(queries, "?a=0")
		}
		for _, query := range queries {
			cost := b.cheap(x.operation, x.at.name+": "+x.kind+query, func() *http.Request {
				return request(t, "http://api.test", x.method, sampleOf(x.path)+query, "operator", js, text)
			})
			most[x.operation] = max(most[x.operation], cost)
		}
	}
	for operation, limit := range dear {
		require.NotEmpty(t, limit.reason)
		require.Greater(t, most[operation], uint64(32<<20), "%s needs no exception", operation)
	}
}

// TestHostileQueriesCostLittle: nor does a request line or a header of the most bytes that the server reads.
//
//nolint:paralleltest // it measures the process
func TestHostileQueriesCostLittle(t *testing.T) {
	const size = 30 << 10
	b := setup(t, nil)
	b.org("acme", "")
	type sent struct{ operation, method, target, header, value string }
	var all []sent
	cursor := base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat("[", size/2)))
	texts := []string{"pAss9", "1", "1,", "a.", "%00", "(", "1h", "=", "W/%22a%22,", "2030-01-01T00:00:00Z"}
	for _, path := range contract(t).Paths.InMatchingOrder() {
		item := contract(t).Paths.Find(path)
		operations := item.Operations()
		for _, method := range slices.Sorted(maps.Keys(operations)) {
			op := operations[method]
			line := func(query string) {
				all = append(all, sent{op.OperationID, method, sampleOf(path) + "?" + query, "", ""})
			}
			line(strings.Repeat("a&", size/2))
			line(strings.Repeat("a=%41;&", size/7))
			line("cursor=" + cursor)
			if strings.HasSuffix(path, "}") {
				long := path[:strings.LastIndex(path, "{")] + strings.Repeat("%2F", size/3)
				all = append(all, sent{op.OperationID, method, sampleOf(long), "", ""})
			}
			headers := []string{
				"Accept", "Content-Type", "If-None-Match", "If-Match", "Last-Event-ID", "X-Forwarded-For", "Traceparent",
				"Origin",
			}
			for _, p := range append(slices.Clone(item.Parameters), op.Parameters...) {
				switch p.Value.In {
				case openapi3.ParameterInQuery:
					for _, text := range texts {
						line(p.Value.Name + "=" + strings.Repeat(text, size/len(text)))
					}
					line(strings.Repeat(p.Value.Name+"=a&", size/(len(p.Value.Name)+3)))
				case openapi3.ParameterInHeader:
					headers = append(headers, p.Value.Name)
				}
			}
			for _, name := range headers {
				for _, text := range []string{"a", `"a",`, "a/b;q=1,", "a;a=1;"} {
					value := strings.Repeat(text, size/len(text))
					all = append(all, sent{op.OperationID, method, sampleOf(path), name, value})
				}
			}
		}
	}
	require.Greater(t, len(all), 10_000)
	for _, x := range deep.Some(t, 600, all) {
		b.cheap(x.operation, fmt.Sprintf("%.80s %s %.40s", x.target, x.header, x.value), func() *http.Request {
			r := request(t, "http://api.test", x.method, x.target, "operator", "", "")
			if x.header != "" {
				r.Header.Set(x.header, x.value)
			}
			return r
		})
	}
}
