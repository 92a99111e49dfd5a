package edge

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prego/prego/agent/wire"
)

// Rules of probes. A site that answers is requested every 30 s, or at a rate of 200 a second for all sites if that is
// less often. A site is down when three probes in a row fail, and up with the first that succeeds.
const (
	probeEvery = 30 * time.Second
	probeRate  = 200 // per second, of sites that answer
	downAfter  = 3
	// Failed probes are repeated sooner: a site is down after ten seconds, and a restart of a container takes less.
	probeAgain = 5 * time.Second
	// Sites that are down are requested more often than others: their users wait.
	probeDown = 10 * time.Second
	// A process that has just started imports the apps first. Connections over a private network are a matter of
	// milliseconds.
	probeConnect = 2 * time.Second
	probeAnswer  = 10 * time.Second
)

// health is what the probes of a site have shown.
type health struct {
	state  wire.EdgeProbeState // "" until the first verdict
	cause  wire.EdgeProbeCause // of the last failed probe
	since  time.Time           // of state
	failed int                 // probes in a row
	first  time.Time           // of these: when it began
}

// after returns a site's health after a probe that began at a time, and whether it has changed. The cause of a probe
// that succeeded is "".
func (h health) after(cause wire.EdgeProbeCause, began time.Time) (next health, changed bool) {
	if cause == "" {
		if h.state == wire.EdgeProbeUp {
			return health{state: h.state, since: h.since}, false
		}
		return health{state: wire.EdgeProbeUp, since: began}, true
	}
	next = h
	if next.failed++; next.failed == 1 {
		next.first = began
	}
	next.cause = cause
	switch {
	case h.state == wire.EdgeProbeDown:
		return next, cause != h.cause
	case next.failed < downAfter:
		return next, false
	}
	next.state, next.since = wire.EdgeProbeDown, next.first
	return next, true
}

// pause returns the time until the next probe of one of so many sites.
func (h health) pause(sites int) time.Duration {
	switch {
	case h.state == wire.EdgeProbeDown:
		return probeDown
	case h.failed > 0:
		return probeAgain
	}
	return max(probeEvery, time.Duration(sites)*time.Second/probeRate)
}

// suspect: its last probes failed, but too few to be down.
func (h health) suspect() bool { return h.failed > 0 && h.failed < downAfter }

// verdict is the cause of a site that is down.
func (h health) verdict() wire.EdgeProbeCause {
	if h.state != wire.EdgeProbeDown {
		return ""
	}
	return h.cause
}

// sessionStopped is in Frappe's answer 503 of a site in maintenance mode (frappe/app.py, init_request).
const sessionStopped = "SessionStopped"

// causeOf judges a probe: "" means that the site answers. An answer that refuses the request is an answer.
func causeOf(status int, body []byte, err error) wire.EdgeProbeCause {
	var network net.Error
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return wire.EdgeProbeTimeout
	case err != nil:
		return wire.EdgeProbeRefused
	case status == http.StatusNotFound:
		return wire.EdgeProbeMissing
	case status == http.StatusServiceUnavailable && bytes.Contains(body, []byte(sessionStopped)):
		return wire.EdgeProbeMaintenance
	case status >= http.StatusInternalServerError:
		return wire.EdgeProbeError
	}
	return ""
}
