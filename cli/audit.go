package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops"
)

var auditTable = Table[api.AuditEntry]{
	ID: "entry_id", Columns: "entry_id: entry, at, actor, verb, kind, id, change, from, operation", Spare: "operation, from, at",
	More: "role, org_id, request_id, seq, old, new, encoding, prev_hash, hash",
	Computed: map[string]func(api.AuditEntry) any{
		"change": func(e api.AuditEntry) any { return auditChange(e) },
		"old":    func(e api.AuditEntry) any { return columnsText(e.Old) },
		"new":    func(e api.AuditEntry) any { return columnsText(e.New) },
	},
}

// auditChange is what changed in short: columns with what they were and are.
func auditChange(e api.AuditEntry) string {
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

// columnsText is a row's columns as JSON, nil for none.
func columnsText(of *map[string]any) any {
	if of == nil {
		return nil
	}
	b, err := json.Marshal(*of)
	if err != nil {
		return "?"
	}
	return string(b)
}

// columnText is a value in short.
func columnText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	if r := []rune(string(b)); len(r) > 30 {
		return string(r[:29]) + "…"
	}
	return string(b)
}

var auditHeadTable = Table[api.AuditHead]{
	ID: "head", Columns: "head, seq, hash",
	Computed: map[string]func(api.AuditHead) any{"head": func(h api.AuditHead) any { return fmt.Sprintf("%d:%s", h.Seq, h.Hash) }},
}

func auditCommand(c *CLI) *cobra.Command {
	return c.group("audit", "Show who changed what, and verify that nobody changed the record of it",
		List[api.AuditEntry]{
			Short: "List changes, newest first", Path: "/v1/audit", Items: "entries", Limit: 100, Sorts: "at", Table: auditTable,
			Filters: "actor, kind, id, org: org_id, operation, verb, request: request_id, since, until", Values: map[string][]string{"verb": {"create", "update", "delete", "request"}},
			Example: "  prego audit list --kind fleet --id web --since 2026-11-01T00:00:00Z",
		},
		Show[api.AuditEntry]{Use: "show ENTRY…", Short: "Show changes with what they were sealed with", Path: "/v1/audit/{entry}", Table: auditTable},
		Action[api.AuditHead]{
			Use: "head", Short: "Print the end of the chain, to be kept outside the database", Method: http.MethodGet, Path: "/v1/audit/head", Table: auditHeadTable,
			Say: func(_ *call, h api.AuditHead) string { return fmt.Sprintf("%d:%s", h.Seq, h.Hash) },
		},
		auditVerify{},
	)
}

// auditVerify goes along the whole chain, some of it with each request.
type auditVerify struct{}

func (auditVerify) command(c *CLI) *cobra.Command {
	head, from := "", int64(0)
	cmd := &cobra.Command{
		Use: "verify", Short: "Verify that no entry was changed or removed", Example: "  prego audit verify --head 4690:9d2f0c4be7a15d0c6a1bd3f06f8d2f4e1c7f5a90b3d8e2417c65a9f0e3b1d274",
		Long: "Compute the chain of the audit anew, and compare. What was removed from the end, or written anew\nas a whole, is only found with a head that was kept elsewhere (prego audit head). The exit status\nis 3 if something is wrong.",
	}
	cmd.Flags().StringVar(&head, "head", "", "a head that was kept, as NUMBER:HASH")
	cmd.Flags().Int64Var(&from, "from", 0, "number in the chain to begin with")
	return c.run(cmd, "", func(in *call) (func() error, error) {
		var all api.AuditVerification
		for next := from; ; {
			q := url.Values{}
			if next > 0 {
				q.Set("from", strconv.FormatInt(next, 10))
			}
			if head != "" {
				q.Set("head", head)
			}
			var part api.AuditVerification
			if err := in.client.Do(in.Context(), http.MethodGet, "/v1/audit/verification", q, nil, &part); err != nil {
				return nil, err
			}
			if next == from {
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
