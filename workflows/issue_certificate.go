package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/tenant"
)

// IssueCertificateInput names the certificate; everything else is in its row.
type IssueCertificateInput struct {
	CertificateID prego.CertificateID `json:"certificate_id"`
}

const (
	// askPatience bounds one question to the authority, with its retries.
	askPatience = 3 * time.Minute
	// maxIssuePoll is the longest pause between two looks.
	maxIssuePoll = 30 * time.Second
	// removePatience is how long taking answers away is tried; the sweep begins again.
	removePatience = time.Hour
)

// IssueCertificate gets a certificate issued: it orders it or takes up the order that is open, lets
// the answers to the challenges be seen, looks for them itself before the authority does, submits
// the request and stores the certificate. Any failure is recorded with the time of the next
// attempt, which is another run: this one waits for no limit.
func IssueCertificate(ctx workflow.Context, in IssueCertificateInput) error {
	i := &issueCertificate{ref: activities.CertificateRef{CertificateID: in.CertificateID}}
	return i.end(ctx, i.run(ctx))
}

type issueCertificate struct {
	ref   activities.CertificateRef
	plan  activities.CertificatePlan
	order activities.OrderStep
	shown bool // answers may be seen

	steps *activities.Certificates // nil: names the activities
}

func (i *issueCertificate) run(ctx workflow.Context) error {
	var s story
	s.row(ctx, &i.plan, i.steps.PlanCertificate, i.ref)
	i.shown = i.plan.Left > 0
	if !i.plan.Needed {
		return s.err
	}
	if i.plan.OrgID != "" {
		s.found(ctx, AttrOrgID.ValueSet(string(i.plan.OrgID)))
	}
	i.details(ctx, "ordering")
	s.get(call(ctx, "order the certificate, or take up its order", askPatience), &i.order, i.steps.PlaceOrder, i.ref)
	i.shown = i.shown || s.err != nil || i.order.Left > 0 // over HTTP, the rows alone are
	if s.err == nil && i.order.State == tenant.OrderPending {
		s.err = i.prove(ctx)
	}
	if s.err == nil {
		s.err = i.collect(ctx)
	}
	return s.err
}

// prove shows that the names are ours.
func (i *issueCertificate) prove(ctx workflow.Context) error {
	ref := activities.OrderRef{CertificateID: i.ref.CertificateID, OrderID: i.order.OrderID}
	i.details(ctx, fmt.Sprintf("showing %d answers", i.order.Left))
	if i.plan.Challenge == tenant.ChallengeDNS {
		if err := do(call(ctx, "make the TXT records", i.plan.ServeWithin), nil, i.steps.ShowChallenges, ref); err != nil {
			return err
		}
	}
	var seen activities.ServedStep
	err := i.until(ctx, i.plan.ServeWithin, func() (bool, time.Duration, error) {
		err := do(call(ctx, "look for the answers", askPatience), &seen, i.steps.LookAtChallenges, ref)
		return seen.Served, 0, err
	})
	if err != nil {
		return err
	}
	if !seen.Served {
		return issueFailure(tenant.IssueNotServed, fmt.Sprintf("%s; no authority was asked after %s", seen.Message, i.plan.ServeWithin))
	}
	i.details(ctx, "the authority looks")
	return do(call(ctx, "let the authority look", askPatience), nil, i.steps.AcceptChallenges, ref)
}

// collect waits for the authority, hands in the request, and stores the certificate.
func (i *issueCertificate) collect(ctx workflow.Context) error {
	ref := activities.OrderRef{CertificateID: i.ref.CertificateID, OrderID: i.order.OrderID}
	err := i.until(ctx, i.plan.IssueWithin, func() (bool, time.Duration, error) {
		step, summary := i.steps.ReadOrder, "ask how far the order is"
		if i.order.State == tenant.OrderReady {
			step, summary = i.steps.FinalizeOrder, "hand in the request"
		}
		err := do(call(ctx, summary, askPatience), &i.order, step, ref)
		return i.order.State == tenant.OrderValid, i.order.Again, err
	})
	if err != nil {
		return err
	}
	if i.order.State != tenant.OrderValid {
		return issueFailure(tenant.IssueServer, fmt.Sprintf("the order was still %s after %s", i.order.State, i.plan.IssueWithin))
	}
	return do(call(ctx, "download and store the certificate", askPatience), nil, i.steps.StoreCertificate, ref)
}

// until repeats a check until it reports that all is done, or the time is over. The pause grows;
// again is the least that the other side requested. A check that moved to another state is repeated
// immediately.
func (i *issueCertificate) until(ctx workflow.Context, within time.Duration, look func() (done bool, again time.Duration, err error)) error {
	began, pause := workflow.Now(ctx), i.plan.Poll
	for {
		state := i.order.State
		done, again, err := look()
		if err != nil || done {
			return err
		}
		if i.order.State == tenant.OrderReady && state != tenant.OrderReady {
			continue
		}
		wait := max(pause, min(again, maxIssuePoll))
		if workflow.Now(ctx).Add(wait).Sub(began) > within {
			return nil
		}
		if err := sleep(ctx, wait, "until the next look"); err != nil {
			return err
		}
		pause = min(pause*3/2, maxIssuePoll)
	}
}

// end records a failure, and takes the answers away unless another run needs them.
func (i *issueCertificate) end(ctx workflow.Context, err error) error {
	free, _ := workflow.NewDisconnectedContext(ctx)
	outcome := "issued"
	switch {
	case err == nil && !i.plan.Needed:
		outcome = "nothing_to_do"
	case err == nil, isSuperseded(err):
	case ctx.Err() != nil || temporal.IsCanceledError(err):
		// The order stays open, and its answers stay, at which the authority may be looking:
		// the certificate is still due, so another run takes both up.
		outcome, i.shown = "cancelled", false
	default:
		class, details := activities.IssueOf(err)
		outcome = string(class.Reason())
		failed := activities.IssueOutcome{
			CertificateID: i.ref.CertificateID, OrderID: i.order.OrderID, Class: class, Message: errorMessage(err),
			Name: details.Name, RetryAfter: details.RetryAfter, Failures: i.plan.Failures,
		}
		i.details(free, fmt.Sprintf("ending as %s: %s", outcome, failed.Message))
		if e := do(write(free, "record why it was not issued: "+outcome), nil, i.steps.IssueFailed, failed); e != nil && !isSuperseded(e) {
			return e
		}
		err = nil // it is in the row, and tried again
	}
	if i.shown {
		if e := do(call(free, "take the answers away", removePatience), nil, i.steps.RemoveChallenges, i.ref); e != nil && !isSuperseded(e) {
			return e
		}
	}
	if err == nil {
		i.details(free, outcome)
	}
	setOutcome(free, outcome)
	if isSuperseded(err) {
		return nil
	}
	return err
}

// issueFailure is a failure that the run itself found.
func issueFailure(class tenant.IssueClass, message string) error {
	return temporal.NewNonRetryableApplicationError(message, string(class.Reason()), nil)
}

func (i *issueCertificate) details(ctx workflow.Context, text string) {
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** (%v): %s", i.ref.CertificateID, i.plan.Names, text))
}

// SweepCertificates makes the rows of certificates follow names, and starts due runs until none is
// left.
func SweepCertificates(ctx workflow.Context) (activities.CertificateSweep, error) {
	var steps *activities.Certificates
	var total activities.CertificateSweep
	for range 20 {
		did, err := periodically[activities.CertificateSweep](ctx, "look at names and certificates", 5*time.Minute, steps.SweepCertificates)
		if err != nil {
			return total, err
		}
		total.Wanted, total.Started, total.Asked = total.Wanted+did.Wanted, total.Started+did.Started, total.Asked+did.Asked
		if did.Wanted+did.Started+did.Asked == 0 {
			return total, nil
		}
	}
	return total, nil
}
