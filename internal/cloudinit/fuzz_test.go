package cloudinit

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

// FuzzRender: values of callers and operators are refused, or arrive on the host unchanged without affecting anything
// else.
func FuzzRender(f *testing.F) {
	f.Add("app-1", "prod", "https://gw.example.com:8443", "gw.example.com", token, ca, "203.0.113.7/32", "stack:blue", "sg", 443, 2376, true, false)
	f.Add("app-1", "prod", "https://[2001:db8::1]:8443", "gw", token, ca+"#\x00\xff\n...\n---\n- !!binary x\n", "2001:db8::/64", "a\nb", "eu\n", 1, 65535, false, true)
	f.Add("a'b", "p", "https://'x'/", "$(id)", "`id`", "x", "::ffff:1.2.3.4/128", "a: b", "", 0, 0, false, false)
	f.Fuzz(func(t *testing.T, id, environment, gateway, name, bootstrap, authority, cidr, tag, region string, agentPort, dockerPort int, volume, small bool) {
		in := input()
		in.Host.ServerID, in.Host.Environment, in.Host.GatewayURL, in.Host.GatewayServerName, in.Host.Region = id, environment, gateway, name, region
		in.Host.Tags, in.Host.AgentPort, in.Host.DockerPort = []string{tag}, agentPort, dockerPort
		in.Token, in.GatewayCAPEM, in.EgressCIDRs, in.Volume = bootstrap, authority, []string{cidr}, volume
		if small {
			in.Limit = 12000
		}
		out, err := Render(in)
		if err != nil {
			var coded *prego.Error
			require.ErrorAs(t, err, &coded)
			require.NotEqual(t, prego.CodeInternal, coded.Code)
			return
		}
		require.LessOrEqual(t, len(out.UserData), MaxUserData)
		plain := input()
		plain.Volume, plain.Limit, plain.Host.AgentPort, plain.Host.DockerPort = volume, in.Limit, agentPort, dockerPort
		if len(out.StageTwo) > 0 {
			plain.Limit = 12000
		}
		usual, err := Render(plain)
		require.NoError(t, err)
		got, doc := read(t, out.UserData)
		want, usualDoc := read(t, usual.UserData)
		require.Equal(t, id, doc.Hostname)
		doc.Hostname, doc.WriteFiles, usualDoc.Hostname, usualDoc.WriteFiles = "", nil, "", nil
		require.Equal(t, usualDoc, doc, "the commands are always the same")
		require.Len(t, got, len(want))
		for path, file := range want {
			require.Contains(t, got, path)
			require.Equal(t, []string{file.Owner, file.Permissions}, []string{got[path].Owner, got[path].Permissions}, path)
			content := got[path].Content
			switch path {
			case wire.HostConfigPath:
				var host wire.HostConfig
				require.NoError(t, json.Unmarshal([]byte(content), &host))
				// JSON has no bytes that are no text.
				in.Host.Region = strings.ToValidUTF8(in.Host.Region, "\uFFFD")
				host.Region = strings.ToValidUTF8(host.Region, "\uFFFD")
				require.Equal(t, strings.Count(in.Host.Region, "\uFFFD") == 0, in.Host.Region == host.Region || strings.Contains(host.Region, "\uFFFD"))
				in.Host.Region, host.Region = "", ""
				require.Equal(t, in.Host, host)
			case wire.BootstrapTokenPath:
				require.Equal(t, bootstrap, content)
			case wire.GatewayCAPath:
				require.Equal(t, authority, content)
			case "/etc/prego-agent/boot.env":
				require.Equal(t, strings.Count(file.Content, "\n"), strings.Count(content, "\n"))
				for line := range strings.Lines(content) {
					require.Regexp(t, `^[A-Z0-9_]+='[^'\n]*'\n$`, line, "a shell reads it")
				}
			case "/etc/prego-agent/firewall.nft":
				p, err := netip.ParsePrefix(cidr)
				require.NoError(t, err)
				require.Contains(t, content, " saddr { "+p.Masked().String()+" } ")
				require.LessOrEqual(t, strings.Count(content, "\n"), strings.Count(file.Content, "\n"))
			default:
				require.Equal(t, file.Content, content, path)
			}
		}
	})
}
