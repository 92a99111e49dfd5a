package rooted

import (
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// secretPattern is the form of a secret: it never needs quoting.
var secretPattern = regexp.MustCompile(`^[A-Z2-7]{26,64}$`)

// Prepare creates what the containers of the host's role need, and gives the executor, which has the named group,
// access to them. Secrets are generated here, once, and never leave the host; everything else is derived from them
// and rewritten if it differs. It may run at any time, and runs at each boot, when the directories of sockets are
// gone.
func Prepare(h *host.Host, group string) error {
	has, ok := host.RoleServices[h.Config.Role]
	if !ok {
		return fmt.Errorf("prepare: there is no role %q", h.Config.Role)
	}
	gid, err := gidOf(group)
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	p := &preparation{host: h, gid: gid}
	p.dir(wire.SecretsDir, 0o700, 0)
	p.dir(filepath.Dir(wire.ServicesPath), 0o750, gid)
	p.dir(filepath.Dir(wire.MountsDir), 0o755, 0)
	p.dir(wire.MountsDir, 0o700, 0)
	// Each image decides which user its program runs as, and the same user id may be anyone on the host. So the
	// directory above keeps others out, and everything below is open.
	p.dir(wire.SocketsDir, 0o710, gid)

	var services wire.Services
	if slices.Contains(has, "mariadb") {
		root, exec := p.secret(host.MariaDBRoot), p.secret("mariadb-exec")
		services.MariaDB = wire.Service{Socket: wire.MariaDBSocket, User: wire.DefaultServiceUser, Password: exec}
		p.dir(filepath.Dir(wire.MariaDBSocket), 0o777, 0)
		p.dir(wire.MariaDBMount, 0o755, 0)
		p.file(wire.MariaDBMount+"/root-password", root, 0o644, 0)
		p.file(wire.MariaDBMount+"/init.sql", initSQL(h.Config.Role, root, exec), 0o644, 0)
	}
	if slices.Contains(has, "redis") {
		app, exec := p.secret("redis-app"), p.secret("redis-exec")
		services.Redis = wire.Service{Socket: wire.RedisSocket, User: wire.DefaultServiceUser, Password: exec}
		p.dir(filepath.Dir(wire.RedisSocket), 0o777, 0)
		p.dir(wire.RedisMount, 0o755, 0)
		p.file(wire.RedisMount+"/users.acl", usersACL(app, exec, aclWorkers), 0o644, 0)
		if h.Config.Role == host.RolePool {
			p.dir(wire.RedisUsersDir, 0o777, 0) // Redis replaces the file in it
			p.file(wire.RedisUsersDir+"/users.acl", usersACL(app, exec, aclTenants)+p.tenantUsers(), 0o644, 0)
		}
	}
	if slices.Contains(has, "bench") {
		services.Bench = wire.Service{Socket: wire.BenchSocket}
		p.dir(wire.BenchMount, 0o755, 0)
		p.file(wire.BenchMount+"/redis-password", p.secret("redis-app"), 0o644, 0)
		p.dir(wire.ProgramsDir, 0o755, 0)
		p.program(wire.ProgramsDir + "/" + filepath.Base(wire.ContainerAgent))
	}
	if mount := host.ServiceMount(h.Config.Role); mount != "" {
		p.dir(mount+"/"+wire.TLSDir, 0o755, 0)
	}
	p.updater()
	p.units()
	b, err := json.MarshalIndent(services, "", "  ")
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	p.file(wire.ServicesPath, string(b)+"\n", 0o640, gid)
	if p.err != nil {
		return fmt.Errorf("prepare: %w", p.err)
	}
	return nil
}

func gidOf(group string) (int, error) {
	if group == "" {
		return os.Getgid(), nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

// preparation runs steps one after the other, until one fails.
type preparation struct {
	host *host.Host
	gid  int
	err  error
}

// owned gives a file its owner and mode. Only root can change owners; if another user runs this, files stay its own.
func (p *preparation) owned(name string, mode os.FileMode, gid int) error {
	if os.Geteuid() == 0 {
		if err := os.Lchown(name, 0, gid); err != nil {
			return err
		}
	}
	return os.Chmod(name, mode)
}

// dir creates a directory. A symlink in its place is never followed.
func (p *preparation) dir(path string, mode os.FileMode, gid int) {
	if p.err != nil {
		return
	}
	name := p.host.Path(path)
	if p.err = os.MkdirAll(filepath.Dir(name), 0o755); p.err != nil {
		return
	}
	if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		p.err = err
		return
	}
	if info, err := os.Lstat(name); err != nil || !info.IsDir() {
		p.err = fmt.Errorf("%s is no directory", path)
		return
	}
	if strings.HasPrefix(path, wire.SocketsDir+"/") {
		// A container may have given it to its own user, which must stay the owner.
		p.err = os.Chmod(name, mode)
		return
	}
	p.err = p.owned(name, mode, gid)
}

// file writes a file beside its place and moves it there, so that no reader sees half of it. The mode is set first,
// so that no other user can read it.
func (p *preparation) file(path, content string, mode os.FileMode, gid int) {
	if p.err != nil {
		return
	}
	name := p.host.Path(path)
	if p.err = host.WriteFile(name, []byte(content), mode); p.err == nil {
		p.err = p.owned(name, mode, gid)
	}
}

// tenantUsers are the lines of a pool's users.acl that the tenants' users have.
func (p *preparation) tenantUsers() string {
	if p.err != nil {
		return ""
	}
	b, err := os.ReadFile(p.host.Path(wire.RedisUsersDir + "/users.acl"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.err = err
		return ""
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if isTenantsUser(line) {
			out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	return out.String()
}

// unitFiles are units, and additions to units, that are not in user_data, which has no room for them. The boot
// script enables them.
//
//go:embed units
var unitFiles embed.FS

// unitsDir is where a service manager looks for them.
const unitsDir = "/etc/systemd/system"

// units writes the units of unitFiles, if a service manager is there. A changed one takes effect at the next boot.
func (p *preparation) units() {
	if info, err := os.Stat(p.host.Path(unitsDir)); p.err != nil || err != nil || !info.IsDir() {
		return
	}
	err := fs.WalkDir(unitFiles, "units", func(name string, d fs.DirEntry, err error) error {
		into := unitsDir + strings.TrimPrefix(name, "units")
		switch {
		case err != nil:
			return err
		case name == "units":
			return nil
		case d.IsDir():
			p.dir(into, 0o755, 0)
			return nil
		}
		b, err := unitFiles.ReadFile(name)
		if err == nil {
			p.file(into, string(b), 0o644, 0)
		}
		return err
	})
	if p.err == nil {
		p.err = err
	}
}

// secret is one of the host's secrets, generated if it does not exist. An invalid one is an error and never replaced:
// a database may use it.
func (p *preparation) secret(name string) string {
	if p.err != nil {
		return ""
	}
	path := wire.SecretsDir + "/" + name
	b, err := os.ReadFile(p.host.Path(path))
	switch {
	case errors.Is(err, os.ErrNotExist):
		b = []byte(rand.Text() + rand.Text() + "\n")
	case err != nil:
		p.err = err
		return ""
	}
	text := strings.TrimSuffix(string(b), "\n")
	if !secretPattern.MatchString(text) {
		p.err = fmt.Errorf("%s is not a secret that was made here; remove it to have another made", path)
		return ""
	}
	p.file(path, string(b), 0o600, 0)
	return text
}

// program copies the running program.
func (p *preparation) program(path string) {
	if p.err != nil {
		return
	}
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		p.err = err
		return
	}
	p.file(path, string(b), 0o755, 0)
}

// updater copies the program that updates the agent, once: from then on it follows the releases that prove good.
func (p *preparation) updater() {
	if _, err := os.Stat(p.host.Path(wire.UpdateProgram)); p.err == nil && errors.Is(err, os.ErrNotExist) {
		p.program(wire.UpdateProgram)
	}
}

// initSQL is run by MariaDB at each start, even on existing data: it creates the executor's user with the rights that
// its verbs need, and holds no password in clear.
//
// root's password is changed only if there already is one. Otherwise the image is about to set it, and has to connect
// without one until then.
func initSQL(role, root, exec string) string {
	const user = "`" + wire.DefaultServiceUser + "`@localhost"
	as := func(password string) string {
		return "IDENTIFIED VIA mysql_native_password USING '" + host.NativePassword(password) + "'"
	}
	var b strings.Builder
	for _, q := range []string{
		"CREATE USER IF NOT EXISTS " + user,
		"ALTER USER " + user + " " + as(exec),
		"REVOKE ALL PRIVILEGES, GRANT OPTION FROM " + user,
		"GRANT PROCESS, SHOW DATABASES ON *.* TO " + user,
		"GRANT CREATE, DROP ON `pool\\_%`.* TO " + user,
		"GRANT CREATE, DROP ON `tenant\\_%`.* TO " + user,
	} {
		fmt.Fprintln(&b, q+";")
	}
	if role == host.RoleShard {
		for _, q := range grantsSQL(user) {
			fmt.Fprintln(&b, q+";")
		}
	}
	for _, host := range []string{"localhost", "%"} {
		// Not identified by its socket's peer, as in Debian.
		fmt.Fprintf(&b, "SET @root = (SELECT IF(plugin = 'mysql_native_password' AND authentication_string NOT IN ('', 'invalid'), "+
			"\"ALTER USER root@'%s' %s\", 'DO 0') FROM mysql.user WHERE User = 'root' AND Host = '%s');\n", host, as(root), host)
		fmt.Fprintln(&b, "SET @root = IFNULL(@root, 'DO 0');")
		fmt.Fprintln(&b, "EXECUTE IMMEDIATE @root;")
	}
	return b.String()
}

// What else the executor may do in Redis: read which of RQ's workers are busy, or, in a pool, create and drop the users
// of tenants, and their keys.
const (
	aclWorkers = "(%R~rq:workers +smembers) (%R~rq:worker:* +hget)"
	aclTenants = "+acl|setuser +acl|deluser +acl|save +select +scan +unlink"
)

// usersACL are Redis's users: bench's, which may do everything, and the executor's. A password is always required,
// since every user of the host reaches a container's port. A pool has no bench.
func usersACL(app, exec, more string) string {
	return "user default on " + host.RedisPassword(app) + " ~* &* +@all\n" +
		"user " + wire.DefaultServiceUser + " on " + host.RedisPassword(exec) +
		" ~* resetchannels -@all +ping +info +dbsize +memory|usage +slowlog|get +client|list " + more + "\n"
}

// hostSecret reads a secret of the host.
func hostSecret(h *host.Host, name string) (string, error) {
	b, err := os.ReadFile(h.Path(wire.SecretsDir + "/" + name))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}
