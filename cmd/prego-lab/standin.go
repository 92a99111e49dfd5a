package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// newStandInCommand runs in the containers of simulated hosts with a real engine, where
// no image can be pulled.
func newStandInCommand() *cobra.Command {
	check := false
	cmd := &cobra.Command{
		Use: "stand-in NAME", Short: "Stand in for a container's program", Hidden: true, Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if check {
				return nil
			}
			fmt.Fprintln(cmd.OutOrStdout(), "standing in for", args)
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "be the health check")
	return cmd
}

// dockerPossible names what --docker lacks.
func dockerPossible(cloud string) error {
	if cloud != "sim" {
		return errors.New("--docker is for the simulated cloud: real hosts have their own")
	}
	if _, err := exec.LookPath("dockerd"); err != nil || os.Getuid() != 0 {
		return errors.New("--docker needs root, and dockerd (on Debian: apt-get install --no-install-recommends docker.io)")
	}
	return nil
}

// standInStack writes the built-in stack with stand-ins for its images: the same names
// in the same order.
func standInStack(dir, image string) (file string, err error) {
	stack, err := config.Worker{}.Stack()
	if err != nil {
		return "", err
	}
	for _, specs := range stack {
		for i, c := range specs {
			specs[i] = server.ContainerSpec{
				Name: c.Name, Image: image, Command: []string{sim.StandInProgram, "stand-in", c.Name},
				Env: map[string]string{"PREGO_ROLE": "${role}"}, Network: "none", MemoryMB: 128, CPUs: 0.5, Pids: 64,
				StopTimeout: prego.Duration(3 * time.Second), After: c.After,
				Health: &server.ContainerHealth{
					Command:  []string{sim.StandInProgram, "stand-in", "--check"},
					Interval: prego.Duration(500 * time.Millisecond),
				},
			}
			if c.Once {
				specs[i].Once, specs[i].Health, specs[i].Command = true, nil,
					[]string{sim.StandInProgram, "stand-in", "--check"}
			}
		}
	}
	b, err := json.MarshalIndent(stack, "", "  ")
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "stack.json")
	return file, os.WriteFile(file, b, 0o600)
}
