package site

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// command runs bench and answers its prompts on standard input, one line each. Frappe prompts with getpass, which
// reads the session's terminal if there is one, instead of standard input: so it gets a session without a terminal.
// Passwords are never arguments: bench writes its command lines to logs/bench.log, and every user in the container
// can list processes.
func (b *bench) command(answers []string, args ...string) error {
	cmd := exec.Command(b.program, args...) //nolint:noctx // arguments were checked; the supervisor ends it
	cmd.Dir = b.dir
	cmd.Stdout, cmd.Stderr = b.err, b.err
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if len(answers) > 0 {
		cmd.Stdin = strings.NewReader(strings.Join(answers, "\n") + "\n")
	}
	runtime.LockOSThread() // bench is killed when the thread that started it ends
	defer runtime.UnlockOSThread()
	step()
	b.err.full = false
	err := cmd.Run()
	step()
	b.err.end()
	verb := args[0]
	if verb == "--site" {
		verb = args[2]
	}
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended) && (b.err.full || b.full()):
		return seal.Failed(wire.FailedDiskFull, "bench %s: %s", verb, ended.ProcessState)
	case errors.As(err, &ended):
		return fmt.Errorf("bench %s: %s", verb, ended.ProcessState)
	case err != nil:
		return fmt.Errorf("bench %s: %w", verb, err)
	}
	return nil
}

// saysFull matches the C library's words for a full disk and a full quota, which gzip, tar and MariaDB's client and
// server pass on, and GNU tar's for a file that ends before its record (src/misc.c, write_error_details). Frappe
// prints their output (frappe/utils/__init__.py, execute_in_shell).
var saysFull = regexp.MustCompile(`No space left on device|Disk quota exceeded|: Wrote only \d+ of \d+ bytes`)

// hardlyAny is how many free bytes are as good as none.
const hardlyAny = 1 << 20

// full reports whether the disk of the sites is full. Frappe deletes the files of a failed backup, and prints the
// reason only in verbose mode (frappe/commands/site.py, backup).
func (b *bench) full() bool {
	var at syscall.Statfs_t
	return syscall.Statfs(b.path(""), &at) == nil && at.Bavail*uint64(at.Bsize) < hardlyAny //nolint:gosec // a size of blocks
}

// masked passes on lines without the secrets in them. Frappe prints whole commands and statements when they fail.
type masked struct {
	to     io.Writer
	hidden []string
	line   []byte
	full   bool // some program reported a full disk
}

// minHidden is the length of the shortest secret that is masked; shorter ones would match by chance.
const minHidden = 4

func (m *masked) hide(secret string) {
	if len(secret) >= minHidden {
		m.hidden = append(m.hidden, secret)
	}
}

// looksSecret matches secrets that Frappe generates: the password of a site's database,
// in the command line of MariaDB's client and in the statement that creates its user.
var looksSecret = regexp.MustCompile(`(?i)(--password=|identified by |"db_password": |'db_password': |rediss?://[^:/@\s]*:)('[^']*'|"[^"]*"|[^\s'"@]+)`)

// maxLine bounds how much of an unfinished line is kept.
const maxLine = 64 << 10

func (m *masked) Write(p []byte) (int, error) {
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			break
		}
		m.line = append(m.line, p[:i+1]...)
		m.flush()
		p = p[i+1:]
	}
	if m.line = append(m.line, p...); len(m.line) > maxLine {
		m.flush()
	}
	return n, nil
}

// end flushes an unfinished last line.
func (m *masked) end() {
	if len(m.line) > 0 {
		m.line = append(m.line, '\n')
		m.flush()
	}
}

const mask = "********"

func (m *masked) flush() {
	text := string(m.line)
	for _, s := range m.hidden {
		text = strings.ReplaceAll(text, s, mask)
	}
	text = looksSecret.ReplaceAllString(text, "${1}"+mask)
	m.full = m.full || saysFull.MatchString(text)
	m.line = m.line[:0]
	_, _ = io.WriteString(m.to, text) // a gone reader is noticed elsewhere
}
