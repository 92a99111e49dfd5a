package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

// siteWait is how long a verb waits for a site's host, in which a command may take a
// minute.
const siteWait = 2 * time.Minute

// askSite sends a request that a site's host has to carry out.
func askSite[T any](cmd *cobra.Command, output, method, tenant, path string, in any, show func(io.Writer, T)) error {
	c, err := newAPIClient()
	if err != nil {
		return err
	}
	c.http = &http.Client{Timeout: siteWait}
	var out T
	var into any = &out
	if method == http.MethodDelete {
		into = nil
	}
	if err := c.do(cmd.Context(), method, "/v1/tenants/"+url.PathEscape(tenant)+path, nil, in, into); err != nil {
		return err
	}
	if output == "json" && into != nil {
		return printJSON(cmd.OutOrStdout(), out)
	}
	show(cmd.OutOrStdout(), out)
	return nil
}

func tenantPassword(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "password TENANT_ID", Short: "Set the Administrator's password of a tenant's site, and show it once", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return askSite(cmd, *output, http.MethodPost, args[0], "/admin-password", nil, func(w io.Writer, p api.AdminPassword) {
				fmt.Fprintf(w, "user      %s\npassword  %s\nsite      %s\n", p.User, p.Password, deref(p.SiteUrl))
				fmt.Fprintln(cmd.ErrOrStderr(), "This password is kept nowhere and not shown again.")
			})
		},
	}
}

func newTenantUserCommand(output *string) *cobra.Command {
	cmd := &cobra.Command{Use: "user", Short: "Users of tenants' sites"}
	var name string
	var none bool
	add := &cobra.Command{
		Use: "add TENANT_ID EMAIL", Short: "Make a System Manager of a tenant's site, and show the password once", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.AddTenantUser{Email: args[1], Name: flagged(name)}
			if none {
				no := api.AddTenantUserPassword("none")
				in.Password = &no
			}
			return askSite(cmd, *output, http.MethodPost, args[0], "/users", in, func(w io.Writer, u api.TenantUser) {
				fmt.Fprintf(w, "user      %s (%s)\n", u.Email, u.Name)
				if u.Password != nil {
					fmt.Fprintf(w, "password  %s\n", *u.Password)
					fmt.Fprintln(cmd.ErrOrStderr(), "This password is kept nowhere and not shown again.")
				}
				fmt.Fprintf(w, "site      %s\n", deref(u.SiteUrl))
			})
		},
	}
	add.Flags().StringVar(&name, "name", "", "the user's name; the email when left out")
	add.Flags().BoolVar(&none, "no-password", false, "make none: the user asks the site for one by mail")
	cmd.AddCommand(add)
	return cmd
}

func newTenantMailCommand(output *string) *cobra.Command {
	cmd := &cobra.Command{Use: "mail", Short: "Where tenants' sites send their mail"}
	var in api.PutTenantMail
	var tls bool
	var login, sender, file string
	set := &cobra.Command{
		Use: "set TENANT_ID --server HOST --sender EMAIL", Short: "Say where a tenant's site sends its mail; the password is read from a file or from standard input",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Tls, in.Login, in.SenderName = &tls, flagged(login), flagged(sender)
			if login != "" {
				secret, err := readSecret(cmd.InOrStdin(), file)
				if err != nil {
					return err
				}
				in.Password = &secret
			}
			return askSite(cmd, *output, http.MethodPut, args[0], "/mail", in, func(w io.Writer, m api.TenantMail) { fmt.Fprintln(w, mailText(m)) })
		},
	}
	f := set.Flags()
	f.StringVar(&in.Server, "server", "", "the mail server's name")
	f.IntVar(&in.Port, "port", 587, "its port; not 465, Frappe 15 takes no implicit TLS here")
	f.BoolVar(&tls, "tls", true, "STARTTLS; a login needs it")
	f.StringVar(&login, "login", "", "who logs in; nobody when left out")
	f.StringVar(&in.Sender, "sender", "", "from which address")
	f.StringVar(&sender, "sender-name", "", "and under which name")
	f.StringVar(&file, "password-file", "", "file that holds the password; standard input when left out")
	_ = set.MarkFlagRequired("server")
	_ = set.MarkFlagRequired("sender")
	cmd.AddCommand(set, &cobra.Command{
		Use: "unset TENANT_ID", Short: "Take the mail settings out of a tenant's site", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return askSite(cmd, *output, http.MethodDelete, args[0], "/mail", nil, func(w io.Writer, _ struct{}) { fmt.Fprintln(w, "the site has no mail settings") })
		},
	})
	return cmd
}

func mailText(m api.TenantMail) string {
	text := fmt.Sprintf("%s by %s:%d", m.Sender, m.Server, m.Port)
	if m.Login != nil {
		text += " as " + *m.Login
	}
	if m.Tls {
		text += ", STARTTLS"
	}
	return text
}

func tenantQuota(output *string) *cobra.Command {
	var in api.PutStorageQuota
	cmd := &cobra.Command{
		Use: "storage-quota TENANT_ID --gb N", Short: "Change a tenant's storage quota", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return asked(cmd, *output, http.MethodPut, "/v1/tenants/"+url.PathEscape(args[0])+"/storage-quota", in, func(w io.Writer, t api.TenantSummary) {
				fmt.Fprintf(w, "tenant %s has a storage quota of %d GB\n", t.TenantId, in.Gb)
			})
		},
	}
	cmd.Flags().IntVar(&in.Gb, "gb", 0, "the quota in GB")
	_ = cmd.MarkFlagRequired("gb")
	return cmd
}

// storageText says what a site takes, of what, and since when that is too much.
func storageText(s api.TenantStorage) string {
	gb := func(n int64) string { return fmt.Sprintf("%.2f", float64(n)/1e9) }
	text := fmt.Sprintf("%s of %s GB (%.0f %%): database %s, files %s; backups %s GB beside; %s", gb(s.UsedBytes), gb(s.QuotaBytes), s.UsedPct,
		gb(s.DatabaseBytes), gb(s.FilesBytes), gb(s.BackupsBytes), s.Level)
	if s.OverSince != nil {
		text += ", over since " + s.OverSince.Format(time.RFC3339)
	}
	if s.ReadOnly {
		text += ", the site is read-only"
	}
	text += "; measured " + s.MeasuredAt.Format(time.RFC3339)
	if s.Message != nil {
		text += ", the last try failed: " + oneLine(*s.Message)
	}
	return text
}
