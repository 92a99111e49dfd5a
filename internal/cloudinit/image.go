package cloudinit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/prego/prego"
)

// ImagePackages are installed by a host's first boot if they are missing. An image contains them all, so booting from
// it needs no mirror.
func ImagePackages() []string {
	return []string{"apparmor", "ca-certificates", "docker.io", "nftables"}
}

// ImageInput is the input of an image's build. It holds no secret, and nothing specific to a host.
type ImageInput struct {
	BaseImage  string   // the provider's image, like debian-13
	Containers []string // container images to pull
}

// imageDocument is the cloud-config of a builder; its fields are the only top-level keys.
type imageDocument struct {
	Hostname    string   `yaml:"hostname"`
	SSHPwauth   bool     `yaml:"ssh_pwauth"`
	DisableRoot bool     `yaml:"disable_root"`
	WriteFiles  []file   `yaml:"write_files"`
	RunCmd      []string `yaml:"runcmd"`
}

// containerRef matches valid container image names; a script reads the list of them line by line.
var containerRef = regexp.MustCompile(`^[a-z0-9][a-zA-Z0-9._/:@-]{0,254}$`)

// RenderImage renders the user_data of an image's builder, and its digest, which identifies the recipe.
func RenderImage(in ImageInput) (userData, hash string, err error) {
	for _, c := range in.Containers {
		if !containerRef.MatchString(c) {
			return "", "", prego.Invalid("containers", fmt.Sprintf("%q is not the name of a container image", c))
		}
	}
	recipe, err := json.MarshalIndent(map[string]any{
		"base_image": in.BaseImage, "packages": ImagePackages(), "containers": in.Containers,
	}, "", "  ")
	if err != nil {
		return "", "", fmt.Errorf("recipe: %w", err)
	}
	const dir = "/etc/prego-image/"
	var b bytes.Buffer
	b.WriteString("#cloud-config\n")
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(1)
	err = enc.Encode(imageDocument{
		Hostname: "prego-image", SSHPwauth: false, DisableRoot: true,
		WriteFiles: []file{
			plain(dir+"recipe.json", string(recipe)+"\n"),
			plain(dir+"packages", strings.Join(ImagePackages(), "\n")+"\n"),
			plain(dir+"containers", strings.Join(append(in.Containers, ""), "\n")),
			embedded("image-build.sh", dir+"build.sh", "0755"),
			embedded("image-pull.py", dir+"pull.py", "0644"),
			embedded("image-seal.sh", dir+"seal.sh", "0755"),
			embedded("prego-image-seal.service", "/etc/systemd/system/prego-image-seal.service", "0644"),
		},
		RunCmd: []string{"sh " + dir + "build.sh"},
	})
	if err != nil {
		return "", "", fmt.Errorf("cloud-config: %w", err)
	}
	if b.Len() > MaxUserData {
		return "", "", prego.Invalid("containers",
			fmt.Sprintf("make a user_data of %d bytes; the limit is %d", b.Len(), MaxUserData))
	}
	sum := sha256.Sum256(b.Bytes())
	return b.String(), hex.EncodeToString(sum[:]), nil
}
