package rooted

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// A frozen file system without its freezer is an outage that only a reboot ends. So a separate process freezes and
// does nothing else: it thaws on its parent's command, when the parent is gone, on SIGTERM, and when its time is
// over. If both are killed together, the next of this host's processes first thaws every mounted volume
// (Devices.Run), seconds later.

// FreezeVerb makes the agent's program keep a file system frozen, see Freeze.
const FreezeVerb = "freeze"

// longestFreeze is how long a file system may be frozen: what writes to it waits as long.
const longestFreeze = 10 * time.Second

// Of linux/fs.h; not in x/sys/unix.
const (
	ioctlFreeze = 0xc0045877 // FIFREEZE
	ioctlThaw   = 0xc0045878 // FITHAW
)

// What the process prints.
const (
	saysFrozen = "frozen"
	saysThawed = "thawed" // as its parent asked
	saysLate   = "late"   // because its time was over
)

// Freeze freezes the file system of a directory: DIRECTORY DURATION. It prints a line once it is frozen, and thaws it
// when its input ends, on SIGTERM, and after the duration. Its last line gives the reason, and for how many
// milliseconds it was frozen. The exit status is 0 if it is thawed.
func Freeze(args []string) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: freeze DIRECTORY DURATION")
		return 2
	}
	limit, err := time.ParseDuration(args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	dir, err := os.Open(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Before it is frozen: from then on nothing may end this process but what it waits for.
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	parent := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(parent)
	}()
	over := time.NewTimer(limit) // freezing itself may take long, with much to write
	if err := unix.IoctlSetInt(int(dir.Fd()), ioctlFreeze, 0); err != nil {
		fmt.Fprintln(os.Stderr, "freeze: "+err.Error())
		return 1
	}
	began := time.Now()
	_, _ = fmt.Println(saysFrozen)
	says := saysThawed
	select {
	case <-parent:
	case <-end:
		says = saysLate
	case <-over.C:
		says = saysLate
	}
	if err := thaw(int(dir.Fd())); err != nil {
		fmt.Fprintln(os.Stderr, "thaw: "+err.Error())
		return 1
	}
	_, _ = fmt.Println(says, time.Since(began).Milliseconds())
	return 0
}

// thaw thaws a file system that may be frozen.
func thaw(fd int) error {
	err := unix.IoctlSetInt(fd, ioctlThaw, 0)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// frozen is a file system that another process keeps frozen.
type frozen struct {
	dir    *os.File
	cmd    *exec.Cmd
	pipe   io.Closer
	out    *bufio.Reader
	stderr *strings.Builder
	// alone ends that it is thawed when its context ends.
	alone func() bool
}

// freeze freezes a file system for at most so long, and as long as its context lives.
func freeze(ctx context.Context, dir *os.File, limit time.Duration) (*frozen, error) {
	f := &frozen{dir: dir, stderr: &strings.Builder{}}
	// Not CommandContext, which kills: it ends by its pipe.
	f.cmd = exec.Command(host.OwnProgram, FreezeVerb, dir.Name(), limit.String()) //nolint:noctx // see above
	f.cmd.Env = []string{"GOMAXPROCS=2"}
	f.cmd.Stderr = f.stderr
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal to this process's group is not for it
	in, err := f.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	f.pipe, f.out = in, bufio.NewReader(out)
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	f.alone = context.AfterFunc(ctx, func() { _ = in.Close() })
	line, err := f.out.ReadString('\n')
	if strings.TrimSpace(line) != saysFrozen || ctx.Err() != nil {
		_, _ = f.Release()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("it can't be frozen: %s %w", strings.TrimSpace(f.stderr.String()), errors.Join(err))
	}
	return f, nil
}

// Release thaws the file system even if the freezing process is gone.
func (f *frozen) Release() (time.Duration, error) {
	f.alone()
	_ = f.pipe.Close()
	rest, _ := io.ReadAll(f.out)
	waited := f.cmd.Wait()
	thawed := thaw(int(f.dir.Fd()))
	words := strings.Fields(string(rest))
	if len(words) != 2 || waited != nil || thawed != nil {
		return 0, errors.Join(fmt.Errorf("the process that kept it frozen is gone: %s", strings.TrimSpace(f.stderr.String())), waited, thawed)
	}
	ms, err := strconv.ParseInt(words[1], 10, 64)
	held := time.Duration(ms) * time.Millisecond
	if words[0] != saysThawed {
		return held, seal.Failed(wire.FailedNotStill, "it was thawed after %s, before its last pass was done: too much changes meanwhile", held)
	}
	return held, err
}
