// Package site holds the verbs that work on Frappe's sites. They run where the sites
// are: in the container that holds bench, or on the host itself. Each runs Frappe's own
// command line, or works on a site's files, and is safe to repeat after any
// interruption.
package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// Verb makes the agent's program run a verb, see Run.
const Verb = "site"

// Main is Run with the process's own streams: [--root DIR] VERB ARGUMENTS.
func Main(args []string) int {
	root := "/"
	if len(args) > 1 && args[0] == "--root" {
		root, args = args[1], args[2:]
	}
	// The largest row of a site is in memory while it moves, in a container with a limit: not much more than it.
	debug.SetMemoryLimit(littleMemory)
	return Run(root, args, os.Stdin, os.Stdout, os.Stderr)
}

// littleMemory is how much memory, in bytes, a verb may take before it collects its garbage more often.
const littleMemory = 64 << 20

// Run runs one verb on the sites below a root directory ("/" in a container) and
// returns its exit status: 0 done, 1 failed, 2 no such verb. It reads the first line of
// its input: a JSON object of secrets. The verb's result is one JSON line on stdout;
// bench's output, and the reason of a failure, goes to stderr.
func Run(root string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	errs := &masked{to: stderr}
	defer errs.end()
	secrets, err := readSecrets(stdin)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 2
	}
	for name, s := range secrets {
		if name != policy.SecretRootUser {
			errs.hide(s)
		}
	}
	run, err := verbOf(args)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 2
	}
	b, err := openBench(root, errs)
	if err != nil {
		fmt.Fprintf(errs, "the sites: %v\n", err)
		return 1
	}
	defer b.close()
	b.secrets, b.in, b.out = secrets, stdin, stdout
	if err := run(b); err != nil {
		fmt.Fprintf(errs, "site: %v\n", seal.OfDisk(err))
		return 1
	}
	return 0
}

// maxSecrets bounds the line of secrets, in bytes.
const maxSecrets = 16 << 10

func readSecrets(stdin io.Reader) (map[string]string, error) {
	var line []byte
	for b := make([]byte, 1); len(line) < maxSecrets; {
		n, err := stdin.Read(b)
		if n == 1 && b[0] == '\n' {
			break
		}
		line = append(line, b[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, errors.New("the secrets can't be read")
		}
	}
	if len(line) == 0 {
		return map[string]string{}, nil
	}
	var secrets map[string]string
	if json.Unmarshal(line, &secrets) != nil { // its words are secret
		return nil, errors.New("the first line of the input is no object of secrets")
	}
	for _, v := range secrets {
		if strings.ContainsAny(v, "\n\r\x00") {
			return nil, errors.New("a secret is more than one line")
		}
	}
	return secrets, nil
}

// verb is what a command line does. Its sites are locked before, and if they must be finished, their state is read.
type verb struct {
	lock     int
	finished bool
	run      func(b *bench, w []string) error
}

// What verbs ask of their sites.
const (
	unlocked = 0
	finished = true
	whatever = false // they look for themselves
)

// verbs are what runs, by verb, with the words of its line in the table (agent/policy). This process asks
// the table again: it does not trust the processes before it.
var verbs = map[string]verb{
	"list-sites":         {unlocked, whatever, func(b *bench, _ []string) error { return b.listSites() }},
	"new-site":           {alone, whatever, func(b *bench, w []string) error { return b.newSite(w[0], w[1], strings.Join(w[2:], "")) }},
	"erase-site":         {alone, whatever, two((*bench).eraseSite)},
	"expect-site":        {alone, whatever, two((*bench).expectSite)},
	"leave-site":         {alone, whatever, two((*bench).leaveSite)},
	"promote-site":       {alone, whatever, two((*bench).promoteSite)},
	"set-admin-password": {shared, finished, one((*bench).setAdminPassword)},
	"enable-scheduler":   {shared, finished, frappes("enable-scheduler")},
	"disable-scheduler":  {shared, finished, frappes("disable-scheduler")},
	// Frappe records each applied patch, so it continues where it was killed.
	"migrate":          {alone, finished, frappes("migrate")},
	"make-data":        {alone, whatever, one((*bench).makeData)},
	"freeze-data":      {shared, whatever, one((*bench).freezeData)},
	"thaw-data":        {shared, whatever, one((*bench).thawData)},
	"expect-data":      {alone, finished, one((*bench).expectData)},
	"forget-data":      {alone, finished, one((*bench).forgetData)},
	"hold-site":        {alone, finished, one((*bench).holdSite)},
	"free-site":        {alone, whatever, one((*bench).freeSite)},
	"list-apps":        {shared, finished, one((*bench).listApps)},
	"usage":            {unlocked, finished, one((*bench).usage)},
	"versions":         {shared, finished, one((*bench).versions)},
	"answers":          {shared, finished, one((*bench).answers)},
	"configure":        {shared, finished, two((*bench).configure)},
	"settle-site":      {alone, whatever, two((*bench).settleSite)},
	"connect-database": {shared, finished, two((*bench).connectDatabase)},
	"connect-cache":    {shared, finished, three((*bench).connectCache)},
	"set-config":       {shared, finished, three((*bench).setConfig)},
	"add-user":         {shared, finished, three((*bench).addUser)},
	"install-app":      {alone, finished, two((*bench).installApp)},
	"delete-backup":    {shared, whatever, two((*bench).deleteBackup)},
	"adopt-config":     {shared, finished, two((*bench).adoptConfig)},
	"check-restored":   {shared, finished, two((*bench).checkRestored)},
	"seal-backup":      {shared, whatever, three((*bench).sealBackup)},
	// As "bench set-maintenance-mode" (frappe/commands/scheduler.py): during maintenance a site answers 503, and its
	// scheduler and workers skip it.
	"set-maintenance-mode": {shared, finished, func(b *bench, w []string) error {
		return b.change(w[0], policy.Settings{maintenanceKey: json.RawMessage(map[string]string{"on": "1", "off": "0"}[w[1]])})
	}},
	"backup":  {shared, finished, func(b *bench, w []string) error { return b.backup(w[0], w[1], len(w) == 3) }},
	"restore": {alone, finished, func(b *bench, w []string) error { return b.restore(w[0], w[1], len(w) == 3) }},
	"open-backup": {shared, whatever, func(b *bench, w []string) error {
		return b.openBackup(w[0], w[1], w[2], w[3])
	}},
	"unpack-site": {shared, whatever, func(b *bench, w []string) error {
		return b.unpackSite(w[0], w[1], w[2], w[3], w[4])
	}},
	"load-data": {shared, whatever, func(b *bench, w []string) error {
		return b.loadData(w[0], w[1], w[2], w[3], w[4])
	}},
	"pack-site": {shared, whatever, func(b *bench, w []string) error {
		return b.packSite(w[0], w[1], w[2], strings.Join(w[3:], ""))
	}},
	"pack-data": {shared, finished, func(b *bench, w []string) error {
		return b.packData(w[0], w[1], w[2], strings.Join(w[3:min(len(w), 4)], ""), len(w) == 5)
	}},
	"drop-packed": {shared, whatever, func(b *bench, w []string) error {
		return b.dropPacked(w[0], w[1], len(w) == 3)
	}},
	policy.VerbReadSealed:  {unlocked, whatever, piece((*bench).readSealed)},
	policy.VerbWriteSealed: {unlocked, whatever, piece((*bench).writeSealed)},
}

// frappes is a command of Frappe's that can be repeated as it is.
func frappes(command string) func(*bench, []string) error {
	return func(b *bench, w []string) error { return b.command(nil, "--site", w[0], command) }
}

func one(f func(*bench, string) error) func(*bench, []string) error {
	return func(b *bench, w []string) error { return f(b, w[0]) }
}

func two(f func(b *bench, _, _ string) error) func(*bench, []string) error {
	return func(b *bench, w []string) error { return f(b, w[0], w[1]) }
}

func three(f func(b *bench, _, _, _ string) error) func(*bench, []string) error {
	return func(b *bench, w []string) error { return f(b, w[0], w[1], w[2]) }
}

func piece(f func(b *bench, site, name string, offset, length int64) error) func(*bench, []string) error {
	return func(b *bench, w []string) error {
		offset, err1 := strconv.ParseInt(w[2], 10, 64)
		length, err2 := strconv.ParseInt(w[3], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		return f(b, w[0], w[1], offset, length)
	}
}

// verbOf parses a command line.
func verbOf(args []string) (func(*bench) error, error) {
	for _, kind := range []wire.CommandKind{wire.KindBench, policy.KindSpool} {
		if p := policy.Permitted(kind, args); p != nil && len(p.Volume) == 0 {
			return func(b *bench) error { return b.do(p) }, nil
		}
	}
	return nil, fmt.Errorf("there is no verb %q like this", strings.Join(args[:min(3, len(args))], " "))
}

func (b *bench) do(p *policy.Permit) (err error) {
	v := verbs[p.Verb]
	if v.lock != unlocked {
		if err := b.lock(v.lock, p.Sites...); err != nil {
			return err
		}
	}
	if v.finished {
		if b.state, err = b.finishedSite(p.Sites[0]); err != nil {
			return err
		}
	}
	return v.run(b, p.Words)
}

// bench is Frappe's bench and its sites, for one verb.
type bench struct {
	host    string   // its root directory: "/" in a container
	dir     string   // /home/frappe/frappe-bench
	program string   // its command line
	sites   *os.Root // access through it can't leave it, whatever links a site created
	secrets map[string]string
	in      io.Reader // after the line of secrets
	out     io.Writer
	err     *masked
	state   *state      // of the site, for verbs of finished ones
	held    []io.Closer // locks, and connections
}

// openBench opens the bench below a root directory, for who has no input and no result.
func openBench(root string, errs *masked) (*bench, error) {
	b := &bench{host: root, dir: filepath.Join(root, wire.BenchDir), program: filepath.Join(root, wire.BenchBinary), err: errs}
	var err error
	b.sites, err = os.OpenRoot(filepath.Join(b.dir, "sites"))
	return b, err
}

func (b *bench) close() {
	for _, f := range b.held {
		_ = f.Close()
	}
	_ = b.sites.Close()
}

// step is called between the steps of a verb. Tests kill the process there.
var step = func() {}

// printResult prints a verb's result.
func (b *bench) printResult(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(b.out, string(line))
	return err
}

// path is the path of a site's file for bench, which runs in the directory of the
// sites.
func (b *bench) path(name string) string { return filepath.Join(b.dir, "sites", name) }

func (b *bench) listSites() error {
	names, err := b.names()
	if err != nil {
		return err
	}
	return b.printResult(names)
}

// names are the existing sites, as Frappe lists them (frappe/utils/__init__.py,
// get_sites), including unfinished ones.
func (b *bench) names() ([]string, error) {
	dir, err := b.sites.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, e := range entries {
		if e.IsDir() && policy.Is("SITE", e.Name()) && b.exists(e.Name()+"/site_config.json") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

func (b *bench) exists(name string) bool {
	_, err := b.sites.Lstat(name)
	return err == nil
}
