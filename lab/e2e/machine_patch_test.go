//go:build machines

package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// archives makes two repositories of packages and the key that signs them, and packs them.
// As Debian's own, one is of security updates and the other is not. prego-canary is at 1.0 on the
// machine, at 1.1 in the first, whose version asks for a reboot, and at 1.2 in the second, which also
// has prego-other at 2.0.
func archives(t *testing.T) (packed string) {
	t.Helper()
	dir := t.TempDir()
	run := func(script string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GNUPGHOME="+filepath.Join(dir, "keys"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	run(`mkdir -m 700 keys
gpg --batch --quiet --passphrase '' --quick-generate-key 'archive <archive@example.org>' ed25519 sign never
mkdir repos && gpg --batch --export >repos/key.gpg`)
	deb := func(into, name, version, postinst string) {
		run(fmt.Sprintf(`rm -rf p && mkdir -p p/DEBIAN p/usr/share/%[2]s repos/%[1]s
printf 'Package: %[2]s\nVersion: %[3]s\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: a test\n' >p/DEBIAN/control
echo %[3]s >p/usr/share/%[2]s/version
printf '#!/bin/sh\nset -e\n%[4]s\n' >p/DEBIAN/postinst && chmod 755 p/DEBIAN/postinst
dpkg-deb --root-owner-group --build p repos/%[1]s/%[2]s_%[3]s_all.deb >/dev/null`, into, name, version, postinst))
	}
	deb("installed", "prego-canary", "1.0", ":")
	deb("installed", "prego-other", "1.0", ":")
	deb("security", "prego-canary", "1.1", "touch /run/reboot-required; echo prego-canary >>/run/reboot-required.pkgs")
	deb("main", "prego-canary", "1.2", ":")
	deb("main", "prego-other", "2.0", ":")
	for suite, label := range map[string]string{"security": "Debian-Security", "main": "Debian"} {
		run(fmt.Sprintf(`cd repos/%[1]s && apt-ftparchive packages . >Packages
apt-ftparchive -o APT::FTPArchive::Release::Origin=Debian -o APT::FTPArchive::Release::Label=%[2]s -o APT::FTPArchive::Release::Suite=%[1]s release . >../Release && mv ../Release .
gpg --batch --quiet --clearsign --output InRelease Release`, suite, label))
	}
	run("tar --create --gzip --file repos.tgz repos")
	b, err := os.ReadFile(filepath.Join(dir, "repos.tgz"))
	require.NoError(t, err)
	return base64.StdEncoding.EncodeToString(b)
}

// offer gives a machine repositories made by archives, and what they have updates for.
func (m *machine) offer(packed string) {
	m.t.Helper()
	m.run("echo " + packed + ` | base64 --decode | tar --extract --gzip --directory /srv && chmod -R a+rX /srv/repos
dpkg --install /srv/repos/installed/*.deb
for suite in security main; do echo "deb [signed-by=/srv/repos/key.gpg] file:/srv/repos/$suite ./"; done >/etc/apt/sources.list.d/test.list`)
}

// isPatched gives a machine an archive with a security update that requires a reboot, and has it patched. apt decides
// about installations and refusals.
func (m *machine) isPatched(packed string) {
	t := m.t
	t.Helper()
	id := m.id(m.server)
	m.offer(packed)
	m.run(`cp /srv/repos/security/InRelease /srv/signed && sed -i s/Debian-Security/Debian-Securitx/ /srv/repos/security/InRelease`)
	version := func(of string) string { return m.run(`dpkg-query --show --showformat '${Version}' ` + of) }
	patch := func() (d api.Maintenance) {
		t.Helper()
		m.post("/v1/servers/"+id+"/patch", nil, http.StatusAccepted, nil)
		return m.awaitMaintenance(id, "ended", func(d api.Maintenance) bool { return server.MaintenanceStatus(d.Status).Ended() })
	}
	d := patch()
	require.Equal(t, "patch_check_failed", deref(d.Reason), "an unsigned archive is not accepted: %s", deref(d.Message))
	require.Equal(t, "1.0", version("prego-canary"))
	m.run("cp /srv/signed /srv/repos/security/InRelease; touch /run/before")

	began := time.Now()
	d = patch()
	require.Equal(t, api.MaintenanceStatus("done"), d.Status, "%s: %s", deref(d.Reason), deref(d.Message))
	require.Equal(t, []api.PackageUpdate{{Name: "prego-canary", From: new("1.0"), To: "1.1"}}, d.Patched.Packages, "a security update, and nothing else")
	require.Contains(t, deref(d.Message), "prego-canary 1.1 installed; rebooted (prego-canary), and away for")
	t.Logf("%s; %s in all", deref(d.Message), time.Since(began).Round(time.Second))
	m.run("! test -e /run/before")
	require.Equal(t, []string{"1.1", "1.0"}, []string{version("prego-canary"), version("prego-other")})
	m.run(`apt-config dump | grep -Fx 'Unattended-Upgrade::Automatic-Reboot "false";'`)
	s := m.get(m.server)
	require.Nil(t, s.CordonedAt)
	// It reports by itself that packages have changed, and that it no longer needs a reboot.
	eventually(t, func() bool {
		s = m.get(m.server)
		return s.Patches != nil && s.Patches.State == server.PatchCurrent
	}, time.Minute, 200*time.Millisecond)
	m.run("dpkg --install /srv/repos/installed/prego-canary_1.0_all.deb")
	eventually(t, func() bool {
		s = m.get(m.server)
		return s.Patches.State == server.PatchPending
	}, time.Minute, 200*time.Millisecond)
	m.run("dpkg --install /srv/repos/security/*.deb; rm -f /run/reboot-required /run/reboot-required.pkgs /etc/apt/sources.list.d/test.list")
}
