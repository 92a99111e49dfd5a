package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// stateFile is in the directory of each site created here, and moves with it. It
// distinguishes a finished site from an interrupted one.
const stateFile = "prego_site.json"

// state is what verbs record about a site.
type state struct {
	DBName string `json:"db_name"`
	// Made: the site was finished. Before that it was never used.
	Made         bool   `json:"made,omitempty"`
	PromotedFrom string `json:"promoted_from,omitempty"`
	// Installing is an app whose installation began, and may be unfinished.
	Installing string `json:"installing,omitempty"`
	// Scheduled is set during a restore: whether the scheduler was on.
	Scheduled *bool `json:"scheduled,omitempty"`
	// Arriving: it comes from another server, and is not used here yet.
	Arriving bool `json:"arriving,omitempty"`
	// DataComes: its data arrives in another database, which it will use.
	DataComes bool `json:"data_comes,omitempty"`
	// Held are the previous values of the settings that hold-site changed; null is a missing one.
	Held map[string]json.RawMessage `json:"held,omitempty"`
}

// errNotOurs means that a site was not created by this program, or does not exist.
var errNotOurs = errors.New("it was not made by this program")

// readState reads a site's state; nil if there is no site.
func (b *bench) readState(site string) (*state, error) {
	info, err := b.sites.Lstat(site)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // a site that is not there has no state
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%s is no directory", site)
	}
	text, err := b.sites.ReadFile(site + "/" + stateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("site %s is there: %w", site, errNotOurs)
	}
	if err != nil {
		return nil, err
	}
	var s state
	if json.Unmarshal(text, &s) != nil {
		return nil, fmt.Errorf("%s of site %s can't be read", stateFile, site)
	}
	return &s, nil
}

func (b *bench) writeState(dir string, s state) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return b.put(dir+"/"+stateFile, append(text, '\n'), 0o644)
}

// putJSON replaces a file that is this program's own.
func (b *bench) putJSON(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	step()
	return b.put(name, text, 0o600)
}

// put replaces a file atomically.
func (b *bench) put(name string, content []byte, mode fs.FileMode) error {
	draft := name + ".new"
	f, err := b.sites.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	step()
	return b.sites.Rename(draft, name)
}

// finishedSite is the state of a finished site.
func (b *bench) finishedSite(site string) (*state, error) {
	s, err := b.readState(site)
	switch {
	case errors.Is(err, errNotOurs): // of a host that was taken over with its sites
		at, err := b.connection(site)
		return &state{Made: true, DBName: at.Name}, err
	case err != nil:
		return nil, err
	case s == nil:
		return nil, fmt.Errorf("site %s does not exist", site)
	case !s.Made:
		return nil, fmt.Errorf("site %s is not finished", site)
	}
	return s, nil
}

// arrivingSite is the state of a site that comes from another server.
func (b *bench) arrivingSite(site string) (*state, error) {
	s, err := b.readState(site)
	if err == nil && (s == nil || !s.Arriving) {
		err = fmt.Errorf("site %s is not expected here", site)
	}
	return s, err
}

// own is where files that belong to no site are kept, among the sites.
const own = ".prego"

// lockFiles is the number of locks. Sites share them, so that deleted sites leave no files.
const lockFiles = 64

// lock limits sites to one verb: shared for verbs that may run in parallel. It is released when the process ends, in
// any way.
func (b *bench) lock(how int, sites ...string) error {
	if err := b.sites.MkdirAll(own, 0o755); err != nil {
		return err
	}
	var names []string
	for _, s := range sites {
		names = append(names, lockOf("lock", s))
	}
	slices.Sort(names) // all verbs lock in the same order
	for _, name := range slices.Compact(names) {
		if err := b.hold(name, how); err != nil {
			return err
		}
	}
	return nil
}

// lockData limits the data that arrive for a site to one archive at a time, which takes long.
func (b *bench) lockData(site string) error { return b.hold(lockOf("lock-data", site), alone) }

func lockOf(kind, site string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(site))
	return fmt.Sprintf("%s/%s-%02d", own, kind, h.Sum32()%lockFiles)
}

func (b *bench) hold(name string, how int) error {
	f, err := b.sites.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	b.held = append(b.held, f)
	return flock(f, how)
}

const (
	shared = syscall.LOCK_SH
	alone  = syscall.LOCK_EX
)

func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
