package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops"
)

// quotaChange is what a limit was and is, and the reason. Without a limit of its own an org has its tier's.
func quotaChange(e api.AuditEntry) string {
	was, is, why := any("the tier's"), any("the tier's"), any(nil)
	if e.Old != nil {
		was = (*e.Old)["limit_value"]
	}
	if e.New != nil {
		is, why = (*e.New)["limit_value"], (*e.New)["reason"]
	}
	var parts []string
	if was != nil && is != nil {
		parts = append(parts, fmt.Sprintf("limit %v→%v", was, is))
	}
	if why != nil && why != "" {
		parts = append(parts, fmt.Sprintf("because %v", why))
	}
	return strings.Join(parts, ", ")
}

// auditChange is what changed in short: columns with what they were and are.
func auditChange(e api.AuditEntry) string {
	if e.Kind == "quota" {
		return quotaChange(e)
	}
	if e.Verb != ops.AuditUpdate && e.Old != nil == (e.New != nil) || e.Old == nil || e.New == nil {
		return ""
	}
	var parts []string
	for name, is := range *e.New {
		parts = append(parts, name+" "+columnText((*e.Old)[name])+"→"+columnText(is))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// columnsText is a row's columns as JSON.
func columnsText(of *map[string]any) string {
	if of == nil {
		return ""
	}
	return jsonText(*of)
}

// columnText is a value in short.
func columnText(v any) string {
	text := jsonText(v)
	if r := []rune(text); len(r) > 30 {
		return string(r[:29]) + "…"
	}
	return text
}

var auditColumns = computed(map[string]func(api.AuditEntry) string{
	"change": auditChange,
	"old":    func(e api.AuditEntry) string { return columnsText(e.Old) },
	"new":    func(e api.AuditEntry) string { return columnsText(e.New) },
})

// auditVerify goes along the whole chain, some of it with each request.
func auditVerify(c *CLI) *cobra.Command {
	cmd, v := c.own("verifyAudit")
	return c.run(cmd, "", func(in *call) (func() error, error) {
		q, _, err := in.request(v, hook{})
		if err != nil {
			return nil, err
		}
		var all api.AuditVerification
		for first, next := true, int64(0); ; first = false {
			if next > 0 {
				q.Set("from", strconv.FormatInt(next, 10))
			}
			var part api.AuditVerification
			if err := in.client.Do(in.Context(), http.MethodGet, v.Path, q, nil, &part); err != nil {
				return nil, err
			}
			if first {
				all.Ok, all.FirstSeq, all.CheckedFrom, all.Problems = true, part.FirstSeq, part.CheckedFrom, []api.AuditProblem{}
			}
			all.Ok = all.Ok && part.Ok
			all.Entries, all.Sealed, all.Unsealed, all.CheckedThrough, all.Head = part.Entries, part.Sealed, part.Unsealed, part.CheckedThrough, part.Head
			for _, p := range part.Problems {
				if !slices.ContainsFunc(all.Problems, func(met api.AuditProblem) bool { return met.Message == p.Message && deref(met.Seq) == deref(p.Seq) }) {
					all.Problems = append(all.Problems, p)
				}
			}
			if part.NextFrom == nil || *part.NextFrom <= next {
				break
			}
			next = *part.NextFrom
		}
		raw, err := json.Marshal(all)
		if err != nil {
			return nil, err
		}
		in.keep(raw)
		if in.forPeople() {
			showVerification(in, all)
		}
		if all.Ok {
			return nil, nil
		}
		return func() error {
			return &Exit{Code: ExitOutcome, Err: errors.New("the audit is damaged")}
		}, nil
	})
}

func showVerification(in *call, v api.AuditVerification) {
	for _, p := range v.Problems {
		at := ""
		if p.Seq != nil {
			at = fmt.Sprintf(" at number %d", *p.Seq)
		}
		if p.EntryId != nil {
			at += fmt.Sprintf(", entry %d", *p.EntryId)
		}
		fmt.Fprintf(in.w, "%s%s: %s\n", p.Problem, at, p.Message)
	}
	if v.Ok {
		fmt.Fprintf(in.w, "intact: %d entries, numbers %d to %d verified, %d not sealed yet; head %d:%s\n", v.Entries, v.CheckedFrom, v.CheckedThrough, v.Unsealed, v.Head.Seq, v.Head.Hash)
	}
}
