package tenant

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strings"

	"github.com/prego/prego"
)

// Steps of a tenant's timeline for its site's users, mail and storage.
const (
	StepPasswordSet Step = "admin_password_set"
	StepUserAdded   Step = "user_added"
	StepMailSet     Step = "mail_set"
	StepStorage     Step = "storage"
)

// Limits of the texts that are set in sites.
const (
	MaxEmail      = 140 // Frappe's, for emails and names
	MaxPersonName = 140
	maxMailLogin  = 255
	maxMailSecret = 256
	maxHostName   = 253
	maxLocalPart  = 64 // of an email address (RFC 5321 §4.5.3.1.1)
)

var (
	// What hosts accept, see agent/policy/allowed.go.
	emailAddress = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+'-]*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)+$`)
	personName   = regexp.MustCompile(`^[\pL\pN][^\pC<>]*$`)
	hostName     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)
	unprintable  = regexp.MustCompile(`\pC`)
)

// ValidateEmail accepts an email address that Frappe accepts for a user.
func ValidateEmail(field, email string) error {
	if len(email) > MaxEmail || !emailAddress.MatchString(email) {
		return prego.Invalid(field, "must be an email address of at most 140 characters")
	}
	local, domain, _ := strings.Cut(email, "@")
	if len(local) > maxLocalPart || strings.HasSuffix(local, ".") || strings.Contains(local, "..") {
		return prego.Invalid(field, "must be an email address with at most 64 characters before the @, "+
			"without two dots in a row or one at the end")
	}
	if _, err := prego.NormalizeHostname(domain); err != nil {
		return prego.Invalid(field, "must be an email address at a domain: "+domain+" is none")
	}
	return nil
}

// ValidatePerson accepts a person's name.
func ValidatePerson(field, name string) error {
	if len([]rune(name)) > MaxPersonName || len(name) > MaxPersonName || !personName.MatchString(name) {
		return prego.Invalid(field, "must be a name of at most 140 bytes that begins with a letter or a digit")
	}
	return nil
}

// MailSettings are the outgoing mail settings of a site. Only the host has the
// password.
type MailSettings struct {
	Server string `json:"server"`
	Port   int    `json:"port"`
	// TLS is STARTTLS. Frappe 15 supports nothing else in a site's configuration, and
	// enables it by itself if there is a login.
	TLS        bool   `json:"tls"`
	Login      string `json:"login,omitempty"`
	Sender     string `json:"sender"`
	SenderName string `json:"sender_name,omitempty"`
}

// smtps is the port of implicit TLS.
const smtps = 465

// Validate checks the settings together with their password.
func (m MailSettings) Validate(password string) error {
	switch {
	case len(m.Server) > maxHostName || !hostName.MatchString(m.Server):
		return prego.Invalid("server", "must be a host's name or an IPv4 address")
	case prego.CheckHost(m.Server) != nil:
		return prego.Invalid("server", "must be a mail server: "+prego.CheckHost(m.Server).Error())
	case m.Port < 1 || m.Port > 65535:
		return prego.Invalid("port", "must be 1 to 65535")
	case m.Port == smtps:
		return prego.Invalid("port", "must not be 465: Frappe 15 takes no implicit TLS from a site's configuration; use the server's port for STARTTLS, mostly 587")
	case len(m.Login) > maxMailLogin || unprintable.MatchString(m.Login):
		return prego.Invalid("login", "must be at most 255 printable characters")
	case m.Login != "" && !m.TLS:
		return prego.Invalid("tls", "must be true with a login: Frappe 15 turns STARTTLS on whenever there is one")
	case m.Login == "" && password != "":
		return prego.Invalid("password", "needs a login")
	case m.Login != "" && password == "":
		return prego.Invalid("password", "is required with a login")
	case len(password) > maxMailSecret || unprintable.MatchString(password):
		return prego.Invalid("password", "must be at most 256 printable characters")
	case m.SenderName != "":
		if err := ValidatePerson("sender_name", m.SenderName); err != nil {
			return err
		}
	}
	return ValidateEmail("sender", m.Sender)
}

// Configure returns the keys of a site's configuration for these settings (frappe
// email_account.py, get_account_details_from_site_config), without the password.
func (m MailSettings) Configure() SiteConfig {
	c := SiteConfig{
		"mail_server": m.Server, "mail_port": m.Port, "use_tls": 0, "mail_login": nil, "auto_email_id": m.Sender, "email_sender_name": nil,
		// Servers refuse mail in another sender's name.
		"always_use_account_email_id_as_sender": 1, "disable_mail_smtp_authentication": 1,
	}
	if m.TLS {
		c["use_tls"] = 1
	}
	if m.Login != "" {
		c["mail_login"], c["disable_mail_smtp_authentication"] = m.Login, 0
	} else {
		c["mail_password"] = nil
	}
	if m.SenderName != "" {
		c["email_sender_name"] = m.SenderName
	}
	return c
}

// NoMail removes the mail settings from a site's configuration.
func NoMail() SiteConfig {
	return SiteConfig{
		"mail_server": nil, "mail_port": nil, "use_tls": nil, "mail_login": nil, "mail_password": nil, "auto_email_id": nil, "email_sender_name": nil,
		"always_use_account_email_id_as_sender": nil, "disable_mail_smtp_authentication": nil,
	}
}

// SiteConfig are keys of a site's configuration; nil removes a key.
type SiteConfig map[string]any

// Args returns the command that merges the keys into a site's configuration.
func (c SiteConfig) Args(site string) []string {
	b, err := json.Marshal(c)
	if err != nil {
		panic("prego: a SiteConfig always marshals: " + err.Error())
	}
	return []string{"--site", site, "configure", string(b)}
}

// The alphabet of passwords that people type: no characters that look alike.
const passwordLetters = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"

// passwordLen gives 139 bits.
const passwordLen = 24

// NewPassword creates a password that is shown once.
func NewPassword() string {
	var b strings.Builder
	for range passwordLen {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(passwordLetters))))
		if err != nil {
			panic(fmt.Sprintf("prego: no randomness: %v", err)) // crypto/rand never fails
		}
		b.WriteByte(passwordLetters[n.Int64()])
	}
	return b.String()
}
