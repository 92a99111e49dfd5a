package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// Verb makes the agent's program run a verb, see Run.
const Verb = "site"

// Names of what the host itself adds to a request's secrets.
const (
	SecretRootUser     = "mariadb_root_user" // "root" when it is missing
	SecretRootPassword = "mariadb_root_password"
)

// Main is Run with the process's own streams: [--root DIR] VERB ARGUMENTS.
func Main(args []string) int {
	root := "/"
	if len(args) > 1 && args[0] == "--root" {
		root, args = args[1], args[2:]
	}
	return Run(root, args, os.Stdin, os.Stdout, os.Stderr)
}

// Run runs one verb on the sites below a root directory ("/" in a container) and
// returns its exit status: 0 done, 1 failed, 2 no such verb. Of its input it takes the
// first line: a JSON object of secrets. What the verb came to is one JSON line on
// stdout; what bench prints, and why the verb failed, goes to stderr.
func Run(root string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	errs := &masked{to: stderr}
	defer errs.end()
	secrets, err := readSecrets(stdin)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 2
	}
	for name, s := range secrets {
		if name != SecretRootUser {
			errs.hide(s)
		}
	}
	run, err := verbOf(args)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 2
	}
	b := &bench{dir: filepath.Join(root, wire.BenchDir), program: filepath.Join(root, wire.BenchBinary), secrets: secrets, out: stdout, err: errs}
	if b.sites, err = os.OpenRoot(filepath.Join(b.dir, "sites")); err != nil {
		fmt.Fprintf(errs, "the sites: %v\n", err)
		return 1
	}
	defer b.close()
	if err := run(b); err != nil {
		fmt.Fprintf(errs, "site: %v\n", err)
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

// Patterns of names. They are checked where a verb runs, too: it trusts none of those
// before it.
var (
	siteName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)
	database   = regexp.MustCompile(`^(pool_[a-z0-9_]{1,58}|tenant_[a-z0-9_]{1,54}_db)$`) // what the control plane names
	backupName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,79}$`)
	appName    = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
)

// verbOf finds what a command line asks for.
func verbOf(args []string) (func(*bench) error, error) {
	unknown := fmt.Errorf("there is no verb %q like this", strings.Join(args[:min(3, len(args))], " "))
	has := func(n int) bool { return len(args) == n }
	name := func(i int) bool { return i < len(args) && len(args[i]) <= 253 && siteName.MatchString(args[i]) }
	withDB := has(4) && name(1) && args[2] == "--db-name" && database.MatchString(args[3])
	switch {
	case has(1) && args[0] == "list-sites":
		return (*bench).listSites, nil
	case withDB && args[0] == "new-site":
		return func(b *bench) error { return b.newSite(args[1], args[3]) }, nil
	case withDB && args[0] == "erase-site":
		return func(b *bench) error { return b.eraseSite(args[1], args[3]) }, nil
	case has(3) && args[0] == "promote-site" && name(1) && name(2):
		return func(b *bench) error { return b.promoteSite(args[1], args[2]) }, nil
	case len(args) < 3 || args[0] != "--site" || !name(1):
		return nil, unknown
	}
	site, verb, rest := args[1], args[2], args[3:]
	of := func(f func(b *bench, site string) error) (func(*bench) error, error) {
		return func(b *bench) error { return f(b, site) }, nil
	}
	switch n := len(rest); {
	case n == 0:
		f := map[string]func(*bench, string) error{
			"set-admin-password": (*bench).setAdminPassword, "enable-scheduler": (*bench).enableScheduler, "disable-scheduler": (*bench).disableScheduler,
			"list-apps": (*bench).listApps, "migrate": (*bench).migrate, "usage": (*bench).usage,
		}[verb]
		if f != nil {
			return of(f)
		}
	case verb == "configure" && n == 1:
		return of(func(b *bench, site string) error { return b.configure(site, rest[0]) })
	case verb == "set-config" && n == 2:
		return of(func(b *bench, site string) error { return b.setConfig(site, rest[0], rest[1]) })
	case verb == "add-user" && n == 2:
		return of(func(b *bench, site string) error { return b.addUser(site, rest[0], rest[1]) })
	case verb == "install-app" && n == 1 && appName.MatchString(rest[0]):
		return of(func(b *bench, site string) error { return b.installApp(site, rest[0]) })
	case verb == "set-maintenance-mode" && n == 1 && (rest[0] == "on" || rest[0] == "off"):
		return of(func(b *bench, site string) error { return b.setMaintenance(site, rest[0] == "on") })
	case !backupName.MatchString(rest[0]):
	case verb == "delete-backup" && n == 1:
		return of(func(b *bench, site string) error { return b.deleteBackup(site, rest[0]) })
	case n == 1 || n == 2 && rest[1] == "--with-files":
		switch verb {
		case "backup":
			return of(func(b *bench, site string) error { return b.backup(site, rest[0], n == 2) })
		case "restore":
			return of(func(b *bench, site string) error { return b.restore(site, rest[0], n == 2) })
		}
	}
	return nil, unknown
}

// bench is Frappe's bench and its sites, for one verb.
type bench struct {
	dir     string   // /home/frappe/frappe-bench
	program string   // its command line
	sites   *os.Root // what is reached through it stays in it, whatever links a site left
	secrets map[string]string
	out     io.Writer
	err     *masked
	held    []*os.File // locks
}

func (b *bench) close() {
	for _, f := range b.held {
		_ = f.Close()
	}
	_ = b.sites.Close()
}

// step is called between any two things that a verb does. Tests end the process there.
var step = func() {}

// printResult prints what a verb came to.
func (b *bench) printResult(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(b.out, string(line))
	return err
}

// path is the path of something of a site for bench, which runs in the sites.
func (b *bench) path(name string) string { return filepath.Join(b.dir, "sites", name) }

func (b *bench) listSites() error {
	names, err := b.names()
	if err != nil {
		return err
	}
	return b.printResult(names)
}

// names are the sites that are there, as Frappe tells them (frappe/utils/__init__.py,
// get_sites), those included that are being made.
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
		if e.IsDir() && siteName.MatchString(e.Name()) && b.exists(e.Name()+"/site_config.json") {
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
