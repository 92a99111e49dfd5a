package docsrun

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/child"
)

// limit bounds each command. It is for a machine with much else to do: what takes long
// takes seconds.
const limit = 4 * time.Minute

// session is a shell that runs the commands of one document, in an empty directory.
type session struct {
	dir    string
	shell  *child.Process
	stdin  io.WriteCloser
	ended  chan int // the status of each command
	number int
}

var errHangs = errors.New("does not end")

// newSession starts a shell with the environment. What it starts dies with it, where the
// prefix makes it the first process of a namespace.
func newSession(t *testing.T, env []string, prefix ...string) *session {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "session-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) // Postgres is another user, and keeps its data elsewhere where it can't come
	s := &session{dir: dir, ended: make(chan int)}
	status, w, err := os.Pipe()
	require.NoError(t, err)
	args := append(prefix, "bash", "--noprofile", "--norc")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.ExtraFiles = s.dir, env, []*os.File{w}
	s.stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	s.shell, err = child.Start(cmd, syscall.SIGKILL)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	go func() {
		defer close(s.ended)
		for lines := bufio.NewScanner(status); lines.Scan(); {
			n, _ := strconv.Atoi(lines.Text())
			s.ended <- n
		}
	}()
	t.Cleanup(func() {
		s.shell.Kill()
		for range s.ended { // until the reader has ended
		}
		_ = status.Close()
		_ = os.RemoveAll(s.dir) // the rest goes with scratch
	})
	return s
}

// run runs one command and returns its output, standard error included, and its status.
func (s *session) run(text string, limit time.Duration) (output string, status int, err error) {
	s.number++
	file := filepath.Join(s.dir, fmt.Sprintf(".command-%d", s.number))
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		return "", 0, err
	}
	// The shell itself reads the file, so that variables and directories carry on.
	if _, err := fmt.Fprintf(s.stdin, ". %[1]s </dev/null >%[1]s.out 2>&1; echo $? >&3\n", file); err != nil {
		return "", 0, fmt.Errorf("the shell has ended: %w", err)
	}
	select {
	case got, ok := <-s.ended:
		if status = got; !ok {
			err = errors.New("ended the shell")
		}
	case <-time.After(limit):
		err = fmt.Errorf("%w within %s", errHangs, limit)
	}
	b, readErr := os.ReadFile(file + ".out")
	return string(b), status, errors.Join(err, readErr)
}

// play runs a document's commands and returns its faults. It ends early where the shell can't continue.
func play(s *session, d document, limit time.Duration, log func(format string, args ...any)) []string {
	var problems []string
	for _, c := range d.commands {
		began := time.Now()
		out, status, err := s.run(c.text, limit)
		log("%s: %.1f s: %s", c.at, time.Since(began).Seconds(), c.text)
		var wrong string
		switch {
		case err != nil:
			wrong = err.Error()
		case refused(c.want) && status == 0:
			wrong = "is not refused"
		case !refused(c.want) && status != 0:
			wrong = "exits with " + strconv.Itoa(status)
		case c.want != nil:
			missing, ok := matches(c.want, out)
			if ok {
				continue
			}
			wrong = "answers something else than shown: " + missing + " is not where it should be in"
		default:
			continue
		}
		problems = append(problems, fmt.Sprintf("%s: %s\n%s\n%s", c.at, c.text, wrong, out))
		if err != nil {
			break
		}
	}
	return problems
}
