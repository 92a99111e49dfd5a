package site

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// A site moves to another server as sealed archives of its directory: first all of it while it serves, then the
// changes since, while it is held. Files that stay on a host, such as the site's owner here, are not in them. The
// settings arrive beside the place where Frappe looks for them, so that until settle-site there is no site, and no
// worker runs its jobs.

// Files of a site's directory, for moves.
const (
	arrivedConfig = siteConfig + ".arrived"
	arrivedState  = stateFile + ".arrived"
	arrivingPart  = ".arriving.part"
	listEntry     = ".prego-list" // the first entry of an archive
	locksDir      = "locks"       // of Frappe's
)

// The two ways to unpack: everything becomes as in the archive, or only missing files are added.
const (
	unpackAll     = "all"
	unpackMissing = "missing"
)

// packedIn is the content of an archive by its name: the marks of all files. It stays on its host.
func packedIn(site, name string) string {
	return site + "/" + backupsDir + "/.packed-" + name + ".json"
}

// packList is the first entry of an archive: all that the site has.
type packList struct {
	Dirs  byName[uint32] `json:"dirs"`  // their modes
	Files byName[bool]   `json:"files"` // also links
}

// byName has a value for each path below a site's directory. A path is any bytes, which JSON has escaped.
type byName[V any] map[string]V

// MarshalJSON implements json.Marshaler.
func (m byName[V]) MarshalJSON() ([]byte, error) {
	out := make(map[string]V, len(m))
	for name, v := range m {
		out[url.PathEscape(name)] = v
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *byName[V]) UnmarshalJSON(text []byte) error {
	var in map[string]V
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*m = make(byName[V], len(in))
	for escaped, v := range in {
		name, err := url.PathUnescape(escaped)
		if err != nil {
			return err
		}
		(*m)[name] = v
	}
	return nil
}

// isBelow reports whether a name is the shortest of a path below a directory.
func isBelow(name string) bool {
	return name != "." && filepath.IsLocal(name) && path.Clean(name) == name && !strings.Contains(name, "\x00")
}

// walk visits everything below a directory in the order of its names, which are any bytes: fs.WalkDir demands UTF-8.
// With fs.SkipDir it leaves a directory out. What disappears meanwhile is skipped.
func walk(root *os.Root, dir string, visit func(name string, d fs.DirEntry) error) error {
	f, err := root.Open(dir)
	if err != nil {
		return ignoreGone(err)
	}
	entries, err := f.ReadDir(-1)
	if err = errors.Join(err, f.Close()); err != nil {
		return ignoreGone(err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, d := range entries {
		name := path.Join(dir, d.Name())
		switch err := ignoreGone(visit(name, d)); {
		case errors.Is(err, fs.SkipDir):
			continue
		case err != nil:
			return err
		case d.IsDir():
			if err := walk(root, name, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// staysOnHost reports whether a path below a site's directory is left out of archives, and left alone by arriving
// ones.
func staysOnHost(name string) bool {
	switch name {
	case stateFile, stateFile + ".new", siteConfig, siteConfig + ".new", ownerFile, ownerFile + ".new", arrivedConfig, arrivedState, arrivingPart, locksDir:
		return true
	}
	return strings.HasPrefix(name, locksDir+"/") || strings.HasPrefix(name, backupsDir+"/.")
}

// expectSite makes the directory that a site arrives in. It is no site yet.
func (b *bench) expectSite(site, name string) error {
	there, err := b.readState(site)
	switch {
	case err != nil:
		return err
	case there == nil:
		draft := own + "/new-" + site
		if err := errors.Join(b.sites.RemoveAll(draft), b.sites.MkdirAll(draft, 0o755)); err != nil {
			return err
		}
		if err := b.writeState(draft, state{DBName: name, Arriving: true}); err != nil {
			return err
		}
		step()
		if err := b.sites.Rename(draft, site); err != nil {
			return err
		}
	case !there.Arriving || there.DBName != name:
		return fmt.Errorf("site %s is there already", site)
	}
	return b.printResult(map[string]any{"site": site, "db_name": name})
}

// below opens a site's directory: links that lead out of it are not followed.
func (b *bench) below(site string) (*os.Root, error) { return b.sites.OpenRoot(site) }

// markOf changes whenever a file does: ctime can't be set.
func markOf(info fs.FileInfo) string {
	s, _ := info.Sys().(*syscall.Stat_t)
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%d:%d:%d.%d:%o", s.Ino, s.Size, s.Ctim.Sec, s.Ctim.Nsec, s.Mode)
}

// packSite seals an archive of a site's directory, or of its changes since an earlier archive. An existing archive is
// the answer to a repeated call.
func (b *bench) packSite(site, name, recipient, since string) error {
	if s, err := b.readState(site); err == nil && s == nil {
		return seal.Failed(wire.FailedNoSite, "site %s is not here", site)
	}
	here, err := b.finishedSite(site)
	if err == nil && here.Held != nil {
		err = b.parkJobs(site, jobsPrefix+name)
	}
	if err != nil {
		return err
	}
	if there := b.sealedBefore(site, name, recipient); there != nil {
		return b.printResult(there)
	}
	before := byName[string]{}
	if since != "" {
		// Without it everything is packed again.
		if text, err := b.sites.ReadFile(packedIn(site, since)); err == nil {
			_ = json.Unmarshal(text, &before)
		}
	}
	var out wire.PackedSite
	marks := byName[string]{}
	if err := b.seal(site, name, recipient, &out.SealedBackup, &out, marks, func(archive *tar.Writer) error {
		return b.pack(archive, site, before, marks, &out)
	}); err != nil {
		return err
	}
	return b.printResult(out)
}

// pack writes a site's directory into an archive: a list of everything, and those files whose mark is not as before.
// Marks are taken before files are read: what changes meanwhile has another one afterwards.
func (b *bench) pack(to *tar.Writer, site string, before, marks byName[string], out *wire.PackedSite) error {
	root, err := b.below(site)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	list, kinds := packList{Dirs: byName[uint32]{}, Files: byName[bool]{}}, map[string]fs.FileMode{}
	err = walk(root, ".", func(name string, d fs.DirEntry) error {
		if staysOnHost(name) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case mode.IsDir():
			list.Dirs[name] = uint32(mode.Perm())
		case mode.IsRegular() || mode.Type() == fs.ModeSymlink:
			list.Files[name] = true
			marks[name], kinds[name] = markOf(info), mode
		}
		return nil // sockets and the like are of who listens there
	})
	if err != nil {
		return err
	}
	out.All = len(list.Files)
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	if err := packBytes(to, listEntry, text); err != nil {
		return err
	}
	for _, file := range []string{siteConfig, stateFile} {
		text, err := root.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) && file == stateFile {
			continue
		}
		if err != nil {
			return err
		}
		if err := packBytes(to, file, text); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(list.Files)) {
		if mark := marks[name]; mark != "" && before[name] == mark {
			continue
		}
		step()
		if err := packFile(to, root, name, kinds[name]); err != nil {
			return err
		}
		out.Changed++
	}
	return nil
}

func packBytes(to *tar.Writer, name string, text []byte) error {
	if err := to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o600, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := to.Write(text)
	return err
}

func packFile(to *tar.Writer, root *os.Root, name string, kind fs.FileMode) error {
	if kind.Type() == fs.ModeSymlink {
		target, err := root.Readlink(name)
		if err != nil {
			return ignoreGone(err)
		}
		return to.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, Format: tar.FormatPAX})
	}
	f, err := root.Open(name)
	if err != nil {
		return ignoreGone(err) // the next archive does not list it
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if err := to.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX,
	}); err != nil {
		return err
	}
	n, err := io.CopyN(to, f, info.Size())
	if errors.Is(err, io.EOF) {
		// It became shorter, and so is packed again; the rest is padded.
		_, err = io.CopyN(to, zeros{}, info.Size()-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// unpackSite decrypts an archive into a site's directory. In a directory that is not a site yet, it replaces all
// files; a running site only receives missing files.
func (b *bench) unpackSite(site, name, sum, plainSum, how string) error {
	s, err := b.readState(site)
	switch {
	case err != nil:
		return err
	case s == nil || how == unpackAll && !s.Arriving:
		return fmt.Errorf("site %s is not expected here", site)
	}
	key, err := seal.Identity(b.secrets[wire.SecretBackupIdentity])
	if err != nil {
		return err
	}
	f, err := b.openSealed(site, name, sum)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	root, err := b.below(site)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	u := &unpacking{root: root, missing: how == unpackMissing}
	if err := seal.Read(f, key, plainSum, u.entries); err != nil {
		return err
	}
	if !u.listed {
		return seal.Failed(wire.FailedUnreadable, "it is no archive of a site")
	}
	removed := 0
	if how == unpackAll {
		if removed, err = u.tidy(); err != nil {
			return err
		}
	}
	step()
	if !s.Arriving && s.Held == nil {
		if err := b.queueJobs(site); err != nil {
			return err
		}
	}
	if err := b.dropSealed(site, name); err != nil {
		return err
	}
	return b.printResult(map[string]any{"site": site, "name": name, "files": u.files, "bytes": u.bytes, "removed": removed})
}

// unpacking is an archive on its way into a directory.
type unpacking struct {
	root    *os.Root
	missing bool
	listed  bool
	list    packList
	files   int
	bytes   int64
}

// maxList bounds the parts of an archive that are read into memory: a list, or settings.
const maxList = 256 << 20

func (u *unpacking) entries(archive *tar.Reader) error {
	return seal.Entries(archive, func(h *tar.Header) error {
		step()
		return u.entry(archive, h)
	})
}

func (u *unpacking) entry(from io.Reader, h *tar.Header) error {
	bad := seal.Failed(wire.FailedUnreadable, "%q is nothing of a site's", h.Name)
	if h.Name == listEntry {
		text, err := io.ReadAll(io.LimitReader(from, maxList))
		if err != nil || json.Unmarshal(text, &u.list) != nil {
			return seal.Failed(wire.FailedUnreadable, "its list can't be read")
		}
		u.listed = true
		return u.dirs()
	}
	to := map[string]string{siteConfig: arrivedConfig, stateFile: arrivedState}[h.Name]
	switch {
	case !u.listed:
		return bad
	case to != "" && u.missing:
		return nil // the settings belong to the site
	case to == "" && (!isBelow(h.Name) || staysOnHost(h.Name)):
		return bad
	case to == "":
		to = h.Name
	}
	if u.missing {
		if _, err := u.root.Lstat(to); err == nil {
			return nil
		}
	}
	if err := u.root.RemoveAll(arrivingPart); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		if err := u.write(from, h); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := u.root.Symlink(h.Linkname, arrivingPart); err != nil {
			return err
		}
	default:
		return bad
	}
	if info, err := u.root.Lstat(to); err == nil && info.IsDir() {
		if err := u.root.RemoveAll(to); err != nil {
			return err
		}
	}
	u.files++
	return u.root.Rename(arrivingPart, to)
}

func (u *unpacking) write(from io.Reader, h *tar.Header) error {
	f, err := u.root.OpenFile(arrivingPart, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, from)
	u.bytes += n
	if err = errors.Join(err, f.Chmod(h.FileInfo().Mode().Perm()), f.Close()); err != nil {
		return err
	}
	if h.ModTime.IsZero() {
		return nil
	}
	return u.root.Chtimes(arrivingPart, h.ModTime, h.ModTime)
}

// dirs creates the directories of the list, parents first.
func (u *unpacking) dirs() error {
	for _, name := range slices.Sorted(maps.Keys(u.list.Dirs)) {
		if !isBelow(name) || staysOnHost(name) {
			return seal.Failed(wire.FailedUnreadable, "%q is nothing of a site's", name)
		}
		info, err := u.root.Lstat(name)
		if err == nil && !info.IsDir() && !u.missing {
			err = u.root.Remove(name)
			info = nil
		}
		if err = ignoreGone(err); err != nil {
			return err
		}
		if info == nil {
			if err := u.root.MkdirAll(name, fs.FileMode(u.list.Dirs[name])&fs.ModePerm|0o700); err != nil {
				return err
			}
		}
	}
	return nil
}

// tidy removes what the site does not have any more.
func (u *unpacking) tidy() (removed int, err error) {
	wanted := make(map[string]bool, len(u.list.Files))
	for name := range u.list.Files {
		wanted[name] = true
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			wanted[dir] = true
		}
	}
	for name := range u.list.Dirs {
		wanted[name] = true
	}
	var surplus []string
	err = walk(u.root, ".", func(name string, d fs.DirEntry) error {
		switch {
		case name == backupsDir || wanted[name]:
			return nil
		case staysOnHost(name):
		default:
			surplus = append(surplus, name)
		}
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	for _, name := range surplus {
		if err == nil {
			err = u.root.RemoveAll(name)
		}
	}
	return len(surplus), err
}

// settleSite creates a site from the arrived files, held as at its previous place. Its database is at an address that
// this host reaches, or here.
func (b *bench) settleSite(site, address string) error {
	password, err := b.databasePassword()
	if err != nil {
		return err
	}
	s, err := b.arrivingSite(site)
	if err != nil {
		return err
	}
	db, err := b.nextDatabase(s.DBName, address)
	if err != nil {
		return err
	}
	complete, _, err := inspectTables(db, s.DBName)
	if err != nil {
		return err
	}
	if !complete {
		return fmt.Errorf("database %s lacks tables", s.DBName)
	}
	config, err := b.readConfig(site + "/" + arrivedConfig)
	if err != nil {
		return err
	}
	var came state
	text, err := b.sites.ReadFile(site + "/" + arrivedState)
	if err == nil {
		err = json.Unmarshal(text, &came)
	}
	if err = ignoreGone(err); err != nil {
		return err
	}
	if len(config) == 0 || came.Held == nil {
		return fmt.Errorf("site %s has not arrived whole", site)
	}
	for _, key := range []string{"db_host", "db_port", "db_socket", "db_user", "db_ssl_ca", "db_ssl_cert", "db_ssl_key"} {
		delete(config, key) // of where it was
	}
	if address == hereAddress {
		maps.Copy(config, policy.Settings{"db_type": quoteJSON("mariadb"), "db_name": quoteJSON(s.DBName), "db_password": quoteJSON(password)})
	} else {
		maps.Copy(config, b.databaseSettings(s.DBName, password, address))
	}
	delete(config, "redis_cache") // connect-cache sets the new one
	s.Made, s.Held, s.Scheduled, s.PromotedFrom = true, came.Held, came.Scheduled, came.PromotedFrom
	if err := b.writeState(site, *s); err != nil {
		return err
	}
	step()
	if err := b.writeConfig(site+"/"+siteConfig, config); err != nil {
		return err
	}
	return b.printResult(map[string]any{"site": site, "db_host": address})
}

// Settings of a held site: it continues to answer reads (frappe/app.py, setup_read_only_mode), and its jobs rest.
const (
	maintenanceKey = "maintenance_mode"
	readsKey       = "allow_reads_during_maintenance"
)

// holdSite lets a site read and not write, and remembers its previous settings. A site in maintenance without reads
// stays so.
func (b *bench) holdSite(site string) error {
	s := b.state
	if s.Held == nil {
		config, err := b.readConfig(site + "/" + siteConfig)
		if err != nil {
			return err
		}
		s.Held = map[string]json.RawMessage{}
		for _, key := range []string{maintenanceKey, readsKey} {
			s.Held[key] = json.RawMessage("null")
			if v, there := config[key]; there {
				s.Held[key] = v
			}
		}
		if err := b.writeState(site, *s); err != nil {
			return err
		}
		step()
	}
	settings := policy.Settings{maintenanceKey: json.RawMessage("1")}
	if was := string(s.Held[maintenanceKey]); was == "null" || was == "0" || was == "false" {
		settings[readsKey] = json.RawMessage("1")
	}
	if err := b.change(site, settings); err != nil {
		return err
	}
	if err := b.parkJobs(site, heldJobs); err != nil {
		return err
	}
	return b.printResult(map[string]any{"site": site, "held": true})
}

// freeSite ends hold-site and restores the previous settings. A site that is not held stays as it is.
func (b *bench) freeSite(site string) error {
	s, err := b.readState(site)
	if errors.Is(err, errNotOurs) {
		s, err = nil, nil
	}
	if err != nil {
		return err
	}
	if s != nil && s.Made && (s.Held != nil || s.Arriving || s.DataComes) {
		if s.Held != nil {
			if err := b.change(site, s.Held); err != nil {
				return err
			}
		}
		s.Held, s.Arriving, s.DataComes = nil, false, false
		step()
		if err := b.writeState(site, *s); err != nil {
			return err
		}
		for _, file := range []string{site + "/" + arrivedConfig, site + "/" + arrivedState, loadedIn(site)} {
			if err := b.sites.Remove(file); ignoreGone(err) != nil {
				return err
			}
		}
	}
	if s != nil && s.Made {
		if err := b.queueJobs(site); err != nil {
			return err
		}
	}
	return b.printResult(map[string]any{"site": site, "held": false})
}

// leaveSite deletes the directory of a site that has moved away, or that did not arrive after
// all, with what the bench's own Redis has of it. Its database is not touched.
func (b *bench) leaveSite(site, name string) error {
	s, err := b.readState(site)
	switch {
	case err != nil:
		return err
	case s == nil:
	case s.DBName != name:
		return fmt.Errorf("site %s has database %q, not %s", site, s.DBName, name)
	case s.Held == nil && !s.Arriving:
		return fmt.Errorf("site %s is in use here", site)
	}
	if err := b.discard(site, site); err != nil {
		return err
	}
	if err := b.sites.RemoveAll(own + "/new-" + site); err != nil {
		return err
	}
	return b.printResult(map[string]any{"site": site, "left": s != nil, "redis_keys": b.forget(site, name)})
}

// dropPacked deletes what a host has of an archive of a move, or of all archives.
func (b *bench) dropPacked(site, name string, all bool) error {
	if !all {
		dropped := b.exists(sealedFile(site, name))
		if err := b.dropSealed(site, name); err != nil {
			return err
		}
		if err := b.sites.Remove(packedIn(site, name)); ignoreGone(err) != nil {
			return err
		}
		return b.printResult(map[string]any{"name": name, "deleted": dropped})
	}
	entries, err := fs.ReadDir(b.sites.FS(), site+"/"+backupsDir)
	if ignoreGone(err) != nil {
		return err
	}
	n := 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".sealed-"+name+"-") || strings.HasPrefix(e.Name(), ".packed-"+name+"-") {
			if err := b.sites.Remove(site + "/" + backupsDir + "/" + e.Name()); ignoreGone(err) != nil {
				return err
			}
			n++
		}
	}
	return b.printResult(map[string]any{"name": name, "deleted": n})
}
