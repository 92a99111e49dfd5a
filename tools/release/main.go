// Command release builds release files: programs, packages, images, their checksums, their modules and, with a key,
// signatures (docs/install.md). Two builds of a commit are identical. It is a separate module, so that its
// dependencies stay out of the product.
package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// archs are the architectures that releases are built for, and the first one is that of the agent in packages and
// images: hosts have the architecture of the catalog's server types, whatever the control plane runs on.
var archs = []string{"amd64", "arm64"}

var programs = []string{"prego", "prego-agent", "prego-lab"}

// versions are those that Debian's version numbers can express.
var versions = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$`)

// release describes one build.
type release struct {
	version   string
	root, out string // directories: the checkout, and the release's files
	commit    string
	time      time.Time // of the commit, and of every file in a package or image
	agentKeys string    // base64 of the public keys that may sign releases of the agent, with commas between them
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	r := release{}
	var keyFile string
	flag.StringVar(&r.version, "version", "", "version, for example v0.1.0 or v0.1.0-rc1")
	flag.StringVar(&r.root, "root", "../..", "directory of the checkout")
	flag.StringVar(&r.out, "out", "", "directory that is created")
	flag.StringVar(&keyFile, "key", "", "file with the Ed25519 key that signs, in PEM; empty: unsigned")
	flag.StringVar(&r.agentKeys, "agent-keys", "", "more keys that may sign releases of the agent")
	flag.Parse()
	if !versions.MatchString(r.version) {
		return fmt.Errorf("VERSION=%q is no version: use v0.1.0 or v0.1.0-rc1", r.version)
	}
	var key ed25519.PrivateKey
	if keyFile != "" {
		var err error
		if key, err = readKey(keyFile); err != nil {
			return err
		}
		r.agentKeys = trusted(key, r.agentKeys)
	}
	if err := r.readCommit(ctx, key != nil); err != nil {
		return err
	}
	final := r.out
	r.out = final + ".new" // half a release never looks like a whole one
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	if err := r.build(ctx); err != nil {
		return err
	}
	if key != nil {
		if err := r.sign(ctx, keyFile, key); err != nil {
			return err
		}
	}
	if err := errors.Join(os.RemoveAll(final), os.Rename(r.out, final)); err != nil {
		return err
	}
	return r.report(final, key != nil)
}

// readCommit takes the release's time from the checkout's commit. Uncommitted changes are never signed.
func (r *release) readCommit(ctx context.Context, signed bool) error {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", r.root}, args...)...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	head, err := git("log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, seconds, _ := strings.Cut(head, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("the commit's time: %w", err)
	}
	r.commit, r.time = commit, time.Unix(unix, 0).UTC()
	changed, err := git("status", "--porcelain")
	switch {
	case err != nil:
		return err
	case changed != "" && signed:
		return fmt.Errorf("the checkout has changes that are not committed, so a release can't be signed:\n%s", changed)
	case changed != "":
		r.commit += "-dirty"
		fmt.Println("The checkout has changes that are not committed: this build can't be repeated.")
	}
	return nil
}

func (r *release) build(ctx context.Context) error {
	for _, arch := range archs {
		for _, name := range programs {
			fmt.Printf("building %s for %s\n", name, arch)
			if err := r.program(ctx, name, arch); err != nil {
				return err
			}
		}
	}
	for _, arch := range archs {
		fmt.Printf("packing the deb and the image for %s\n", arch)
		if err := r.deb(arch); err != nil {
			return fmt.Errorf("deb for %s: %w", arch, err)
		}
		if err := r.image(arch); err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
	}
	if err := r.sbom(); err != nil {
		return fmt.Errorf("list of modules: %w", err)
	}
	return r.checksums()
}

// program builds one static program. Nothing of the machine or the checkout's place is in it.
func (r *release) program(ctx context.Context, name, arch string) error {
	flags := "-s -w -X main.version=" + r.version
	if name == "prego-agent" {
		flags += " -X main.releaseKeys=" + r.agentKeys
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags,
		"-o", r.file(name, arch), "./cmd/"+name)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=", "GOEXPERIMENT=", "GOTOOLCHAIN=local", "GOWORK=off")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s for %s: %w", name, arch, err)
	}
	return nil
}

// file is where a program is built.
func (r *release) file(name, arch string) string {
	return filepath.Join(r.out, name+"-linux-"+arch)
}

func (r *release) report(dir string, signed bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s of commit %s is in %s:\n", r.version, r.commit[:min(12, len(r.commit))], dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Printf("  %-36s %8.1f MB\n", e.Name(), float64(info.Size())/1e6)
	}
	if !signed {
		fmt.Println("NOT SIGNED: there is no SHA256SUMS.sig. Sign with RELEASE_KEY=file (docs/install.md).")
		if r.agentKeys == "" {
			fmt.Println("Its agents trust no key, so hosts that run them can't be updated by agent releases.")
		}
	}
	return nil
}

// trusted are the keys that agents accept: the one that signs, then the others.
func trusted(key ed25519.PrivateKey, others string) string {
	all := []string{publicText(key)}
	for k := range strings.SplitSeq(others, ",") {
		if k != "" && !slices.Contains(all, k) {
			all = append(all, k)
		}
	}
	return strings.Join(all, ",")
}
