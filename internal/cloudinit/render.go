// Package cloudinit renders what a new host runs at its first boot (direct-provisioning §5). It is pure: the same
// input gives the same bytes.
//
// No input ever becomes part of a script. Scripts and units are fixed files; the differences between hosts are in
// marshalled documents, or in values whose form was checked.
package cloudinit

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

//go:embed files
var files embed.FS

// MaxUserData is the provider's limit, in bytes (direct-provisioning §2, step 3).
const MaxUserData = 32768

// Input is the input of a host's first boot. Token is secret.
type Input struct {
	Host         wire.HostConfig
	Token        string
	GatewayCAPEM string
	EgressCIDRs  []string // networks that may reach the agent and Docker
	Volume       bool     // a data volume is attached, to be mounted at /srv/data
	// Issued is when the token was issued, in Unix time: the host's clock can't be much earlier.
	Issued int64
	// Patience is how many seconds a step of the boot is retried; 0 means DefaultPatience.
	Patience int
	Limit    int // of the document in bytes; 0 means MaxUserData
}

// DefaultPatience is less than the time limit of the whole boot (direct-provisioning §2, step 5), so that a host can
// still report why it failed.
const DefaultPatience = 240

// Output is a rendered boot. StageTwo is nil if UserData holds everything; otherwise the host fetches it, and it
// holds no secret.
type Output struct {
	UserData       string
	StageTwo       []byte // gzipped tar of files below "/"
	StageTwoSHA256 string // hex
}

// file is one write_files entry.
type file struct {
	Path        string `yaml:"path"`
	Owner       string `yaml:"owner"`
	Permissions string `yaml:"permissions"`
	Content     string `yaml:"content"`
}

// document is a cloud-config; its fields are all its top-level keys.
type document struct {
	Hostname    string   `yaml:"hostname"`
	SSHPwauth   bool     `yaml:"ssh_pwauth"`
	DisableRoot bool     `yaml:"disable_root"`
	BootCmd     []string `yaml:"bootcmd,omitempty"`
	WriteFiles  []file   `yaml:"write_files"`
	RunCmd      []string `yaml:"runcmd"`
}

const lib = "/usr/local/lib/prego/"

// untilBooted runs early at each boot. cloud-init marks each module before it runs, so after a power loss it would
// never do the rest: this clears the marks until the boot script has finished.
const untilBooted = "[ -e /var/lib/cloud/instance/prego-booted ] || rm -f /var/lib/cloud/instance/sem/config_*"

// Render renders a boot. A document above the limit is split into two stages.
func Render(in Input) (Output, error) {
	if err := in.check(); err != nil {
		return Output{}, err
	}
	in.Limit = cmp.Or(in.Limit, MaxUserData)
	in.Patience = cmp.Or(in.Patience, DefaultPatience)
	identity, err := in.identityFiles()
	if err != nil {
		return Output{}, err
	}
	rest := in.bootFiles()
	env := in.environment()
	inline := slices.Concat(identity, []file{plain("/etc/prego-agent/boot.env", quoteEnv(env))}, rest)
	text, err := in.marshal(inline, lib+"bootstrap.sh")
	if err != nil {
		return Output{}, err
	}
	if len(text) <= in.Limit {
		return Output{UserData: text}, nil
	}
	archive, err := pack(rest)
	if err != nil {
		return Output{}, err
	}
	sum := sha256.Sum256(archive)
	out := Output{StageTwo: archive, StageTwoSHA256: hex.EncodeToString(sum[:])}
	path := wire.PathStageTwo + "?sha256=" + out.StageTwoSHA256
	pin, err := json.Marshal(wire.StageTwo{Path: path, SHA256: out.StageTwoSHA256})
	if err != nil {
		return Output{}, fmt.Errorf("second stage: %w", err)
	}
	env["PATH_STAGE_TWO"], env["STAGE_TWO_SHA256"] = wire.PathStageTwo, out.StageTwoSHA256
	first := slices.Concat(identity, []file{
		plain("/etc/prego-agent/boot.env", quoteEnv(env)),
		plain(wire.StageTwoPath, string(pin)),
		embedded("gateway.py", lib+"gateway.py", "0644"), embedded("lib.sh", lib+"lib.sh", "0644"),
		embedded("stage-one.sh", lib+"stage-one.sh", "0755"),
	})
	if out.UserData, err = in.marshal(first, lib+"stage-one.sh"); err != nil {
		return Output{}, err
	}
	if len(out.UserData) > in.Limit {
		return Output{}, prego.Invalid("user_data",
			fmt.Sprintf("is %d bytes even in two stages; the limit is %d", len(out.UserData), in.Limit))
	}
	return out, nil
}

var (
	tokenPattern  = regexp.MustCompile(`^[A-Za-z0-9_-]{20,128}$`)
	digestPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)
	namePattern   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)
)

func (in Input) check() error {
	h := in.Host
	if err := prego.ValidateServerID(h.ServerID); err != nil {
		return err
	}
	if err := prego.ValidateEnvironment(h.Environment); err != nil {
		return err
	}
	u, err := url.Parse(h.GatewayURL)
	switch {
	case err != nil, u.Scheme != "https", u.Host == "", u.Path != "" && u.Path != "/", u.RawQuery != "", u.User != nil,
		!hostOK(u.Hostname()):
		return prego.Invalid("gateway_url", "must be https://host[:port]")
	case !namePattern.MatchString(h.GatewayServerName):
		return prego.Invalid("gateway_server_name", "must be a host name")
	case !digestPattern.MatchString(h.AgentSHA256):
		return prego.Invalid("agent_sha256", "must be a hex SHA-256")
	case !tokenPattern.MatchString(in.Token):
		return prego.Invalid("token", "must be base64url")
	case !strings.Contains(in.GatewayCAPEM, "-----BEGIN CERTIFICATE-----"):
		return prego.Invalid("gateway_ca", "must be PEM certificates")
	case in.Issued <= 0:
		return prego.Invalid("issued", "is required: hosts judge their clocks by it")
	case in.Patience < 0:
		return prego.Invalid("patience", "must not be negative")
	case len(in.EgressCIDRs) == 0:
		return prego.Invalid("egress_cidrs", "is required: without it the host is unreachable")
	}
	for name, port := range map[string]int{"agent_port": h.AgentPort, "docker_port": h.DockerPort} {
		if port < 1 || port > 65535 {
			return prego.Invalid(name, "must be 1 to 65535")
		}
	}
	if _, err := prego.NormalizeTags(h.Tags); err != nil {
		return err
	}
	for _, c := range in.EgressCIDRs {
		if _, err := netip.ParsePrefix(c); err != nil {
			return prego.Invalid("egress_cidrs", fmt.Sprintf("%q is not a CIDR", c))
		}
	}
	return nil
}

func hostOK(h string) bool {
	_, err := netip.ParseAddr(h)
	return err == nil || namePattern.MatchString(h)
}

// identityFiles identify the host. Only one of them contains the token.
func (in Input) identityFiles() ([]file, error) {
	config, err := json.MarshalIndent(in.Host, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("host configuration: %w", err)
	}
	return []file{
		plain(wire.HostConfigPath, string(config)+"\n"),
		{Path: wire.BootstrapTokenPath, Owner: "root:root", Permissions: "0600", Content: in.Token},
		plain(wire.GatewayCAPath, in.GatewayCAPEM),
	}, nil
}

// bootFiles are the scripts, units and rules. They hold no secrets.
func (in Input) bootFiles() []file {
	const units = "/etc/systemd/system/"
	out := []file{
		embedded("gateway.py", lib+"gateway.py", "0644"),
		embedded("lib.sh", lib+"lib.sh", "0644"),
		embedded("bootstrap.sh", lib+"bootstrap.sh", "0755"),
		embedded("docker-certs.sh", lib+"docker-certs.sh", "0755"),
		embedded("docker-stop.sh", lib+"docker-stop.sh", "0755"),
		plain(lib+"docker-tls.conf", dockerTLS(in.Host.DockerPort)),
		embedded("daemon.json", "/etc/docker/daemon.json", "0644"),
		embedded("daemon-24.json", lib+"daemon.json", "0644"),
		plain("/etc/prego-agent/firewall.nft", Firewall(in.EgressCIDRs, []int{in.Host.AgentPort, in.Host.DockerPort})),
	}
	for _, u := range []string{
		"prego-firewall.service", "prego-agent-bootstrap.service", "prego-agent.service", "prego-agent-exec.socket",
		"prego-agent-exec.service", "prego-agent-prepare.service", "prego-agent-bench.socket",
		"prego-agent-bench.service", "prego-agent-watch.socket", "prego-docker-certs.path",
		"prego-docker-certs.service", "prego-docker-stop.service",
	} {
		out = append(out, embedded(u, units+u, "0644"))
	}
	if in.Host.AgentPort < 1024 {
		out = append(out, embedded("agent-port.conf", units+"prego-agent.service.d/port.conf", "0644"))
	}
	if in.Host.Role == "edge" {
		out = append(out, embedded("agent-edge.conf", units+"prego-agent.service.d/edge.conf", "0644"))
	}
	return out
}

// dockerTLS makes dockerd listen on the network once it has certificates. `hosts` in daemon.json would conflict with
// the unit's own -H and keep dockerd from starting. A container may take 90 s to stop (ContainerSpec.StopTimeout).
func dockerTLS(port int) string {
	return fmt.Sprintf(`[Service]
ExecStart=
ExecStart=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock -H tcp://0.0.0.0:%d --tlsverify --tlscacert=/etc/docker/prego/ca.pem --tlscert=/etc/docker/prego/cert.pem --tlskey=/etc/docker/prego/key.pem
TimeoutStopSec=2min
`, port)
}

// Firewall is the host's nftables ruleset, the inner layer behind the provider's firewall. It is independent of
// Docker's iptables rules: a drop in any table is final.
//
// Inbound traffic may only reach the listed ports, from the given networks. Containers may open outbound connections,
// but nothing from outside reaches a published port, and only root reaches the metadata service, which has the
// user_data.
func Firewall(cidrs []string, ports []int) string {
	var v4, v6 []string
	for _, c := range cidrs {
		p := netip.MustParsePrefix(c).Masked()
		if p.Addr().Is4() {
			v4 = append(v4, p.String())
		} else {
			v6 = append(v6, p.String())
		}
	}
	sort.Strings(v4)
	sort.Strings(v6)
	var open []string
	for _, p := range ports {
		open = append(open, strconv.Itoa(p))
	}
	var b strings.Builder
	b.WriteString("table inet prego\ndelete table inet prego\ntable inet prego {\n")
	b.WriteString("\tchain input {\n\t\ttype filter hook input priority filter; policy drop;\n")
	b.WriteString("\t\tct state established,related accept\n\t\tct state invalid drop\n\t\tiifname \"lo\" accept\n")
	// nft knows these two names by itself; it looks others up, such as ipv6-icmp, in /etc/protocols, which a minimal
	// system lacks.
	b.WriteString("\t\tmeta l4proto { icmp, icmpv6 } accept\n")
	if len(v4) > 0 {
		fmt.Fprintf(&b, "\t\tip saddr { %s } tcp dport { %s } accept\n", strings.Join(v4, ", "), strings.Join(open, ", "))
	}
	if len(v6) > 0 {
		fmt.Fprintf(&b, "\t\tip6 saddr { %s } tcp dport { %s } accept\n", strings.Join(v6, ", "), strings.Join(open, ", "))
	}
	b.WriteString("\t}\n\tchain forward {\n\t\ttype filter hook forward priority filter - 10; policy accept;\n")
	b.WriteString("\t\tip daddr 169.254.0.0/16 drop\n\t\tct state established,related accept\n")
	b.WriteString("\t\tct status dnat drop\n\t\tiifname { \"docker0\", \"br-*\" } accept\n\t\tdrop\n")
	b.WriteString("\t}\n\tchain output {\n\t\ttype filter hook output priority filter; policy accept;\n")
	b.WriteString("\t\tip daddr 169.254.169.254 meta skuid != 0 drop\n\t}\n}\n")
	return b.String()
}

// environment is the host's environment for the scripts. Every value has been checked to be free of quotes.
func (in Input) environment() map[string]string {
	u, err := url.Parse(in.Host.GatewayURL)
	if err != nil {
		panic("cloudinit: checked before: " + err.Error())
	}
	port := u.Port()
	port = cmp.Or(port, "443")
	volume := "0"
	if in.Volume {
		volume = "1"
	}
	return map[string]string{
		"SERVER_ID": in.Host.ServerID, "GATEWAY_NAME": in.Host.GatewayServerName,
		"GATEWAY_HOST": u.Hostname(), "GATEWAY_PORT": port,
		"ISSUED_AT": strconv.FormatInt(in.Issued, 10), "PATIENCE": strconv.Itoa(in.Patience),
		"AGENT_SHA256": in.Host.AgentSHA256, "PATH_BOOT_STAGE": wire.PathBootStage,
		"PATH_AGENT_BINARY": wire.PathAgentBinary, "VOLUME": volume,
	}
}

func quoteEnv(env map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&b, "%s='%s'\n", k, env[k])
	}
	return b.String()
}

func (in Input) marshal(fs []file, run string) (string, error) {
	return marshal(document{Hostname: in.Host.ServerID, BootCmd: []string{untilBooted}, WriteFiles: fs}, run)
}

// marshal writes the document of a machine that takes no logins and runs a script.
func marshal(d document, run string) (string, error) {
	d.SSHPwauth, d.DisableRoot, d.RunCmd = false, true, []string{"sh " + run}
	var b bytes.Buffer
	b.WriteString("#cloud-config\n")
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(1)
	if err := enc.Encode(d); err != nil {
		return "", fmt.Errorf("cloud-config: %w", err)
	}
	return b.String(), nil
}

func embedded(name, path, permissions string) file {
	b, err := files.ReadFile("files/" + name)
	if err != nil {
		panic("cloudinit: embedded file: " + err.Error())
	}
	return file{Path: path, Owner: "root:root", Permissions: permissions, Content: string(b)}
}

func plain(path, content string) file {
	return file{Path: path, Owner: "root:root", Permissions: "0644", Content: content}
}

// pack writes files as a reproducible gzipped tar.
func pack(fs []file) ([]byte, error) {
	var b bytes.Buffer
	gz, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, fmt.Errorf("second stage: %w", err)
	}
	w := tar.NewWriter(gz)
	for _, f := range fs {
		mode, err := strconv.ParseInt(f.Permissions, 8, 32)
		if err != nil {
			return nil, fmt.Errorf("second stage: %w", err)
		}
		if err := w.WriteHeader(&tar.Header{
			Name: strings.TrimPrefix(f.Path, "/"), Mode: mode, Size: int64(len(f.Content)),
			Typeflag: tar.TypeReg, Format: tar.FormatUSTAR,
		}); err != nil {
			return nil, fmt.Errorf("second stage: %w", err)
		}
		if _, err := w.Write([]byte(f.Content)); err != nil {
			return nil, fmt.Errorf("second stage: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("second stage: %w", err)
	}
	if err := gz.Close(); err != nil {
		return nil, fmt.Errorf("second stage: %w", err)
	}
	return b.Bytes(), nil
}
