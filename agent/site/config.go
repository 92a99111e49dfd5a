package site

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

const (
	siteConfig   = "site_config.json"
	commonConfig = "common_site_config.json"
)

// readConfig reads a file of Frappe's configuration; a missing one is empty. Values stay as they are written.
func (b *bench) readConfig(name string) (map[string]json.RawMessage, error) {
	text, err := b.sites.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]json.RawMessage{}, nil
	}
	if err != nil {
		return nil, err
	}
	var out map[string]json.RawMessage
	if json.Unmarshal(text, &out) != nil { // its words may be secret
		return nil, fmt.Errorf("%s is no JSON object", name)
	}
	return out, nil
}

// writeConfig writes a file of Frappe's configuration as Frappe does.
func (b *bench) writeConfig(name string, config map[string]json.RawMessage) error {
	text, err := json.Marshal(config) // sorts the keys
	if err != nil {
		return err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", " "); err != nil {
		return err
	}
	mode := fs.FileMode(0o640)
	if info, err := b.sites.Stat(name); err == nil {
		mode = info.Mode().Perm()
	}
	return b.put(name, pretty.Bytes(), mode)
}

// change sets keys of a site's configuration. Frappe writes the file in place under its own lock
// (frappe/installer.py, update_site_config), which is also held here.
func (b *bench) change(site string, settings policy.Settings) error {
	if err := b.sites.MkdirAll(site+"/locks", 0o755); err != nil {
		return err
	}
	f, err := b.sites.OpenFile(site+"/locks/site_config.lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := flock(f, alone); err != nil {
		return err
	}
	name := site + "/" + siteConfig
	if !b.exists(name) {
		return fmt.Errorf("site %s has no %s", site, siteConfig)
	}
	config, err := b.readConfig(name)
	if err != nil {
		return err
	}
	for key, value := range settings {
		if string(value) == "null" {
			delete(config, key)
		} else {
			config[key] = value
		}
	}
	return b.writeConfig(name, config)
}

func (b *bench) configure(site, text string) error {
	settings, err := policy.ParseSettings(text)
	if err != nil {
		return err
	}
	if password := b.secrets[wire.SecretMailPassword]; password != "" {
		settings[wire.SecretMailPassword] = quoteJSON(password)
	}
	return b.change(site, settings)
}

func quoteJSON(text string) json.RawMessage {
	v, _ := json.Marshal(text) // text always marshals
	return v
}

// setConfig sets one key, with values parsed as "bench set-config" parses them
// (frappe/installer.py, _update_config_file).
func (b *bench) setConfig(site, key, value string) error {
	if policy.Reserved(key) {
		return fmt.Errorf("%s is the host's own", key)
	}
	v := quoteJSON(value)
	switch value {
	case "0", "1", "true", "false":
		v = json.RawMessage(value)
	case "None":
		v = json.RawMessage("null")
	}
	return b.change(site, policy.Settings{key: v})
}

// databaseOf are the database settings in a site's configuration.
type databaseOf struct {
	Name     string `json:"db_name"`
	Password string `json:"db_password"`
	Socket   string `json:"db_socket"`
	Host     string `json:"db_host"`
	Port     any    `json:"db_port"` // a number, or one in quotes
	Type     string `json:"db_type"`
	Cache    string `json:"redis_cache"`
	Queue    string `json:"redis_queue"`
	// All three: the connection is over TLS (frappe/database/mariadb/database.py, get_connection_settings).
	SSLCA   string `json:"db_ssl_ca"`
	SSLCert string `json:"db_ssl_cert"`
	SSLKey  string `json:"db_ssl_key"`
}

// connection is how Frappe connects to the database of a site, or of the next one if site is "": the site's
// configuration overrides the common one (frappe/__init__.py, get_site_config).
func (b *bench) connection(site string) (databaseOf, error) {
	at := databaseOf{Host: "127.0.0.1", Port: "3306"}
	names := []string{commonConfig}
	if site != "" {
		names = append(names, site+"/"+siteConfig)
	}
	for _, name := range names {
		text, err := b.sites.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return at, err
		}
		if json.Unmarshal(text, &at) != nil {
			return at, fmt.Errorf("%s can't be read", name)
		}
	}
	if at.Type != "" && at.Type != "mariadb" {
		return at, fmt.Errorf("a database of type %s is not supported", at.Type)
	}
	return at, nil
}
