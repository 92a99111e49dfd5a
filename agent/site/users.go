package site

import (
	"errors"
	"fmt"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// setAdminPassword sets Administrator's password and ends its sessions. Without the
// argument Frappe prompts for it, once.
func (b *bench) setAdminPassword(site string) error {
	password := b.secrets[wire.SecretAdminPassword]
	if password == "" {
		return errors.New("there is no password")
	}
	return b.command([]string{password}, "--site", site, "set-admin-password", "--logout-all-sessions")
}

// addUser adds a System Manager, or finds the one with this address, and sets the
// password if there is one. Frappe commits the user together with its roles.
func (b *bench) addUser(site, email, name string) error {
	email = strings.ToLower(email) // as Frappe names users (frappe/core/doctype/user/user.py, autoname)
	db, _, err := b.asSite(site)
	if err != nil {
		return err
	}
	there, err := queryValue[int](db, "SELECT COUNT(*) FROM tabUser WHERE name = ?", email)
	if err != nil {
		return err
	}
	if there == 0 {
		first, last, _ := strings.Cut(name, " ")
		args := []string{"--site", site, "add-system-manager", email, "--first-name", first}
		if last = strings.TrimSpace(last); last != "" {
			args = append(args, "--last-name", last)
		}
		if err := b.command(nil, args...); err != nil {
			return err
		}
	}
	if n, err := queryValue[int](db, "SELECT COUNT(*) FROM `tabHas Role` WHERE parenttype = 'User' AND parent = ? AND role = 'System Manager'", email); err != nil || n == 0 {
		return errors.Join(err, fmt.Errorf("user %s is there, and is no System Manager", email))
	}
	if password := b.secrets[wire.SecretUserPassword]; password != "" {
		// Not --password of add-system-manager, which would be an argument.
		if err := b.command([]string{password}, "--site", site, "set-password", email); err != nil {
			return err
		}
	}
	return b.printResult(map[string]any{"site": site, "user": email, "added": there == 0})
}
