package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

// deb packs the control plane: program, units, settings, and the agent that hosts get.
func (r *release) deb(arch string) error {
	contents, err := r.debContents(arch)
	if err != nil {
		return err
	}
	script := func(name string) string { return filepath.Join(r.root, "deploy/systemd", name) }
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "prego", Arch: arch, Platform: "linux", Version: r.version, MTime: r.time,
		Maintainer: "The prego authors <prego@localhost>", Section: "admin", Priority: "optional",
		License: "Apache-2.0", DisableGlobbing: true,
		Description: "control plane of a multi-tenant SaaS on Hetzner Cloud\n" +
			"API, gateway of the agents, worker, and the operators' commands.",
		Overridables: nfpm.Overridables{
			// With systemd 250, units can name the directory of their credentials.
			Depends: []string{"ca-certificates", "systemd (>= 250)"}, Suggests: []string{"postgresql"},
			Contents: contents,
			Scripts: nfpm.Scripts{
				PostInstall: script("postinst"), PreRemove: script("prerm"), PostRemove: script("postrm"),
			},
			Deb: nfpm.Deb{Compression: "gzip"}, // xz takes a minute more and saves a tenth
		},
	})
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(r.out, "prego-linux-"+arch+".deb"))
	if err != nil {
		return err
	}
	if err := deb.Default.Package(info, f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

func (r *release) debContents(arch string) (files.Contents, error) {
	var out files.Contents
	var failed error
	add := func(from, to string, mode fs.FileMode, kind string) {
		info, err := os.Stat(from)
		if err != nil {
			failed = err
			return
		}
		out = append(out, &files.Content{
			Source: from, Destination: to, Type: kind,
			FileInfo: &files.ContentFileInfo{
				Owner: "root", Group: "root", Mode: mode, MTime: r.time, Size: info.Size(),
			},
		})
	}
	in := func(name string) string { return filepath.Join(r.root, name) }
	add(r.file("prego", arch), "/usr/bin/prego", 0o755, files.TypeFile)
	add(r.file("prego-agent", archs[0]), "/usr/lib/prego/prego-agent", 0o755, files.TypeFile)
	add(in("deploy/systemd/prego-secrets"), "/usr/sbin/prego-secrets", 0o755, files.TypeFile)
	add(in("deploy/systemd/prego.env"), "/etc/prego/prego.env", 0o644, files.TypeConfigNoReplace)
	out = append(out, &files.Content{
		Destination: "/etc/prego/secrets", Type: files.TypeDir,
		FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: 0o700, MTime: r.time},
	})
	add(in("deploy/systemd/prego.sysusers"), "/usr/lib/sysusers.d/prego.conf", 0o644, files.TypeFile)
	for _, process := range []string{"api", "agentgw", "worker", "migrate"} {
		unit := "prego-" + process + ".service"
		add(in("deploy/systemd/"+unit), "/usr/lib/systemd/system/"+unit, 0o644, files.TypeFile)
	}
	add(in("LICENSE"), "/usr/share/doc/prego/copyright", 0o644, files.TypeFile)
	add(in("NOTICE"), "/usr/share/doc/prego/NOTICE", 0o644, files.TypeFile)
	// The setup of Postgres, Temporal, the monitoring, and three hosts.
	for _, dir := range []string{"deploy/postgres", "deploy/temporal", "deploy/grafana", "deploy/three-hosts"} {
		entries, err := os.ReadDir(in(dir))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			mode := fs.FileMode(0o644)
			if strings.HasSuffix(e.Name(), ".sh") {
				mode = 0o755
			}
			add(in(dir+"/"+e.Name()), "/usr/share/prego/"+filepath.Base(dir)+"/"+e.Name(), mode, files.TypeFile)
		}
	}
	add(in("deploy/alerts.yaml"), "/usr/share/prego/alerts.yaml", 0o644, files.TypeFile)
	return out, failed
}
