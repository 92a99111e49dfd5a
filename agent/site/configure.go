package site

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prego/prego/agent/policy"
)

// ConfigureVerb makes the agent's program write the common configuration of all sites of a bench, see ConfigureMain.
const ConfigureVerb = "configure"

// addresses are where a bench's services are: HOST:PORT each.
type addresses struct {
	database, cache, queue string
	password               string // of Redis's user default
	socketio               int
}

// ConfigureMain runs in the container configurator, before the others that have the sites. It does what the service
// of that name in frappe_docker's compose.yaml does, supports passwords, and leaves other keys alone.
func ConfigureMain(args []string) int {
	var at addresses
	flags := flag.NewFlagSet("prego-agent configure", flag.ContinueOnError)
	root := flags.String("root", "/", "directory that stands for the root")
	flags.StringVar(&at.database, "db", "", "MariaDB of the bench, HOST:PORT; empty where all databases are on other servers")
	flags.StringVar(&at.cache, "redis-cache", "", "Redis for caches, HOST:PORT")
	flags.StringVar(&at.queue, "redis-queue", "", "Redis for jobs and events, HOST:PORT")
	password := flags.String("redis-password-file", "", "file with the password of Redis's user default; empty for none")
	flags.IntVar(&at.socketio, "socketio-port", 9000, "port of the websocket server")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := at.configure(*root, *password, flags.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "configure: %v\n", err)
		return 1
	}
	fmt.Println("configured")
	return 0
}

func (at addresses) configure(root, password string, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("there is no argument %q", rest[0])
	}
	if password != "" {
		text, err := os.ReadFile(filepath.Clean(password))
		if err != nil {
			return err
		}
		if at.password = strings.TrimSpace(string(text)); at.password == "" {
			return fmt.Errorf("%s is empty", password)
		}
	}
	b, err := openBench(root, &masked{to: os.Stderr})
	if err != nil {
		return err
	}
	defer b.close()
	apps, err := b.appsOfBench()
	if err != nil {
		return err
	}
	if err := b.put("apps.txt", []byte(strings.Join(apps, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	config, err := b.readConfig(commonConfig)
	if err != nil {
		return err
	}
	if err := at.set(config); err != nil {
		return err
	}
	if err := b.installModule(config); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(root, chromium)); err == nil {
		config["chromium_path"] = quoteJSON(chromium)
	}
	return b.writeConfig(commonConfig, config)
}

// chromium is used by images of Frappe 16 to create PDFs.
const chromium = "/usr/bin/chromium-headless-shell"

// appsOfBench are the image's apps, Frappe first.
func (b *bench) appsOfBench() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(b.dir, "apps"))
	if err != nil {
		return nil, err
	}
	apps := []string{"frappe"}
	for _, e := range entries {
		if e.IsDir() && policy.Is("APP", e.Name()) && e.Name() != "frappe" {
			apps = append(apps, e.Name())
		}
	}
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "frappe" }) {
		return nil, errors.New("the bench has no app frappe")
	}
	return apps, nil
}

// set writes the addresses to a configuration. Frappe passes a Redis URL to its client unchanged: with user and
// password it logs in (frappe/utils/redis_wrapper.py, frappe/utils/redis_queue.py; node_utils.js for events).
func (at addresses) set(config map[string]json.RawMessage) error {
	if at.database != "" {
		host, port, err := splitAddress(at.database)
		if err != nil {
			return fmt.Errorf("--db: %w", err)
		}
		config["db_host"], config["db_port"] = quoteJSON(host), json.RawMessage(port)
	}
	for name, address := range map[string]string{"redis_cache": at.cache, "redis_queue": at.queue, "redis_socketio": at.queue} {
		host, port, err := splitAddress(address)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		login := ""
		if at.password != "" {
			login = "default:" + at.password + "@"
		}
		config[name] = quoteJSON("redis://" + login + net.JoinHostPort(host, port))
	}
	config["socketio_port"] = json.RawMessage(strconv.Itoa(at.socketio))
	return nil
}

func splitAddress(address string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(address)
	if err != nil {
		return "", "", err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
		return "", "", fmt.Errorf("%q is no host and port", address)
	}
	return host, port, nil
}
