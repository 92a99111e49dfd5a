// Package supervise is a process around one command: it ends with everything that the command
// has started. It runs as the user of the command, on the host and in containers.
package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Verb makes the agent's program a supervisor, see Main.
const Verb = "supervise"

// What a supervisor prints to standard error before its command does. Without the first line the command has not
// begun, in spite of any other event; the second comes with ExitNotStarted.
const (
	supervising = "prego-agent: supervising\n"
	NotStarted  = "prego-agent: not started: "
)

// Statuses of a supervisor that are not its command's.
const (
	ExitNotStarted = 125
	ExitSignal     = 128 // plus the signal's number, as in shells
)

// KillTime is how long a supervisor tries to kill. Processes that remain have the signal pending: they wait in the
// kernel, for a disk perhaps.
const KillTime = 10 * time.Second

// Main runs one command and ends when it and everything that it started has ended: --for DURATION --silence DURATION
// --input -- PROGRAM ARGUMENTS. If its standard input ends or is silent for too long, or it gets SIGTERM, or the time
// is over, it kills them all. It is the subreaper of its descendants, so neither setsid nor a double fork escapes it.
//
// Silence covers inputs whose end may never arrive: a restarted engine leaves the inputs of its execs open, without a
// writer.
//
// The command gets no input, except with --input the first line of the supervisor's, and with --feed also the rest
// (Feed), and of the environment only what it needs to find programs. The exit status is the command's, or 128 plus
// the signal that ended it.
func Main(args []string) int {
	// The signal that ends the command with the supervisor is tied to the thread.
	runtime.LockOSThread()
	_, _ = io.WriteString(os.Stderr, supervising)
	refuse := func(err error) int {
		fmt.Fprintf(os.Stderr, "%s%v\n", NotStarted, err)
		return ExitNotStarted
	}
	input, feed := false, false
	if len(args) > 0 && (args[0] == "--input" || args[0] == "--feed") {
		input, feed, args = true, args[0] == "--feed", args[1:]
	}
	limit, silence, argv, err := parseSupervise(args)
	if err != nil {
		return refuse(err)
	}
	var line []byte
	if input {
		if line, err = firstLine(os.Stdin, silence); err != nil {
			return refuse(err)
		}
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return refuse(errno)
	}
	children, end, over := make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(children, syscall.SIGCHLD)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the reader is gone: killing continues
	command, to, err := startSupervised(argv, line, feed)
	if err != nil {
		return refuse(err)
	}
	var late, silent, tick, giveUp <-chan time.Time
	if limit > 0 {
		late = time.After(limit)
	}
	heard := func() {}
	if silence > 0 {
		t := time.NewTimer(silence)
		silent, heard = t.C, func() { t.Reset(silence) }
	}
	go func() {
		defer close(over)
		if feed {
			passOn(os.Stdin, to, heard)
			return
		}
		for b := make([]byte, 512); ; heard() {
			if _, err := os.Stdin.Read(b); err != nil {
				return
			}
		}
	}()
	status, killing := ExitSignal+int(syscall.SIGKILL), false
	for {
		ended, left := reap(command, &status)
		if !left {
			return status
		}
		if killing = killing || ended; killing {
			if giveUp == nil {
				giveUp = time.After(KillTime)
			}
			killDescendants()
			tick = time.After(5 * time.Millisecond)
		}
		select {
		case <-children:
		case <-tick:
		case <-end:
			killing = true
		case <-over:
			killing, over = true, nil
		case <-late:
			killing = true
		case <-silent:
			killing = true
		case <-giveUp:
			fmt.Fprintln(os.Stderr, "prego-agent: some of its processes can't be killed")
			return status
		}
	}
}

const prSetChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER

func parseSupervise(args []string) (limit, silence time.Duration, argv []string, err error) {
	for flag, into := range map[string]*time.Duration{"--for": &limit, "--silence": &silence} {
		i := slices.Index(args, flag)
		if end := slices.Index(args, "--"); i < 0 || i+1 >= end {
			continue
		}
		if *into, err = time.ParseDuration(args[i+1]); err != nil || *into <= 0 {
			return 0, 0, nil, fmt.Errorf("%s %q is no time", flag, args[i+1])
		}
		args = slices.Delete(slices.Clone(args), i, i+2)
	}
	if len(args) < 2 || args[0] != "--" || !filepath.IsAbs(args[1]) {
		return 0, 0, nil, errors.New("there must be a program after --, by its absolute path")
	}
	return limit, silence, args[1:], nil
}

// passedOn is the part of the environment that a command gets.
var passedOn = []string{"PATH", "HOME", "LANG"}

// maxInput bounds the line that a command gets, in bytes.
const maxInput = 32 << 10

// firstLine reads a line and not a byte more.
func firstLine(in *os.File, within time.Duration) ([]byte, error) {
	if within > 0 {
		// The line may never come, and only the kernel would end this.
		t := time.AfterFunc(within, func() {
			fmt.Fprintf(os.Stderr, "%sno input came\n", NotStarted)
			os.Exit(ExitNotStarted)
		})
		defer t.Stop()
	}
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := in.Read(b); err != nil {
			return nil, fmt.Errorf("its input: %w", err)
		}
		if line = append(line, b[0]); b[0] == '\n' {
			return line, nil
		}
		if len(line) > maxInput {
			return nil, errors.New("its input is no line")
		}
	}
}

// inputOf is a file with a command's input, and with more to come its other end. A pipe's
// buffer holds more than the longest line.
func inputOf(line []byte, more bool) (in, to *os.File, err error) {
	if line == nil {
		in, err = os.Open(os.DevNull)
		return in, nil, err
	}
	in, to, err = os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	if _, err = to.Write(line); more && err == nil {
		return in, to, nil
	}
	return in, nil, errors.Join(err, to.Close())
}

func startSupervised(argv []string, line []byte, more bool) (pid int, to *os.File, err error) {
	var env []string
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); slices.Contains(passedOn, name) {
			env = append(env, e)
		}
	}
	in, to, err := inputOf(line, more)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = in.Close() }()
	attr := &syscall.ProcAttr{
		Env: env, Files: []uintptr{in.Fd(), 1, 2},
		// A separate process group: a command that kills its group must not kill this process.
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	pid, err = syscall.ForkExec(argv[0], argv, attr)
	for n := 0; n < 20 && errors.Is(err, syscall.ETXTBSY); n++ { // the program is being replaced
		time.Sleep(50 * time.Millisecond)
		pid, err = syscall.ForkExec(argv[0], argv, attr)
	}
	if err != nil {
		return 0, nil, &os.PathError{Op: "start", Path: argv[0], Err: err}
	}
	return pid, to, nil
}

// reap collects the states of ended children and records the command's.
func reap(command int, status *int) (ended, left bool) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD: no child is left, so no descendant is either
			return ended, false
		case pid == 0:
			return ended, true
		case pid == command && ws.Signaled():
			ended, *status = true, ExitSignal+int(ws.Signal())
		case pid == command:
			ended, *status = true, ws.ExitStatus()
		}
	}
}

// killDescendants kills all descendants. They are stopped first: otherwise a process that forks fast enough could
// stay ahead forever.
func killDescendants() {
	stopped := make(map[int]bool)
	for range 8 {
		fresh := 0
		for pid, parent := range descendants() {
			if !stopped[pid] {
				stopped[pid] = true
				fresh++
				signalChild(pid, parent, syscall.SIGSTOP)
			}
		}
		if fresh == 0 {
			break
		}
	}
	for pid, parent := range descendants() {
		signalChild(pid, parent, syscall.SIGKILL)
	}
}

// signalChild signals a process unless its pid was reused meanwhile.
func signalChild(pid, parent int, sig syscall.Signal) {
	p, err := os.FindProcess(pid) // a handle to this very process
	if err != nil {
		return
	}
	defer func() { _ = p.Release() }()
	if is, ok := parentOf(pid); ok && (is == parent || is == os.Getpid()) {
		_ = p.Signal(sig)
	}
}

// descendants are the living processes below this one, each with its parent.
func descendants() map[int]int {
	parents := make(map[int]int)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if parent, ok := parentOf(pid); ok {
				parents[pid] = parent
			}
		}
	}
	self := os.Getpid()
	below := make(map[int]int)
	for pid, parent := range parents {
		for up, steps := parent, 0; up > 0 && steps < len(parents); up, steps = parents[up], steps+1 {
			if up == self {
				below[pid] = parent
				break
			}
		}
	}
	return below
}

// parentOf is a process's parent, unless it has already ended.
func parentOf(pid int) (int, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// The name in parentheses may contain anything.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 2 || f[0][0] == 'Z' || f[0][0] == 'X' {
		return 0, false
	}
	parent, err := strconv.Atoi(string(f[1]))
	return parent, err == nil
}

// AfterPreamble passes on a command's output, without the supervisor's line.
type AfterPreamble struct {
	To    io.Writer
	first []byte
	done  bool
	Begun bool // the supervisor ran, and so maybe did its command
}

func (a *AfterPreamble) Write(p []byte) (int, error) {
	if a.done {
		return a.To.Write(p)
	}
	a.first = append(a.first, p...)
	if len(a.first) < len(supervising) && strings.HasPrefix(supervising, string(a.first)) {
		return len(p), nil
	}
	rest, found := bytes.CutPrefix(a.first, []byte(supervising))
	a.done, a.Begun, a.first = true, found, nil
	if len(rest) > 0 {
		if _, err := a.To.Write(rest); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// AskTime is how long a command may take to end after the request to end.
const AskTime = KillTime + 5*time.Second
