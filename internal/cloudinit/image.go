package cloudinit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

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
	text, err := marshal(document{
		Hostname: "prego-image",
		WriteFiles: []file{
			plain(dir+"recipe.json", string(recipe)+"\n"),
			plain(dir+"packages", strings.Join(ImagePackages(), "\n")+"\n"),
			plain(dir+"containers", strings.Join(append(in.Containers, ""), "\n")),
			embedded("image-build.sh", dir+"build.sh", "0755"),
			embedded("image-pull.py", dir+"pull.py", "0644"),
			embedded("image-seal.sh", dir+"seal.sh", "0755"),
			embedded("prego-image-seal.service", "/etc/systemd/system/prego-image-seal.service", "0644"),
		},
	}, dir+"build.sh")
	if err != nil {
		return "", "", err
	}
	if len(text) > MaxUserData {
		return "", "", prego.Invalid("containers",
			fmt.Sprintf("make a user_data of %d bytes; the limit is %d", len(text), MaxUserData))
	}
	sum := sha256.Sum256([]byte(text))
	return text, hex.EncodeToString(sum[:]), nil
}
