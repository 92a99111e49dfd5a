package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// rootsModule is in images as a list of certificate authorities, and in no program.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// sbom lists the modules of each program, as `go version -m` prints them, in CycloneDX.
func (r *release) sbom() error {
	modules := map[string]cdx.Component{}
	var components []cdx.Component
	var dependencies []cdx.Dependency
	add := func(path, version, sum string) string {
		m := module(path, version, sum)
		modules[m.BOMRef] = m
		return m.BOMRef
	}
	var all []string
	for _, arch := range archs {
		for _, name := range programs {
			info, err := buildinfo.ReadFile(r.file(name, arch))
			if err != nil {
				return err
			}
			program := filepath.Base(r.file(name, arch))
			refs := []string{add("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
			for _, dep := range info.Deps {
				if dep.Replace != nil {
					dep = dep.Replace
				}
				refs = append(refs, add(dep.Path, dep.Version, dep.Sum))
			}
			slices.Sort(refs)
			components = append(components, cdx.Component{
				BOMRef: program, Type: cdx.ComponentTypeApplication, Name: program, Version: r.version,
			})
			dependencies = append(dependencies, cdx.Dependency{Ref: program, Dependencies: &refs})
			all = append(all, program)
		}
	}
	if own, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range own.Deps {
			if dep.Path == rootsModule {
				all = append(all, add(dep.Path, dep.Version, dep.Sum))
			}
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		components = append(components, modules[ref])
	}
	dependencies = append(dependencies, cdx.Dependency{Ref: "prego", Dependencies: &all})
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.time.Format(time.RFC3339),
		Component: &cdx.Component{
			BOMRef: "prego", Type: cdx.ComponentTypeApplication, Name: "prego", Version: r.version,
			Properties: &[]cdx.Property{{Name: "prego:commit", Value: r.commit}},
		},
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	f, err := os.Create(filepath.Join(r.out, "prego.cdx.json"))
	if err != nil {
		return err
	}
	encoder := cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true)
	if err := encoder.EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// module is a Go module with its package URL and, of go.sum, its hash.
func module(path, version, sum string) cdx.Component {
	url := fmt.Sprintf("pkg:golang/%s@%s", path, version)
	c := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
	if h1, ok := strings.CutPrefix(sum, "h1:"); ok {
		if b, err := base64.StdEncoding.DecodeString(h1); err == nil {
			c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(b)}}
		}
	}
	return c
}
