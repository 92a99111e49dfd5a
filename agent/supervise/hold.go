package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/prego/prego/agent/wire"
)

// HoldVerb makes the agent's program hold another one, see HoldMain.
const HoldVerb = "hold"

const (
	// holdLook is how often the confirmation is looked for. Starting a worker takes longer.
	holdLook = 500 * time.Millisecond
	// holdEnd is how long the program may take to end once the confirmation was withdrawn.
	holdEnd = 5 * time.Second
)

// HoldMain runs -- PROGRAM ARGUMENTS only while this host is confirmed (wire.ConfirmedPath): it waits for the
// confirmation, and if it is withdrawn, ends the program with all that it started and waits again. It is the first
// process of containers that run jobs and send mail: a host that was given up as lost, and returns, does neither.
//
// SIGTERM goes to the program. If the program ends by itself, its status is that of this process.
func HoldMain(args []string) int { return hold(wire.ConfirmedPath, args) }

func hold(confirmed string, args []string) int {
	if len(args) < 2 || args[0] != "--" {
		fmt.Fprintln(os.Stderr, "usage: prego-agent "+HoldVerb+" -- PROGRAM ARGUMENTS")
		return ExitNotStarted
	}
	h := holder{confirmed: confirmed, argv: args[1:], children: make(chan os.Signal, 1), end: make(chan os.Signal, 1)}
	signal.Notify(h.children, syscall.SIGCHLD)
	signal.Notify(h.end, syscall.SIGTERM, syscall.SIGINT)
	for told := false; ; {
		if h.isConfirmed() {
			if status, withdrawn := h.run(); !withdrawn || h.asked {
				return status
			}
			told = false
		}
		if !told {
			fmt.Fprintln(os.Stderr, "prego-agent: held until the control plane confirms this host")
			told = true
		}
		select {
		case <-time.After(holdLook):
		case <-h.end:
			return 0
		}
	}
}

type holder struct {
	confirmed     string // a file that is there while the host is confirmed
	argv          []string
	children, end chan os.Signal
	asked         bool // to end, while the program ran or was being ended
}

func (h *holder) isConfirmed() bool {
	_, err := os.Stat(h.confirmed)
	return err == nil
}

// run runs the program until it ends. withdrawn is true if it was ended here, with all its descendants.
func (h *holder) run() (status int, withdrawn bool) {
	refuse := func(err error) (int, bool) {
		fmt.Fprintf(os.Stderr, "%s%v\n", NotStarted, err)
		return ExitNotStarted, false
	}
	// What the program's descendants leave behind is collected, and killed, here.
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return refuse(errno)
	}
	path, err := exec.LookPath(h.argv[0])
	if err != nil {
		return refuse(err)
	}
	attr := &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}}
	program, err := syscall.ForkExec(path, h.argv, attr)
	if err != nil {
		return refuse(&os.PathError{Op: "start", Path: path, Err: err})
	}
	var kill <-chan time.Time
	killing := false
	for {
		ended, left := reap(program, &status)
		switch {
		case !withdrawn && ended, withdrawn && !left:
			return status, withdrawn
		case ended, killing:
			killing = true
			killDescendants()
		}
		tick := time.After(holdLook)
		if killing {
			tick = time.After(5 * time.Millisecond)
		}
		select {
		case <-h.children:
		case s := <-h.end:
			h.asked = true
			_ = syscall.Kill(program, s.(syscall.Signal))
		case <-kill:
			killing = true
		case <-tick:
			if !withdrawn && !h.isConfirmed() {
				withdrawn, kill = true, time.After(holdEnd)
				_ = syscall.Kill(program, syscall.SIGTERM)
			}
		}
	}
}
