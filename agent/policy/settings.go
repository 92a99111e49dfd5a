package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prego/prego/agent/wire"
)

// settable are the keys of site_config.json that the verb configure accepts. The keys for mail are what Frappe 15
// reads for a site's outgoing account (frappe/email/doctype/email_account/email_account.py,
// get_account_details_from_site_config).
var settable = []string{
	"host_name", wire.SiteOwnerFile, "prego_plan", "prego_max_users", "prego_storage_quota_gb",
	"mail_server", "mail_port", "use_tls", "mail_login", wire.SecretMailPassword, "auto_email_id", "email_sender_name",
	"always_use_account_email_id_as_sender", "disable_mail_smtp_authentication",
	"allow_reads_during_maintenance", "max_file_size",
}

// maxSetting bounds one value, in bytes.
const maxSetting = 4096

// Settings are keys of site_config.json with their JSON values; null removes a key.
type Settings map[string]json.RawMessage

// ParseSettings parses the argument of configure: a JSON object of settable keys with
// strings, numbers, booleans and nulls.
func ParseSettings(text string) (Settings, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("the settings must be a JSON object")
	}
	out := make(Settings)
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, errors.New("the settings must be a JSON object")
		}
		key, _ := t.(string)
		if !slices.Contains(settable, key) {
			return nil, fmt.Errorf("%q may not be set", key)
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("%s is there twice", key)
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, errors.New("the settings must be a JSON object")
		}
		switch {
		case len(v) > maxSetting || !utf8.Valid(v):
			return nil, fmt.Errorf("%s is too long", key)
		case bytes.ContainsAny(v[:1], "{["):
			return nil, fmt.Errorf("%s must be text, a number, true, false or null", key)
		case key == wire.SecretMailPassword && string(v) != "null":
			return nil, fmt.Errorf("%s is given as a secret, or null", key)
		}
		out[key] = v
	}
	if _, err := dec.Token(); err != nil {
		return nil, errors.New("the settings must be a JSON object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the settings")
	}
	if len(out) == 0 {
		return nil, errors.New("there must be a setting")
	}
	return out, nil
}

// Text is the string value of a key, "" if there is none.
func (s Settings) Text(key string) string {
	var text string
	_ = json.Unmarshal(s[key], &text)
	return text
}

// hosts are keys of site_config.json that only the host or Frappe may set: with another
// value a site would use another's database, or none.
var hosts = []string{
	"root_login", "root_password", "admin_password", "encryption_key", "extra_config", "backup_path", "backup_encryption_key", "keep_backups_for_hours",
	"restart_supervisor_on_update", "restart_systemd_on_update", "server_script_enabled", "developer_mode", "local_infile", "install_apps", "maintenance_mode",
}

// Reserved reports whether set-config may not set a key. The control plane sets its own with configure.
func Reserved(key string) bool {
	return slices.Contains(hosts, key) || strings.HasPrefix(key, "prego_") || strings.HasPrefix(key, "db_") || strings.HasPrefix(key, "redis_") ||
		strings.HasPrefix(key, "rds_") || strings.HasPrefix(key, "socketio_")
}
