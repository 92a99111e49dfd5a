//go:build machines

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// greeter is a process group's instance that answers a text over HTTP.
func greeter(text string) map[string]any {
	s := spec("caddy:2.11.7", 64)
	s["command"] = []string{"caddy", "respond", "--listen", ":8080", "--body", text}
	return s
}

// workloads has instances of two orgs on the node: a dedicated address in front of one, a volume in it, and nothing
// else in reach.
func (s *openSite) workloads() {
	t := s.t.(*testing.T)
	t.Helper()
	fleet := s.id("nodes")
	s.fleet(fleet, prego.RoleNode, nil, map[string]any{"region": "eu", "workload_memory_bytes": 1024 * mb, "workload_cpus": 1})
	s.exec(`UPDATE servers SET fleet_id = $1 WHERE server_id = $2`, fleet, s.id(s.node.server))
	env, other := s.environment("acme", "paid", "shop"), s.environment("rival", "paid", "shop")
	s.limit("acme", "max_ipv4_allocations", 1)
	s.post("/v1/envs/"+env+"/ipv4", nil, http.StatusAccepted, nil)
	var v api.Volume
	s.post("/v1/volumes", map[string]any{"org_id": "acme", "name": "data", "region": "eu", "location": s.text(`SELECT location FROM servers WHERE server_id = $1`, s.id(s.node.server)), "size_bytes": 10_000_000_000}, http.StatusAccepted, &v)
	s.awaitVolume(v.VolumeId, "ready")
	stored := greeter("of acme")
	stored["volumes"] = []string{"/data"}
	mine, theirs := s.group(prego.EnvID(env), "web", 0, stored), s.group(prego.EnvID(other), "web", 1, greeter("of rival"))
	var at api.VolumeAttachment
	s.post("/v1/volumes/"+v.VolumeId+"/attachments", map[string]any{"group_id": mine.GroupId, "mount_path": "/data"}, http.StatusCreated, &at)
	s.scale(mine.GroupId, 1, http.StatusAccepted)
	var route api.Route
	s.post("/v1/envs/"+env+"/routes", map[string]any{"group_id": mine.GroupId, "listener": "env_v4", "listen_port": 5432, "protocol": "tcp", "target_port": 8080}, http.StatusCreated, &route)
	s.settledGroup(theirs.GroupId)
	s.settledGroup(mine.GroupId)

	// The environment's address is on the edge, and leads to its instance.
	served := s.awaitIPv4(env, "served", func(v api.IPv4) bool { return v.Status == "ready" && v.Served != nil && *v.Served })
	address := deref(served.Address)
	took := shows(t, s.visitor, "http://"+address+":5432/", "of acme", time.Minute)
	t.Logf("http://%s:5432/  200  after %s", address, took)
	require.Contains(t, s.edge.run("ip -4 -o address show"), address+"/32")

	a, b := s.inside(mine.GroupId), s.inside(theirs.GroupId)
	s.isolated(a, b)
	s.keeps(a, v.VolumeId, mine.GroupId)
	for _, g := range []string{mine.GroupId, theirs.GroupId} {
		s.scale(g, 0, http.StatusAccepted)
	}
	eventually(t, func() bool { return s.number(`SELECT count(*) FROM instances WHERE state <> 'stopped'`) == 0 }, time.Minute, 200*time.Millisecond)
	s.send(http.MethodDelete, "/v1/volumes/"+v.VolumeId+"/attachments/"+at.AttachmentId, nil, http.StatusNoContent, nil)
	s.send(http.MethodDelete, "/v1/envs/"+env+"/routes/"+route.RouteId, nil, http.StatusNoContent, nil)
	s.send(http.MethodDelete, "/v1/envs/"+env+"/ipv4", nil, http.StatusAccepted, nil)
	s.send(http.MethodDelete, "/v1/volumes/"+v.VolumeId, nil, http.StatusAccepted, nil)
	s.keptEnough(v.VolumeId)
	s.awaitGone("/v1/volumes/" + v.VolumeId)
	require.NotContains(t, s.node.run("cat /proc/mounts"), "HC_Volume")
	s.awaitGone("/v1/envs/" + env + "/ipv4")
	require.NotContains(t, s.edge.run("ip -4 -o address show"), address+"/32")
	s.exec(`UPDATE servers SET fleet_id = NULL WHERE server_id = $1`, s.id(s.node.server))
}

// instance is a container on the node.
type instance struct {
	id, pid, address string
}

const engine = `curl --silent --show-error --fail --unix-socket /run/docker.sock http://docker`

func (s *openSite) inside(group string) (i instance) {
	s.t.Helper()
	i.id = s.instances(group)[0].InstanceId
	i.pid = s.node.run(engine + `/containers/` + wire.ContainerName(s.id(s.node.server), i.id) + `/json | grep -o '"Pid":[0-9]*' | head -n 1 | cut -d: -f2`)
	require.NotEmpty(s.t, i.pid)
	i.address = s.node.run(`nsenter --target ` + i.pid + ` --net ip -4 -o address show dev eth0 | grep -o 'inet [0-9.]*' | cut -d' ' -f2`)
	return i
}

// within is a path out of the container.
func (s *openSite) within(i instance, to, address string, port int, open bool) path {
	return path{from: "instance of acme", to: fmt.Sprintf("%s %d", to, port), open: open, try: func(context.Context) error {
		_, err := s.node.try(fmt.Sprintf(`nsenter --target %s --net python3 -c 'import socket; socket.create_connection(("%s", %d), 2)'`, i.pid, address, port))
		return err
	}}
}

// isolated tries what an instance must not reach, with the rules for instances and without.
func (s *openSite) isolated(a, b instance) {
	t := s.t.(*testing.T)
	t.Helper()
	paths := func(open bool) []path {
		return []path{
			s.within(a, "metadata", "169.254.169.254", 80, open),
			s.within(a, "edge, inside", s.private(s.edge), 443, open),
			s.within(a, "rival's instance", b.address, 8080, open),
			s.within(a, "itself", a.address, 8080, true),
		}
	}
	reach(t, "instances", append(paths(false),
		connects("node", s.node.dial, "metadata", "169.254.169.254", 80, true),
		connects("node", s.node.dial, "edge, inside", s.private(s.edge), 443, true),
		connects("node", s.node.dial, "rival's instance", b.address, 8080, true),
		connects("node", s.node.dial, "acme's instance", a.address, 8080, true),
		s.within(a, "shard", s.private(s.shard), 3306, false),
		s.within(a, "app", s.private(s.app), 8080, false),
		s.within(a, "node's agent", s.private(s.node), 443, false),
		s.within(a, "node's Docker", s.private(s.node), 2376, false),
	))
}

// keeps looks at the volume where the instance has it, and that it is the same one after it
// was taken away and brought back.
func (s *openSite) keeps(i instance, volume, group string) {
	t := s.t.(*testing.T)
	t.Helper()
	var id string
	s.query(&id, `SELECT provider_id FROM volumes WHERE volume_id = $1`, volume)
	looks := func(i instance) {
		t.Helper()
		device := s.node.run("readlink --canonicalize " + wire.VolumeDevice(id))
		require.Equal(t, device+" ext4", strings.Join(strings.Fields(s.node.run("findmnt --noheadings --output SOURCE,FSTYPE --mountpoint "+wire.VolumeMount(id))), " "))
		mounts := s.node.run("cat /proc/" + i.pid + "/mountinfo")
		require.Regexp(t, `/prego /data .* - ext4 `+device+" ", mounts)
		size := s.node.run("df --output=size --block-size=1G " + wire.VolumeMount(id) + " | tail -n 1")
		require.Contains(t, []string{"9", "10"}, strings.TrimSpace(size))
	}
	looks(i)
	s.node.run("echo kept >/proc/" + i.pid + "/root/data/file && sync")
	before := s.node.writesOn(wire.VolumeDir(id))
	backup := s.backedUp(volume)
	s.node.thaws(wire.VolumeDir(id))
	s.node.run("systemctl stop writes; cd " + wire.VolumeDir(id) + " && rm -r many link && echo changed >file && chmod 777 odd")
	require.NotEqual(t, before, s.node.tree(wire.VolumeDir(id)))
	s.scale(group, 0, http.StatusAccepted)
	eventually(t, func() bool {
		_, err := s.node.try("! grep HC_Volume /proc/mounts && ! test -e " + wire.VolumeDevice(id))
		return err == nil
	}, time.Minute, 200*time.Millisecond, "it leaves with the last instance")
	s.restored(volume, backup)
	s.scale(group, 1, http.StatusAccepted)
	s.settledGroup(group)
	again := s.inside(group)
	looks(again)
	require.Equal(t, "kept", s.node.run("cat /proc/"+again.pid+"/root/data/file"))
	require.Equal(t, before, s.node.tree(wire.VolumeDir(id)), "what the backup was made of")
	s.node.run(`cd ` + wire.VolumeDir(id) + ` && last=$(tail --lines 1 log) && [ "$(wc --lines <log)" -ge "$last" ]`)
}

// writesOn fills a volume with all kinds of files, and keeps appending to one of them. It returns the state of the
// others.
func (m *machine) writesOn(dir string) string {
	m.t.Helper()
	m.run(`cd ` + dir + ` && mkdir --mode 2750 many && for i in $(seq 300); do echo $i >many/$i; done
head --bytes 8M /dev/urandom >large && truncate --size 100M sparse && ln -s file link && ln file hard && mkfifo pipe && touch --date '2001-02-03 04:05:06.789' old
echo odd >odd && chown 1234:2345 odd many/7 && chmod 4751 odd
python3 -c 'import os; os.setxattr("odd", "user.note", b"a note"); os.setxattr("odd", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000")); os.setxattr("many", "system.posix_acl_access", bytes.fromhex("0200000001000700ffffffff02000700d204000004000500ffffffff10000700ffffffff20000000ffffffff"))'
systemd-run --quiet --unit writes --working-directory ` + dir + ` sh -c 'n=0; while :; do n=$((n+1)); echo $n >>log; sleep 0.02; done'
until test -s log; do sleep 0.1; done`)
	return m.tree(dir)
}

// thaws leaves a volume frozen, as by an agent that was killed together with its freezing process: the next one thaws
// it.
func (m *machine) thaws(dir string) {
	m.t.Helper()
	const unit = "prego-agent-devices.service"
	before := m.run("systemctl show --property=MainPID --value " + unit)
	m.run("fsfreeze --freeze " + dir + " && systemctl kill --signal=KILL " + unit)
	m.awaitRun(fmt.Sprintf(`systemctl is-active --quiet %[1]s && [ "$(systemctl show --property=MainPID --value %[1]s)" != %[2]s ]`, unit, before))
	out, err := m.try("fsfreeze --unfreeze " + dir + " 2>&1")
	require.Error(m.t, err, "it is not frozen any more")
	require.Contains(m.t, out, "Invalid argument")
}

// tree is everything about a directory but the file that is written to, and Caddy's own, which it
// changes when it starts.
func (m *machine) tree(dir string) string {
	m.t.Helper()
	return m.run(`cd ` + dir + ` && python3 -c '
import hashlib, os, stat
for at, dirs, files in os.walk("."):
    dirs[:] = sorted(d for d in dirs if d != "caddy")
    for name in sorted(dirs + files):
        path = os.path.join(at, name)
        if path == "./log": continue
        s = os.lstat(path)
        text = b"" if not stat.S_ISREG(s.st_mode) else open(path, "rb").read()
        to = os.readlink(path) if stat.S_ISLNK(s.st_mode) else ""
        attributes = {a: os.getxattr(path, a, follow_symlinks=False).hex() for a in sorted(os.listxattr(path, follow_symlinks=False))}
        print(path, oct(s.st_mode), s.st_uid, s.st_gid, s.st_nlink, s.st_mtime_ns, to, hashlib.sha256(text).hexdigest()[:12], attributes)
'`)
}

// backedUp backs a volume up while it is written to.
func (s *openSite) backedUp(volume string) (b api.VolumeBackup) {
	t := s.t.(*testing.T)
	t.Helper()
	of := "/v1/volumes/" + volume + "/backups"
	s.post(of, nil, http.StatusAccepted, &b)
	eventually(t, func() bool {
		s.send(http.MethodGet, of+"/"+b.BackupId, nil, http.StatusOK, &b)
		return b.State == tenant.BackupStored || b.State == tenant.BackupFailed
	}, patience, 100*time.Millisecond)
	require.Equal(t, tenant.BackupStored, b.State, "%s %s", deref(b.Reason), deref(b.Message))
	require.NotNil(t, b.FrozenMs, "it had no writes during the last pass")
	t.Logf("a volume of %d entries, %d bytes in the storage; frozen for %d ms", *b.Entries, *b.Bytes, *b.FrozenMs)
	return b
}

// restored brings a volume back to what it was, on no group's behalf.
func (s *openSite) restored(volume string, b api.VolumeBackup) {
	t := s.t.(*testing.T)
	t.Helper()
	of := "/v1/volumes/" + volume + "/restores"
	var r api.VolumeRestore
	s.post(of, map[string]any{"backup_id": b.BackupId}, http.StatusAccepted, &r)
	eventually(t, func() bool {
		s.send(http.MethodGet, of+"/"+r.RestoreId, nil, http.StatusOK, &r)
		return r.Status == workload.RestoreSucceeded || r.Status == workload.RestoreFailed
	}, patience, 100*time.Millisecond)
	require.Equal(t, workload.RestoreSucceeded, r.Status, "%s %s", deref(r.Reason), deref(r.Message))
}
