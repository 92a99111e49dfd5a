package cli

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

var tenantColumns = computed(map[string]func(api.Tenant) string{
	"state": func(t api.Tenant) string {
		state := string(t.State) + why(t.StatusReason, t.StatusMessage)
		if t.ConvergedState != "" && t.ConvergedState != string(t.State) {
			state += " (in effect: " + t.ConvergedState + ")"
		}
		return state
	},
	"storage": func(t api.Tenant) string { return textOf(t.Storage, storageText) },
	"uptime":  func(t api.Tenant) string { return textOf(t.Uptime, uptimeText) },
})

// textOf formats an optional value, "" if it is nil.
func textOf[T any](v *T, text func(T) string) string {
	if v == nil {
		return ""
	}
	return text(*v)
}

// watchTenant follows a tenant; wanted checks the outcome, nil accepts any.
func watchTenant(wanted func(in *call, t api.Tenant) bool) Watch[api.Tenant] {
	return Watch[api.Tenant]{
		Use: "watch TENANT", Short: "Follow a tenant until its operations are done", Path: "/v1/tenants/{tenant}", Again: "prego tenant watch {tenant}",
		Lines: tenantLines, Rests: tenantRests, Doing: func(t api.Tenant) string { return t.Slug + " is " + cmp.Or(deref(t.StatusReason), string(t.State)) },
		Wanted: wanted, Is: func(t api.Tenant) standing {
			return standing{fmt.Sprint("tenant ", t.TenantId), string(t.State), t.StatusReason, t.StatusMessage}
		},
		Done: func(_ *call, t api.Tenant) string {
			text := fmt.Sprintf("tenant %s is %s", t.TenantId, strings.ReplaceAll(string(t.State), "_", " "))
			switch t.State {
			case tenant.Active:
				text += map[bool]string{true: ": "}[t.SiteUrl != nil] + deref(t.SiteUrl)
			case tenant.GracePeriod:
				text = fmt.Sprintf("tenant %s is now in its grace period", t.TenantId)
			}
			return text
		},
	}
}

// tenantRests reports whether no operation is running, and the state's effects are in
// place.
func tenantRests(t api.Tenant) bool {
	s := t.State
	return s != tenant.Trial && s != tenant.Provisioning && t.ConvergedState == string(t.State)
}

func tenantLines(t api.Tenant) []line {
	lines := make([]line, len(t.Timeline))
	for i, e := range t.Timeline {
		text := fmt.Sprintf("%-16s %s", t.Slug, e.Step)
		if e.FromState != e.ToState {
			text += "  " + cmp.Or(e.FromState, "new") + " → " + e.ToState
		}
		for _, s := range []*string{e.Message, e.Reason} {
			if s != nil {
				text += "  " + oneLine(*s)
			}
		}
		lines[i] = line{key: strconv.FormatInt(e.Id, 10), at: e.At, text: text + "  [" + e.Actor + "]"}
	}
	return lines
}

// decidedRows explains a tenant's placement, as names and values.
func decidedRows(d api.Decision) [][2]string {
	outcome := d.Outcome + " by " + d.Algorithm
	if d.Code != nil {
		outcome += " (" + *d.Code + ")"
	}
	rows := append([][2]string{{"decision", outcome + ", " + d.At.Format(time.RFC3339)}}, explained(d.DecisionLog)...)
	return slices.DeleteFunc(rows, func(row [2]string) bool { return row[1] == "" })
}

// explained explains why a place was chosen, and counts the rejected ones.
func explained(e placement.Explanation) [][2]string {
	looked := fmt.Sprintf("%d candidates", e.CandidatesEvaluated)
	if e.Score > 0 || e.ConfidenceScore > 0 { // a place was chosen
		looked += fmt.Sprintf(", score %.3f, confidence %.3f", e.Score, e.ConfidenceScore)
	}
	var counts []string
	for _, reason := range slices.Sorted(maps.Keys(e.RejectedCounts)) {
		counts = append(counts, fmt.Sprintf("%s %d", reason, e.RejectedCounts[reason]))
	}
	constraint := ""
	if c := e.Constraint; c != nil {
		constraint = c.String() + map[bool]string{true: "; an override ignored it"}[c.Ignored]
	}
	return [][2]string{{"why", e.SelectionReason}, {"looked at", looked}, {"rejected", strings.Join(counts, ", ")}, {"constraint", constraint}}
}

func mailText(m api.TenantMail) string {
	text := fmt.Sprintf("%s by %s:%d", m.Sender, m.Server, m.Port)
	if m.Login != nil {
		text += " as " + *m.Login
	}
	return text + map[bool]string{true: ", STARTTLS"}[m.Tls]
}

// uptimeText is the uptime by month, the latest first.
func uptimeText(months []api.Uptime) string {
	var out []string
	for _, m := range months {
		text := m.Month + " "
		if m.UptimePct != nil {
			text += fmt.Sprintf("%.3f %%, ", math.Floor(*m.UptimePct*1000)/1000) // 100 % only without any downtime
		}
		text += age(time.Duration(m.DownSeconds*float64(time.Second))) + " down"
		if m.UnobservedSeconds >= 1 {
			text += ", " + age(time.Duration(m.UnobservedSeconds*float64(time.Second))) + " unobserved"
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// storageText describes a site's usage, quota and level.
func storageText(s api.TenantStorage) string {
	gb := func(n int64) string { return fmt.Sprintf("%.2f", float64(n)/1e9) }
	text := fmt.Sprintf("%s of %s GB (%.0f %%): database %s, files %s; backups %s GB extra; %s", gb(s.UsedBytes), gb(s.QuotaBytes), s.UsedPct,
		gb(s.DatabaseBytes), gb(s.FilesBytes), gb(s.BackupsBytes), s.Level)
	if s.OverSince != nil {
		text += ", over since " + s.OverSince.Format(time.RFC3339)
	}
	text += map[bool]string{true: ", the site is read-only"}[s.ReadOnly] + "; measured " + s.MeasuredAt.Format(time.RFC3339)
	if s.Message != nil {
		text += ", the last try failed: " + oneLine(*s.Message)
	}
	return text
}

var showTenant = hook{watch: watchTenant(nil), after: more(func(in *call, t api.Tenant) error {
	if t.Decision != nil {
		fmt.Fprintln(in.w)
		in.pairs(in.w, decidedRows(*t.Decision)...)
	}
	timeline(in, tenantLines(t))
	return nil
})}

func tenantIs(state tenant.State) func(*call, api.Tenant) bool {
	return func(_ *call, t api.Tenant) bool { return t.State == state }
}

// tenantChanges follows a tenant to the state that its change was accepted with.
var tenantChanges = hook{watch: watchTenant(func(in *call, t api.Tenant) bool {
	accepted := idOf(in.answer, "state")
	if accepted == string(tenant.Provisioning) { // cancelled: it ends as failed, as requested
		return tenantIs(tenant.Failed)(in, t) && prego.Reason(deref(t.StatusReason)) == prego.ReasonCancelled
	}
	return string(t.State) == accepted
})}

// cancelTenant cannot be undone even where nothing else is affected: a tenant that waits has lost its turn.
var cancelTenant = hook{watch: tenantChanges.watch, confirm: true}

// siteWait is how long to wait for a site's host, whose commands may take a minute.
const siteWait = 2 * time.Minute

// passwordOnce warns that a password is printed only once.
func passwordOnce(in *call) error {
	if idOf(in.answer, "password") != "" {
		fmt.Fprintln(in.ErrOrStderr(), "This password is not stored and will not be shown again.")
	}
	return nil
}

var addUser = hook{
	wait: siteWait, after: passwordOnce,
	flags: func(_ *cobra.Command, f *pflag.FlagSet) {
		f.Bool("no-password", false, "set none: the user requests one from the site by mail")
	},
	body: func(in *call, body object) (any, error) {
		if in.is("no-password") {
			body["password"] = "none"
		}
		return body, nil
	},
}

// setMail reads a password if there is a login.
var setMail = hook{
	wait: siteWait, say: said(func(_ *call, m api.TenantMail) string { return mailText(m) }),
	body: func(in *call, body object) (_ any, err error) {
		if body["login"] != nil {
			body["password"], err = in.secret(in.InOrStdin(), in.text("password-file"))
		}
		return body, err
	},
}

var storageQuota = hook{
	flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
		f.Var(sizeFlag{new(int64), disk, diskText}, "size", "the quota, like 50GB; in whole GB")
		cmd.MarkFlagsOneRequired("gb", "size")
		cmd.MarkFlagsMutuallyExclusive("gb", "size")
	},
	body: func(in *call, body object) (any, error) {
		if in.given("size") {
			size, _ := in.Flag("size").Value.(sizeFlag)
			body["gb"] = (*size.n + 1e9 - 1) / 1e9
		}
		in.args["gb"] = fmt.Sprint(body["gb"])
		return body, nil
	},
}
