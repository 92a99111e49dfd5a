package judge_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/lab/sim/judge"
)

// play is one run of the provider's command line, and its expected results.
type play struct {
	run string // $words come from earlier plays
	// tells names the first id, password or URL of the output for later plays.
	tells string
	says  string // is in the output
	// see is run after it, and prints exactly is.
	see, is string
	// refused is the provider's code of its refusal.
	refused string
}

// commandLine is the provider's client, against a simulated cloud whose answers are judged.
type commandLine struct {
	*testing.T
	bin   string
	env   []string
	words map[string]string
}

func newCommandLine(t *testing.T, s *sim.Sim) *commandLine {
	t.Helper()
	bin, err := exec.LookPath("hcloud")
	require.NoError(t, err, "hcloud is not installed; make test installs what the tests need")
	endpoint := s.URL()
	if doc := judge.Specification(t); doc != nil {
		endpoint = judge.OfAnswers(t, doc).Front(s.URL())
	}
	// A stand-in for ssh prints its arguments.
	programs := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(programs, "ssh"), []byte("#!/bin/sh\necho ssh \"$@\"\n"), 0o755))
	home := t.TempDir()
	return &commandLine{
		T: t, bin: bin, words: map[string]string{"home": home},
		env: []string{
			"HCLOUD_TOKEN=secret", "HCLOUD_ENDPOINT=" + endpoint, "HOME=" + home, "HCLOUD_CONFIG=" + filepath.Join(home, "cli.toml"),
			"PATH=" + programs + ":" + os.Getenv("PATH"),
		},
	}
}

func (c *commandLine) hcloud(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.Env = c.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *commandLine) args(line string) []string {
	args := word.FindAllString(os.Expand(line, func(name string) string {
		c.Helper()
		require.Contains(c, c.words, name, line)
		return c.words[name]
	}), -1)
	return append([]string{"--poll-interval", "10ms"}, args...)
}

// word is what a command line consists of; templates have blanks.
var word = regexp.MustCompile(`(?:\{\{.*?\}\}|\S)+`)

var told = regexp.MustCompile(`\b\d{6,}\b|127(\.\d+){3}|sim-root-\S+|wss://\S+`)

// play returns the fault of a play, if any, so that one run shows all of them.
func (c *commandLine) play(p play) error {
	c.Helper()
	known := func(line string) string { return os.Expand(line, func(w string) string { return c.words[w] }) }
	out, err := c.hcloud(c.args(p.run)...)
	switch {
	case p.refused != "" && (err == nil || !strings.Contains(out, p.refused)):
		return fmt.Errorf("hcloud %s is not refused with %s: %s", p.run, p.refused, out)
	case p.refused != "":
		return nil
	case err != nil:
		return fmt.Errorf("hcloud %s: %w: %s", p.run, err, out)
	case !strings.Contains(out, known(p.says)):
		return fmt.Errorf("hcloud %s does not print %s: %s", p.run, p.says, out)
	}
	if p.tells != "" {
		if c.words[p.tells] = told.FindString(out); c.words[p.tells] == "" {
			return fmt.Errorf("hcloud %s prints no id: %s", p.run, out)
		}
	}
	if p.see == "" {
		return nil
	}
	shown, err := c.hcloud(c.args(p.see)...)
	if shown = strings.Join(strings.Fields(shown), " "); err != nil || shown != known(p.is) {
		return fmt.Errorf("after hcloud %s, %s shows %q, not %q: %w", p.run, p.see, shown, known(p.is), err)
	}
	return nil
}

// commands asks the command line itself which commands it has.
func (c *commandLine) commands() []string {
	c.Helper()
	listed := regexp.MustCompile(`(?m)^  (\S+) `)
	section := regexp.MustCompile(`(?m)^[A-Z][\w ]*Commands:\n(?:  .*\n)+`)
	var (
		mu   sync.Mutex
		out  []string
		work sync.WaitGroup
		few  = make(chan struct{}, 4)
		walk func(path []string)
		bad  error
	)
	walk = func(path []string) {
		defer work.Done()
		few <- struct{}{}
		help, err := c.hcloud(append(slices.Clone(path), "--help")...)
		<-few
		mu.Lock()
		defer mu.Unlock()
		bad = errors.Join(bad, err)
		found := false
		for _, group := range section.FindAllString(help, -1) {
			for _, m := range listed.FindAllStringSubmatch(group, -1) {
				found = true
				work.Add(1)
				go walk(append(slices.Clone(path), m[1]))
			}
		}
		if !found {
			out = append(out, strings.Join(path, " "))
		}
	}
	work.Add(1)
	go walk(nil)
	work.Wait()
	require.NoError(c, bad)
	slices.Sort(out)
	return out
}

// field shows one field of a resource.
func field(kind, name, field string) string {
	return kind + " describe " + name + " -o format={{" + field + "}}"
}

// labelled are the plays of the labels that every kind has.
func labelled(kind, name string) []play {
	labels := field(kind, name, ".Labels")
	return []play{
		{run: kind + " add-label " + name + " tier=gold", see: labels, is: "map[tier:gold]"},
		{run: kind + " add-label --overwrite " + name + " tier=tin", see: labels, is: "map[tier:tin]"},
		{run: kind + " remove-label " + name + " tier", see: labels, is: "map[]"},
	}
}

// guarded are the plays of the protection that most kinds have.
func guarded(kind, name string, levels ...string) []play {
	enabled := field(kind, name, ".Protection.Delete")
	level := " " + strings.Join(levels, " ")
	return []play{
		{run: kind + " enable-protection " + name + level, see: enabled, is: "true"},
		{run: kind + " delete " + name, refused: "protected"},
		{run: kind + " disable-protection " + name + level, see: enabled, is: "false"},
	}
}

// gone is a deletion, after which none of the kind is left.
func gone(kind, name string) play {
	return play{run: kind + " delete " + name, see: kind + " list -o noheader", is: ""}
}

// TestProvidersOwnCommandLine has every command of the provider's command line, except those beyond the simulator,
// fulfil its purpose: its changes are shown afterwards, or it is refused as the provider does. The program itself lists
// its commands; every answer is validated by the provider's specification.
func TestProvidersOwnCommandLine(t *testing.T) {
	t.Parallel()
	s, err := sim.New(sim.Config{Listen: "127.0.0.1:0", StateDir: t.TempDir(), Token: "secret", RatePerHour: 1_000_000, Zones: []string{"example.com"}})
	require.NoError(t, err)
	require.NoError(t, s.Start())
	t.Cleanup(s.Close)
	provider := hcloud.NewClient(hcloud.WithEndpoint(s.URL()), hcloud.WithToken("secret"))
	c := newCommandLine(t, s)
	c.files()
	for _, name := range []string{"own", "other"} {
		_, _, err := provider.PrimaryIP.Create(t.Context(), hcloud.PrimaryIPCreateOpts{Name: name, Type: hcloud.PrimaryIPTypeIPv4, AssigneeType: "server", Location: "fsn1"})
		require.NoError(t, err)
	}
	done := map[string]bool{}
	all := c.commands()
	played := func(run string) {
		words := strings.Fields(run)
		for n := min(2, len(words)); n > 0; n-- {
			if name := strings.Join(words[:n], " "); slices.Contains(all, name) {
				done[name] = true
				return
			}
		}
		t.Errorf("hcloud %s is no command of this version", run)
	}
	for _, part := range [][]play{local, catalogs, placements, firewalls, volumes, privateNetworks, lives, servers, images, floating, primary, ends} {
		for _, p := range part {
			played(p.run)
			if err := c.play(p); err != nil {
				t.Error(err)
			}
		}
	}
	var missed []string
	used := map[string]bool{}
	for _, name := range all {
		i := slices.IndexFunc(beyond, func(b string) bool { return name == b || strings.HasPrefix(name, b+" ") })
		switch {
		case i >= 0:
			used[beyond[i]] = true
		case !done[name]:
			missed = append(missed, name)
		}
	}
	require.Empty(t, missed, "commands that nothing plays")
	require.Len(t, used, len(beyond), "of %v only these are commands: %v", beyond, used)
	require.Empty(t, s.Ledger(true), "nothing is billed any more")
	t.Logf("hcloud commands: %d of %d", len(done), len(all))
}

// beyond are commands for what prego never asks the provider for, and the simulator does not have.
var beyond = []string{"certificate", "load-balancer", "load-balancer-type", "ssh-key", "server metrics"}

// files are what commands read.
func (c *commandLine) files() {
	c.Helper()
	write := func(name, content string) {
		path := filepath.Join(c.words["home"], name)
		require.NoError(c, os.WriteFile(path, []byte(content), 0o600))
		c.words[name] = path
	}
	write("rules", `[{"direction":"in","protocol":"tcp","port":"443","source_ips":["0.0.0.0/0"],"description":"web"}]`)
	write("cli.toml", "active_context = \"one\"\n[[contexts]]\nname = \"one\"\ntoken = \"secret\"\n[[contexts]]\nname = \"two\"\ntoken = \"secret\"\n")
}

var local = []play{
	{run: "version", says: "hcloud"},
	{run: "help", says: "hcloud"},
	{run: "completion bash", says: "hcloud"},
	{run: "context list -o noheader -o columns=name", says: "two"},
	{run: "context use two", see: "context active", is: "two"},
	{run: "context active", says: "two"},
	{run: "context delete one", see: "context list -o noheader -o columns=name", is: "two"},
	{run: "context create three", refused: "context create is an interactive command"},
}

var catalogs = []play{
	{run: "location list -o noheader -o columns=name,network_zone", says: "ap-southeast"},
	{run: field("location", "fsn1", ".City"), says: "Falkenstein"},
	// The provider removed data centres in October 2026.
	{run: "datacenter list", refused: "deprecated_api_endpoint"},
	{run: "datacenter describe 1", refused: "deprecated_api_endpoint"},
	{run: "server-type list -o noheader -o columns=name", says: "ccx33"},
	{run: field("server-type", "cx23", ".Cores"), says: "2"},
	{run: "iso list -o noheader -o columns=name", says: "debian-13"},
	{run: field("iso", "8638", ".Name"), says: "debian-13"},
}

var placements = slices.Concat([]play{
	{run: "placement-group create --name apart --type spread", see: "placement-group list -o noheader -o columns=name", is: "apart"},
	{run: "placement-group create --name other --type spread"},
	{run: "placement-group update other --name apart", refused: "uniqueness_error"},
	{run: "placement-group delete other", see: "placement-group list -o noheader -o columns=name", is: "apart"},
	{run: "placement-group update apart --name spread", see: "placement-group list -o noheader -o columns=name", is: "spread"},
	{run: "placement-group list -o noheader -o columns=name", says: "spread"},
	{run: field("placement-group", "spread", ".Type"), says: "spread"},
}, labelled("placement-group", "spread"))

var firewalls = slices.Concat([]play{
	{run: "firewall create --name outer --rules-file $rules", see: field("firewall", "outer", "len .Rules"), is: "1"},
	{run: "firewall update outer --name fw", see: "firewall list -o noheader -o columns=name", is: "fw"},
	{run: "firewall list -o noheader -o columns=name", says: "fw"},
	{run: field("firewall", "fw", ".Name"), says: "fw"},
	{run: "firewall add-rule fw --direction in --protocol icmp --source-ips 10.0.0.0/8", see: field("firewall", "fw", "(index .Rules 1).Protocol"), is: "icmp"},
	{run: "firewall delete-rule fw --direction in --protocol icmp --source-ips 10.0.0.0/8", see: field("firewall", "fw", "len .Rules"), is: "1"},
	{run: "firewall replace-rules fw --rules-file $rules", see: field("firewall", "fw", "(index .Rules 0).Protocol"), is: "tcp"},
}, labelled("firewall", "fw"))

var volumes = slices.Concat([]play{
	{run: "volume create --name vol --size 10 --location fsn1", see: field("volume", "vol", ".Size"), is: "10"},
	{run: "volume update vol --name data", see: "volume list -o noheader -o columns=name", is: "data"},
	{run: "volume list -o noheader -o columns=name,size", says: "data"},
	{run: field("volume", "data", ".Status"), says: "available"},
	{run: "volume resize data --size 20", see: field("volume", "data", ".Size"), is: "20"},
	{run: "volume resize data --size 10", refused: "invalid_input"},
}, labelled("volume", "data"), guarded("volume", "data", "delete"))

var privateNetworks = slices.Concat([]play{
	{run: "network create --name lan --ip-range 10.0.0.0/16", see: "network list -o noheader -o columns=name", is: "lan"},
	{run: "network update lan --name inner", see: "network list -o noheader -o columns=name", is: "inner"},
	{run: "network list -o noheader -o columns=name", says: "inner"},
	{run: "network add-subnet inner --type cloud --network-zone eu-central --ip-range 10.0.1.0/24", see: field("network", "inner", "(index .Subnets 0).IPRange"), is: "10.0.1.0/24"},
	{run: "network add-subnet inner --type cloud --network-zone eu-central --ip-range 10.0.2.0/24", see: field("network", "inner", "len .Subnets"), is: "2"},
	{run: "network remove-subnet inner --ip-range 10.0.2.0/24", see: field("network", "inner", "len .Subnets"), is: "1"},
	{run: "network add-route inner --destination 10.100.1.0/24 --gateway 10.0.1.2", see: field("network", "inner", "(index .Routes 0).Gateway"), is: "10.0.1.2"},
	{run: "network remove-route inner --destination 10.100.1.0/24 --gateway 10.0.1.2", see: field("network", "inner", "len .Routes"), is: "0"},
	{run: "network change-ip-range inner --ip-range 10.0.0.0/15", see: field("network", "inner", ".IPRange"), is: "10.0.0.0/15"},
	{run: field("network", "inner", ".Name"), says: "inner"},
}, labelled("network", "inner"), guarded("network", "inner", "delete"))

// lives are a server's power and what it boots.
var lives = []play{
	{run: "server create --name web --type cx23 --image debian-13 --location fsn1 --start-after-create=false", see: field("server", "web", ".Status"), is: "off"},
	{run: "server create --name web --type cx23 --image debian-13 --location fsn1", refused: "uniqueness_error"},
	{run: "server poweron web", see: field("server", "web", ".Status"), is: "running"},
	{run: "server reset web", see: field("server", "web", ".Status"), is: "running"},
	{run: "server reboot web", see: field("server", "web", ".Status"), is: "running"},
	{run: "server reset-password web", tells: "password", says: "sim-root-"},
	{run: "server enable-rescue web", see: field("server", "web", ".RescueEnabled"), is: "true"},
	{run: "server disable-rescue web", see: field("server", "web", ".RescueEnabled"), is: "false"},
	{run: "server enable-rescue web", says: "sim-root-", see: field("server", "web", ".RescueEnabled"), is: "true"},
	{run: "server reset web", see: field("server", "web", ".RescueEnabled"), is: "false"},
	{run: "server request-console web", tells: "console", says: "wss://"},
	{run: "server attach-iso web debian-13.0.0-amd64-netinst.iso", see: field("server", "web", ".ISO.Name"), is: "debian-13.0.0-amd64-netinst.iso"},
	{run: "server detach-iso web", see: field("server", "web", "with .ISO}}{{.Name}}{{end"), is: ""},
	{run: "server change-type web cx33", refused: "server_not_stopped"},
	{run: "server add-to-placement-group web --placement-group spread", refused: "server_not_stopped"},
	{run: "server rebuild web --image debian-12"},
	{run: "server shutdown web"},
	{run: "server poweroff web", see: field("server", "web", ".Status"), is: "off"},
	{run: "server reset-password web", refused: "server_not_running"},
	{run: field("server", "web", ".Image.Name"), says: "debian-12"},
	{run: "server change-type web cx33 --keep-disk", see: field("server", "web", ".ServerType.Name}}/{{.PrimaryDiskSize"), is: "cx33/40"},
	{run: "server add-to-placement-group web --placement-group spread", see: field("server", "web", ".PlacementGroup.Name"), is: "spread"},
	{run: "server remove-from-placement-group web", see: field("server", "web", "with .PlacementGroup}}{{.Name}}{{end"), is: ""},
}

// servers are what a server has, and is called.
var servers = slices.Concat([]play{
	{run: "server update web --name www", see: "server list -o noheader -o columns=name,status", is: "www off"},
	{run: "server list -o noheader -o columns=name", says: "www"},
	{run: field("server", "www", ".ID"), tells: "www"},
	{run: field("server", "www", ".PublicNet.IPv4.ID"), tells: "own"},
	{run: "server ip www", tells: "v4", see: "server ssh www uptime", is: "ssh -l root -p 22 $v4 uptime"},
	{run: "server ssh www uptime", says: "uptime"},
	{run: "server set-rdns www --ip $v4 --hostname www.example.com", see: field("server", "www", ".PublicNet.IPv4.DNSPtr"), is: "www.example.com"},
	{run: "server attach-to-network www --network inner --ip 10.0.1.7", see: field("server", "www", "(index .PrivateNet 0).IP"), is: "10.0.1.7"},
	{run: "server attach-to-network www --network inner", refused: "server_already_attached"},
	{run: "server change-alias-ips www --network inner --alias-ips 10.0.1.8", see: field("server", "www", "(index .PrivateNet 0).Aliases"), is: "[10.0.1.8]"},
	{run: "server detach-from-network www --network inner", see: field("server", "www", "len .PrivateNet"), is: "0"},
	{run: "volume attach data --server www", see: field("server", "www", "len .Volumes"), is: "1"},
	{run: "volume attach data --server www", refused: "volume_already_attached"},
	{run: "volume detach data", see: field("server", "www", "len .Volumes"), is: "0"},
	{run: "firewall apply-to-resource fw --type server --server www", see: field("server", "www", "len .PublicNet.Firewalls"), is: "1"},
	{run: "firewall apply-to-resource fw --type server --server www", refused: "firewall_already_applied"},
	{run: "firewall delete fw", refused: "resource_in_use"},
	{run: "firewall remove-from-resource fw --type server --server www", see: field("server", "www", "len .PublicNet.Firewalls"), is: "0"},
	{run: "server add-label www role=web"},
	{run: "firewall apply-to-resource fw --type label_selector --label-selector role=web", see: field("server", "www", "len .PublicNet.Firewalls"), is: "1"},
	{run: "firewall remove-from-resource fw --type server --server www", refused: "firewall_managed_by_label_selector"},
	{run: "server remove-label www role", see: field("server", "www", "len .PublicNet.Firewalls"), is: "0"},
	{run: "firewall remove-from-resource fw --type label_selector --label-selector role=web", see: field("firewall", "fw", "len .AppliedTo"), is: "0"},
}, labelled("server", "www"), guarded("server", "www", "delete", "rebuild"))

var images = slices.Concat([]play{
	{run: "server create-image www --type snapshot --description copy", tells: "image", see: field("image", "$image", ".Description"), is: "copy"},
	{run: "server create-image www --type backup", refused: "invalid_input"},
	{run: "server enable-backup www", see: field("server", "www", ".BackupWindow"), is: "22-02"},
	{run: "server create-image www --type backup --description nightly", tells: "backup", see: field("image", "$backup", ".Type}}/{{.BoundTo.ID"), is: "backup/$www"},
	{run: "image update $backup --type snapshot --description kept", see: field("image", "$backup", ".Type}}/{{.Description"), is: "snapshot/kept"},
	{run: "server create-image www --type backup", tells: "dropped"},
	{run: "server disable-backup www", see: field("server", "www", ".BackupWindow"), is: ""},
	{run: "image list --type backup -o noheader", see: "image list --type backup -o noheader", is: ""},
	{run: "image list -o noheader -o columns=name", says: "debian-13"},
	{run: "image describe debian-13 -o format={{.OSVersion}}", says: "13"},
	{run: "image delete $backup", see: "image list --type snapshot -o noheader -o columns=id", is: "$image"},
}, labelled("image", "$image"), guarded("image", "$image", "delete"), []play{
	{run: "image delete $image", see: "image list --type snapshot -o noheader", is: ""},
})

var floating = slices.Concat([]play{
	{run: "floating-ip create --type ipv4 --home-location fsn1 --name front", see: "floating-ip list -o noheader -o columns=name", is: "front"},
	{run: "floating-ip create --type ipv6 --home-location fsn1 --name six", see: field("floating-ip", "six", ".Type"), is: "ipv6"},
	{run: "floating-ip delete six", see: "floating-ip list -o noheader -o columns=name", is: "front"},
	{run: "floating-ip update front --name door --description main", see: field("floating-ip", "door", ".Description"), is: "main"},
	{run: "floating-ip list -o noheader -o columns=name", says: "door"},
	{run: field("floating-ip", "door", ".IP"), tells: "door"},
	{run: "floating-ip assign door www", see: field("server", "www", "len .PublicNet.FloatingIPs"), is: "1"},
	{run: "floating-ip set-rdns door --hostname door.example.com", see: field("floating-ip", "door", ".DNSPtr"), is: "map[$door:door.example.com]"},
	{run: "floating-ip delete door", refused: "must_be_unassigned"},
	{run: "floating-ip unassign door", see: field("server", "www", "len .PublicNet.FloatingIPs"), is: "0"},
}, labelled("floating-ip", "door"), guarded("floating-ip", "door", "delete"), []play{gone("floating-ip", "door")})

var primary = slices.Concat([]play{
	// Data centres are gone, and Debian's version of the command line can name nothing else: it sends
	// neither location nor assignee.
	{run: "primary-ip create --name loose --type ipv4 --datacenter fsn1-dc14", refused: "invalid_input"},
	{run: "primary-ip unassign $own", see: field("server", "www", ".PublicNet.IPv4.IP"), is: "<nil>"},
	{run: "primary-ip delete $own", says: "deleted"},
	{run: "primary-ip assign own --server www", see: field("primary-ip", "own", ".AssigneeID"), is: "$www"},
	{run: "primary-ip assign own --server www", refused: "primary_ip_already_assigned"},
	{run: "primary-ip assign other --server www", refused: "server_has_ipv4"},
	{run: "primary-ip delete other", says: "deleted"},
	{run: "primary-ip update own --name public --auto-delete=false", see: field("primary-ip", "public", ".AutoDelete"), is: "false"},
	{run: "primary-ip list -o noheader -o columns=name", says: "public"},
	{run: field("primary-ip", "public", ".IP"), tells: "public"},
	{run: "primary-ip set-rdns public --ip $public --hostname mail.example.com", says: "associated"},
	{run: field("server", "www", ".PublicNet.IPv4.DNSPtr"), says: "mail.example.com"},
	{run: "server poweron www", says: "started"},
	{run: "primary-ip unassign public", refused: "server_not_stopped"},
	{run: "server poweroff www"},
	{run: "primary-ip unassign public", see: field("primary-ip", "public", ".AssigneeID"), is: "0"},
	{run: "primary-ip assign public --server www", see: field("primary-ip", "public", ".AssigneeID"), is: "$www"},
}, guarded("primary-ip", "public"))

var ends = []play{
	gone("server", "www"), gone("primary-ip", "public"), gone("volume", "data"),
	gone("firewall", "fw"), gone("placement-group", "spread"), gone("network", "inner"),
}
