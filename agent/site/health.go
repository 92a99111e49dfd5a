package site

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/prego/prego/agent/wire"
)

// HealthyVerb makes the agent's program a health check of Frappe processes without a port, see HealthyMain.
const HealthyVerb = "healthy"

// HealthyMain is run by the engine in the container of a worker or of the scheduler,
// and exits with 0 once that is ready for work.
func HealthyMain(args []string) int {
	err := fmt.Errorf("usage: prego-agent %s worker|scheduler", HealthyVerb)
	switch {
	case len(args) == 1 && args[0] == "worker":
		err = workerHealthy("/")
	case len(args) == 1 && args[0] == "scheduler":
		err = schedulerHealthy("/")
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// workerHealthy reports that a worker waits for jobs: it has a connection to the queue's Redis besides this one.
func workerHealthy(root string) error {
	b, err := openBench(root, &masked{to: os.Stderr})
	if err != nil {
		return err
	}
	defer b.close()
	at, err := b.connection("")
	if err != nil {
		return err
	}
	r, err := b.dialRedis(at.Queue)
	if err != nil {
		return err
	}
	reply, err := r.Do("CLIENT", "ID")
	if err != nil {
		return err
	}
	own := fmt.Sprint(reply)
	if reply, err = r.Do("CLIENT", "LIST"); err != nil {
		return err
	}
	return connected(fmt.Sprint(reply), own)
}

// connected finds a client from the same address as the one with an id.
func connected(list, own string) error {
	hosts := make(map[string]string) // by id
	for line := range strings.Lines(list) {
		field := make(map[string]string)
		for f := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(f, "=")
			field[name] = value
		}
		host := field["addr"]
		if i := strings.LastIndexByte(host, ':'); i >= 0 {
			host = host[:i]
		}
		hosts[field["id"]] = host
	}
	for id, host := range hosts {
		if id != own && host == hosts[own] {
			return nil
		}
	}
	return errors.New("no worker is connected to redis_queue from here")
}

// schedulerHealthy reports that the scheduler holds its lock (frappe/utils/scheduler.py, start_scheduler). The lock
// is looked up rather than tried: holding it for a moment would keep a scheduler from starting.
func schedulerHealthy(root string) error {
	info, err := os.Stat(filepath.Join(root, wire.BenchDir, "config/scheduler_process"))
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("the lock's number is not known")
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	inode := fmt.Sprintf(":%d", st.Ino)
	for s := bufio.NewScanner(f); s.Scan(); {
		for word := range strings.FieldsSeq(s.Text()) {
			if strings.HasSuffix(word, inode) {
				return nil
			}
		}
	}
	return errors.New("no scheduler holds config/scheduler_process")
}
