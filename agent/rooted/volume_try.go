package rooted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// A drill restores a volume's backup on any host, even without the volume, into a directory of the host's own disk
// that only root can enter. The directory is deleted before the verb answers.

// allTried is the directory of all of them.
func (h *Machine) allTried() string { return filepath.Join(h.Path(wire.DevicesDir), "tried") }

// triedDir is where a backup is restored for a look.
func (h *Machine) triedDir(id, name string) string { return filepath.Join(h.allTried(), id+"."+name) }

// sweepTried deletes what an agent that was killed left of drills. None is under way.
func (h *Machine) sweepTried() error { return os.RemoveAll(h.allTried()) }

// trySealed restores a sealed backup, compares it with the list in it, and deletes it again; the sealed file stays
// until it is dropped. args are its name, its digests and that of its content, and how many bytes and files that is.
func (v *attached) trySealed(ctx context.Context, args []string, identity string, out io.Writer) error {
	name, sum, plainSum := args[0], args[1], args[2]
	if !forDrill(name) {
		return fmt.Errorf("%s is no drill", name)
	}
	bytes, err1 := strconv.ParseInt(args[3], 10, 64)
	files, err2 := strconv.ParseInt(args[4], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	key, err := seal.Identity(identity)
	if err != nil {
		return err
	}
	f, err := v.checkedSeal(name, sum)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	dir := v.host.triedDir(v.id, name)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(v.host.allTried(), 0o700)); err != nil {
		return err
	}
	if err := v.host.fits(v.host.allTried(), bytes, files); err != nil {
		return err
	}
	from := &watched{f: f, host: v.host, dir: v.host.allTried()}
	tried, err := v.extract(ctx, from, key, plainSum, dir)
	if from.full != nil { // not that the backup can't be read
		err = from.full
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(wire.OpenedVolume{Name: name, Entries: tried.Entries(), Bytes: tried.Bytes()})
}

// fits makes sure that the host's own disk has room for so many bytes and files, besides what it
// keeps free: what runs here is not to stop for a drill.
func (h *Machine) fits(dir string, bytes, files int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	free, keep := room(&st, h.spare())
	// A file takes whole blocks: half a one more than it has, as a rule.
	if need := bytes + files*st.Bsize/2; free-need < keep {
		return seal.Failed(wire.FailedDiskFull,
			"the host's own disk has %d MB free, %d must stay free: %d more don't fit", free>>20, keep>>20, need>>20)
	}
	if left := int64(st.Ffree) - files; st.Files > 0 && left < int64(st.Files)/20 { //nolint:gosec // far below 2^63
		return seal.Failed(wire.FailedDiskFull,
			"the host's own disk has room for %d more files, and must keep a twentieth of all free: %d don't fit",
			st.Ffree, files)
	}
	return nil
}

// watched reads a sealed file as long as the disk keeps its free room: others also write to it.
type watched struct {
	f    *os.File
	host *Machine
	dir  string
	left int   // until the disk is asked again
	full error // it has no more room
}

func (w *watched) Read(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		if w.full = w.host.fits(w.dir, 0, 0); w.full != nil {
			return 0, w.full
		}
		w.left = 4 << 20
	}
	return w.f.Read(p)
}
