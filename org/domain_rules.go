package org

import (
	"slices"
	"strconv"
	"strings"
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
	// Elsewhere is why it does not lead here; "" when it does.
	Elsewhere string
}

// Leads returns whether a name with these addresses leads to ours only, and why not.
func Leads(found, ours []string) (here bool, elsewhere string) {
	var foreign []string
	for _, address := range found {
		if slices.Contains(ours, address) {
			continue
		}
		typ := "A"
		if strings.Contains(address, ":") {
			typ = "AAAA"
		}
		foreign = append(foreign, typ+" "+address)
	}
	more := len(foreign) - maxForeign
	if more > 0 {
		foreign = append(foreign[:maxForeign], strconv.Itoa(more)+" more")
	}
	switch {
	case len(found) == 0:
		return false, "it has no A or AAAA record"
	case len(foreign) == 0:
		return true, ""
	case len(foreign) == 1:
		return false, foreign[0] + " is not an edge"
	}
	return false, strings.Join(foreign, ", ") + " are not edges"
}

// maxForeign is how many foreign addresses are named.
const maxForeign = 4

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
		d.Failures, d.MissingSince, d.Reason, d.Message = 0, nil, "", ""
		d.NextCheck = new(look.At.Add(r.Recheck))
		if !look.Points {
			d.Reason, d.Message = ReasonPointsElsewhere, look.Elsewhere
			d.NextCheck = new(look.At.Add(min(r.RetryMax, r.Recheck)))
		}
		d = d.leads(look)
	default:
		d = r.notFound(d.leads(look), look)
	}
	return d
}

// leads records where a name leads.
func (d Domain) leads(look DomainAnswer) Domain {
	d.Points = look.Points
	switch {
	case d.Points || d.Status != DomainVerified:
		d.ElsewhereSince = nil
	case d.ElsewhereSince == nil:
		d.ElsewhereSince = &look.At
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
