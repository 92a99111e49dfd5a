package org

import (
	"slices"
	"time"
)

// DomainRules set how often names are looked up, and how long a name that no longer shows
// its TXT record is served on.
type DomainRules struct {
	Retry    time.Duration // after the first look that found nothing; doubles
	RetryMax time.Duration
	Recheck  time.Duration // of a verified name
	Grace    time.Duration // from the first look without the TXT record until the name is lost
}

// SoughtFor is how long a name that is not verified is looked for.
const SoughtFor = 14 * 24 * time.Hour

// DomainAnswer is the DNS answer for a name.
type DomainAnswer struct {
	At     time.Time
	TXT    []string // at its challenge's name
	Failed string   // why that is not known; "" when it is
	Points bool
}

// Next is a domain after a look. That another org has the name, or that the org has as many
// as it may, is for the store to find.
func (r DomainRules) Next(d Domain, look DomainAnswer) Domain {
	d.CheckedAt = &look.At
	switch {
	case look.Failed != "":
		// Nothing is known: neither is a name lost by it, nor found.
		d.Failures++
		d.Reason, d.Message = ReasonLookupFailed, look.Failed
		d.NextCheck = r.again(d, look.At)
	case slices.Contains(look.TXT, d.ChallengeValue()):
		if d.Status != DomainVerified {
			d.Status, d.VerifiedAt = DomainVerified, &look.At
		}
		d.Points, d.Failures, d.MissingSince, d.Reason, d.Message = look.Points, 0, nil, "", ""
		d.NextCheck = new(look.At.Add(r.Recheck))
	default:
		d.Points = look.Points
		d = r.notFound(d, look)
	}
	return d
}

func (r DomainRules) notFound(d Domain, look DomainAnswer) Domain {
	d.Failures++
	d.Reason, d.Message = ReasonTXTMissing, "there is no TXT record at "+d.ChallengeName()
	if len(look.TXT) > 0 {
		d.Reason, d.Message = ReasonTXTWrong, "no TXT record at "+d.ChallengeName()+" says "+d.ChallengeValue()
	}
	if d.Status == DomainVerified {
		if d.MissingSince == nil {
			d.MissingSince, d.Failures = &look.At, 1
		}
		if !look.At.Before(d.MissingSince.Add(r.Grace)) {
			d.Status, d.SoughtUntil = DomainLost, look.At.Add(SoughtFor)
		}
	}
	d.NextCheck = r.again(d, look.At)
	if d.NextCheck == nil && d.Status == DomainPending {
		d.Status, d.Reason, d.Message = DomainExpired, ReasonClaimExpired, "its TXT record was not seen in time; ask for a check once it is there"
	}
	return d
}

// again is when a name that was not found is looked for next; nil is never.
func (r DomainRules) again(d Domain, now time.Time) *time.Time {
	wait := r.Retry
	for i := 1; i < d.Failures && wait < r.RetryMax; i++ {
		wait *= 2
	}
	next := now.Add(min(wait, r.RetryMax))
	switch {
	case d.Status == DomainVerified && d.MissingSince != nil:
		// The end of the grace period is not missed by a long pause.
		if end := d.MissingSince.Add(r.Grace); end.After(now) && end.Before(next) {
			next = end
		}
	case d.Status != DomainVerified && !now.Before(d.SoughtUntil):
		return nil
	}
	return &next
}
