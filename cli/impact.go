package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/impact"
)

// accepting sends a request that may be refused until its impact is accepted, and asks for that: --yes accepts what
// is interrupted, --accept destroys also what is destroyed.
func (in *call) accepting(send func(http.Header) error, header http.Header) error {
	var accepted impact.Class
	if f := in.Flag("accept"); f != nil {
		accepted = impact.Class(f.Value.String())
	}
	switch {
	case accepted == "" && in.is("yes"):
		accepted = impact.Interrupts
	case accepted != "" && accepted != impact.Interrupts && accepted != impact.Destroys:
		return usagef("--accept must be interrupts or destroys")
	}
	err := send(header)
	if header.Get("Impact-Accepted") != "" { // it was asked for before
		return err
	}
	refused, ok := errors.AsType[*Refusal](err)
	if !ok || refused.Code != string(prego.CodeImpactNotAccepted) || refused.Impact == nil {
		return err
	}
	i := *refused.Impact
	if accepted == "" || i.Class.Exceeds(accepted) {
		printImpact(in.ErrOrStderr(), i, in.Now())
		if in.Width(in.InOrStdin()) == 0 {
			return usagef("without a terminal to ask at, accept it with --accept %s", i.Class)
		}
		fmt.Fprintf(in.ErrOrStderr(), "Type %s to accept that: ", in.typed)
		if err := in.typedAgain(); err != nil {
			return err
		}
	}
	header.Set("Impact-Accepted", i.Digest)
	return send(header)
}

// confirmed shows a request's impact on a terminal, and asks for the name of the thing, unless the impact is accepted
// by a flag. The acceptance becomes part of the request.
func (in *call) confirmed(v *api.Verb, q url.Values, body any, header http.Header) error {
	if in.Width(in.InOrStdin()) == 0 || in.is("dry-run") || in.is("yes") || in.given("accept") {
		return nil
	}
	dry := maps.Clone(q)
	dry.Set("dry_run", "true")
	var t dryRun
	if err := in.client.send(in.Context(), v.Method, in.path(v.Path), dry, http.Header{}, body, &t); err != nil {
		return err
	}
	if t.Refusal != nil {
		return nil // it is refused whatever is typed
	}
	printImpact(in.ErrOrStderr(), t.Impact, in.Now())
	fmt.Fprintf(in.ErrOrStderr(), "Type %s to confirm: ", in.typed)
	if err := in.typedAgain(); err != nil {
		return err
	}
	if t.Impact.Class.Exceeds(impact.Moves) {
		header.Set("Impact-Accepted", t.Impact.Digest)
	}
	return nil
}

// dryRun is the answer of a dry run.
type dryRun struct {
	Impact  impact.Impact
	Refusal *api.Problem // by a caveat of the token
}

// tried shows the answer of a dry run, and what show adds to it.
func (in *call) tried(show func(*call, impact.Impact) error) error {
	var t dryRun
	if err := json.Unmarshal(in.answer, &t); err != nil {
		return fmt.Errorf("the API's answer: %w", err)
	}
	in.keep(in.answer)
	if in.forPeople() {
		printImpact(in.w, t.Impact, in.Now())
		if show != nil {
			if err := show(in, t.Impact); err != nil {
				return err
			}
		}
		if t.Refusal != nil {
			fmt.Fprintf(in.w, "The request itself would be refused: %s.\n", *t.Refusal.Detail)
		}
		fmt.Fprintln(in.w, "It was a dry run: nothing has changed.")
	}
	return nil
}

// printImpact writes an impact in words, a line for each thing.
func printImpact(w io.Writer, i impact.Impact, now time.Time) {
	for _, l := range i.Lines(now) {
		fmt.Fprintln(w, l)
	}
}
