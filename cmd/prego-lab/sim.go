package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/internal/telemetry"
	"github.com/prego/prego/lab/sim"
)

func newSimCommand() *cobra.Command {
	cfg := sim.Config{Profile: sim.DefaultProfile()}
	fast := false
	hosts, machines := "process", ""
	cmd := &cobra.Command{
		Use: "sim", Short: "Run a simulated Hetzner Cloud (contributing/simulator.md)", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := telemetry.Logger(os.Stderr, "info", "json")
			if err != nil {
				return err
			}
			cfg.Log = log.Named("sim")
			if hosts != "process" && hosts != "machine" {
				return fmt.Errorf("--hosts must be process or machine, not %q", hosts)
			}
			if hosts == "machine" {
				cfg.Machines = machines
			}
			if fast {
				cfg.Profile = sim.Profile{Restart: time.Second}
			}
			s, err := sim.New(cfg)
			if err != nil {
				return err
			}
			if err := s.Start(); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "simulated cloud at", s.URL())
			<-cmd.Context().Done()
			s.Close()
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:8085", "address to serve at")
	f.StringVar(&cfg.DNS, "dns", "127.0.0.1:8553", "address to serve the zones over DNS at, UDP and TCP")
	f.StringSliceVar(&cfg.Zones, "zone", nil, "DNS zones that exist from the start")
	f.StringVar(&cfg.StateDir, "state-dir", ".prego/sim", "where servers, hosts and the ledger are kept")
	f.StringVar(&cfg.Token, "token", "simulated", "API token that is accepted")
	f.IntVar(&cfg.AgentPort, "agent-port", 8443, "port of the agents on the simulated hosts")
	f.IntVar(&cfg.DockerPort, "docker-port", 2376, "port of Docker on the simulated hosts")
	f.IntVar(&cfg.RatePerHour, "rate", 3600, "requests per hour")
	f.IntVar(&cfg.Limits.Servers, "servers", 100, "how many servers the account may have")
	f.StringToStringVar(&cfg.Programs, "program", nil,
		"programs of this machine that containers run on process hosts, by the name of their image: caddy=/usr/bin/caddy")
	f.BoolVar(&cfg.RealDocker, "docker", false, "give every host a real dockerd (as root; docs/containers.md)")
	f.StringVar(&hosts, "hosts", "process",
		"what servers are: process, or machine for real Debians under systemd-nspawn (as root; make machines)")
	f.StringVar(&machines, "machines", ".prego/machines/current",
		"directory where make machines put the root file systems")
	f.StringVar(&cfg.Images, "images", "",
		"directory of a registry with images that machines can pull (make images: .prego/images/current/registry)")
	f.IntVar(&cfg.MachineDiskGB, "machine-disk", 10, "size of a machine's disk, in GB; it is sparse")
	f.BoolVar(&cfg.LoopbackNetworks, "loopback-networks", false,
		"allow private networks in 127.0.0.0/8, so that private addresses of process hosts can be reached")
	f.BoolVar(&fast, "fast", false, "complete everything instantly")
	return cmd
}
