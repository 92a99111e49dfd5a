package cloudinit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func renderImage(t *testing.T, containers ...string) (map[string]file, string) {
	t.Helper()
	text, hash, err := RenderImage(ImageInput{BaseImage: "debian-13", Containers: containers})
	require.NoError(t, err)
	require.Len(t, hash, 64)
	files, _ := read(t, text)
	return files, text
}

// TestImageHasAllThatABootInstalls reads what the boot script needs out of it: an image
// without it would still boot, and ask mirrors each time.
func TestImageHasAllThatABootInstalls(t *testing.T) {
	t.Parallel()
	b, err := files.ReadFile("files/bootstrap.sh")
	require.NoError(t, err)
	var needed []string
	for _, m := range regexp.MustCompile(`(?m)^\s*need ([a-z0-9. -]+)$`).FindAllStringSubmatch(string(b), -1) {
		needed = append(needed, strings.Fields(m[1])...)
	}
	require.Contains(t, needed, "docker.io", "the script declares its packages in another way now")
	for _, p := range needed {
		require.Contains(t, ImagePackages(), p)
	}
}

func TestImageRecipe(t *testing.T) {
	t.Parallel()
	files, text := renderImage(t, "frappe/erpnext:v15", "mariadb:11.8")
	require.Equal(t, "frappe/erpnext:v15\nmariadb:11.8\n", files["/etc/prego-image/containers"].Content)
	require.Equal(t, strings.Join(ImagePackages(), "\n")+"\n", files["/etc/prego-image/packages"].Content)
	for _, secret := range []string{"token", "BEGIN CERTIFICATE", "/etc/prego-agent"} {
		require.NotContains(t, text, secret, "a builder has no identity")
	}
	_, again, err := RenderImage(ImageInput{BaseImage: "debian-13", Containers: []string{"frappe/erpnext:v15", "mariadb:11.8"}})
	require.NoError(t, err)
	for _, other := range []ImageInput{{BaseImage: "debian-12", Containers: []string{"frappe/erpnext:v15", "mariadb:11.8"}}, {BaseImage: "debian-13"}} {
		_, hash, err := RenderImage(other)
		require.NoError(t, err)
		require.NotEqual(t, again, hash)
	}
	for _, bad := range []string{"", "$(reboot)", "a b", "a\nb", "-v", "a;b", strings.Repeat("a", 300)} {
		_, _, err := RenderImage(ImageInput{BaseImage: "debian-13", Containers: []string{bad}})
		require.ErrorContains(t, err, fmt.Sprintf("containers %q is not the name of a container image", bad))
	}
}

// TestImageCloudInitTakesIt is judged by Debian's cloud-init.
func TestImageCloudInitTakesIt(t *testing.T) {
	t.Parallel()
	bin, err := exec.LookPath("cloud-init")
	require.NoError(t, err, "cloud-init is not installed; make test installs what the tests need")
	_, text := renderImage(t, "redis:7-alpine")
	f := filepath.Join(t.TempDir(), "user-data")
	require.NoError(t, os.WriteFile(f, []byte(text), 0o600))
	out, err := exec.Command(bin, "schema", "--config-file", f).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestSealRemovesWhatIsOneMachinesOwn runs the real script on a directory.
func TestSealRemovesWhatIsOneMachinesOwn(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	files, _ := renderImage(t)
	own := []string{
		"var/lib/dbus/machine-id", "etc/hostname", "etc/ssh/ssh_host_ed25519_key", "etc/ssh/ssh_host_rsa_key.pub", "var/lib/docker/engine-id", "var/lib/systemd/random-seed",
		"var/lib/cloud/instances/1/user-data.txt", "var/lib/cloud/data/instance-id", "var/log/journal/x/system.journal", "var/log/cloud-init-output.log",
		"var/cache/apt/archives/docker.deb", "var/lib/apt/lists/x_InRelease", "root/.bash_history", "tmp/left", "var/tmp/left", "etc/prego-image/seal.sh", "etc/systemd/system/prego-image-seal.service",
	}
	stays := []string{"etc/ssh/sshd_config", "var/lib/docker/overlay2/layer", "etc/cloud/cloud.cfg", "usr/bin/dockerd", "var/lib/dpkg/status"}
	for _, f := range slices.Concat(own, stays, []string{"etc/machine-id"}) {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(f)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, f), []byte("x"), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/prego-image/recipe.json"), []byte(files["/etc/prego-image/recipe.json"].Content), 0o600))
	script := filepath.Join(t.TempDir(), "seal.sh")
	require.NoError(t, os.WriteFile(script, []byte(files["/etc/prego-image/seal.sh"].Content), 0o600))
	for range 2 { // power may have failed in the midst of the first
		cmd := exec.Command("sh", script)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "ROOT=" + root}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, f := range own {
			require.NoFileExists(t, filepath.Join(root, f))
		}
		for _, f := range stays {
			require.FileExists(t, filepath.Join(root, f))
		}
		id, err := os.ReadFile(filepath.Join(root, "etc/machine-id"))
		require.NoError(t, err)
		require.Empty(t, id, "there and empty: systemd makes a new one")
		require.FileExists(t, filepath.Join(root, "etc/prego-image.json"))
		require.DirExists(t, filepath.Join(root, "var/cache/apt/archives/partial"))
	}
}
