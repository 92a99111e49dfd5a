package sim

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// FuzzUserData: the user_data of a host's first boot is refused, or is files whose paths are absolute once they are
// cleaned.
func FuzzUserData(f *testing.F) {
	for _, s := range []string{
		"#cloud-config\n", "#cloud-config\nwrite_files:\n- path: /etc/x\n  content: eA==\n  encoding: b64\n  permissions: '0600'\n", "#!/bin/sh\n",
		"I2Nsb3VkLWNvbmZpZwo=", "H4sIAAAAAAAA", "#cloud-config\nwrite_files: [{path: ../../x, content: y, encoding: gz+b64}]\n", "#cloud-config\na: &a [*a]\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, userData string) {
		files, err := filesOf(userData)
		if err != nil {
			require.Nil(t, files)
			return
		}
		doc, err := decodeUserData(userData)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(doc), "#cloud-config\n"))
		var cc cloudConfig
		require.NoError(t, yaml.Unmarshal(doc, &cc))
		require.LessOrEqual(t, len(files), len(cc.WriteFiles))
		for path := range files {
			require.Equal(t, filepath.Clean(path), path)
		}
	})
}

// FuzzZoneFile: a zone file is refused, or has record sets inside of the zone, each of which can be created.
func FuzzZoneFile(f *testing.F) {
	for _, s := range []string{
		"@ 3600 IN A 192.0.2.1\n", "$ORIGIN x.example.com.\nwww A 192.0.2.1\n", "$INCLUDE /etc/passwd\n", "$GENERATE 1-65535 host$ A 192.0.2.1\n", "a.example.org. A 192.0.2.1\n",
		"@ TXT \"a\" \"b\"\n", "@ SOA a. b. 1 2 3 4 5\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, file string) {
		sets, err := readZone("example.com", file)
		if err != nil {
			require.Nil(t, sets)
			return
		}
		seen := map[string]bool{}
		for _, set := range sets {
			require.NotEqual(t, "SOA", set.Type)
			require.NotEmpty(t, set.Records)
			require.False(t, seen[setKey(set.Name, set.Type)], "a set is there twice")
			seen[setKey(set.Name, set.Type)] = true
			_ = newZone(1, "example.com", 3600, nil).add(set)
		}
	})
}

// FuzzSelector: a label selector is refused, or can be asked about any labels, and means the
// same with blanks around it.
func FuzzSelector(f *testing.F) {
	for _, s := range []string{"", "a", "!a", "a=b", "a!=b", "a in (b,c)", "a notin (b)", "a,b==c", "a in (", ",,"} {
		f.Add(s, "a", "b")
	}
	f.Fuzz(func(t *testing.T, selector, key, value string) {
		match, err := parseSelector(selector)
		if err != nil {
			return
		}
		again, err := parseSelector(" " + selector + " ")
		require.NoError(t, err)
		labels := map[string]string{key: value}
		require.Equal(t, match(labels), again(labels))
		_ = match(nil)
	})
}
