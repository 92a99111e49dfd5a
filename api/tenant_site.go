package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// siteTimeout is the time limit of a command that a caller waits for.
const siteTimeout = time.Minute

// keptSaid is how many bytes of a host's error message are passed to the caller.
const keptSaid = 512

// liveSite reads a tenant that has a site, and its location.
func (a *API) liveSite(ctx context.Context, id prego.TenantID) (tenant.Tenant, server.ProvisionState, error) {
	var st server.ProvisionState
	t, err := a.d.Store.GetTenant(ctx, string(id))
	if err != nil {
		return t, st, err
	}
	if !t.State.HasSite() {
		return t, st, prego.Errorf(prego.CodeInvalidTransition, "tenant %s is %s: its site must be active, suspended or in its grace period", id, t.State)
	}
	al, err := a.d.Store.LiveAllocation(ctx, id)
	if err != nil {
		return t, st, err
	}
	if al == nil || t.Site == "" {
		return t, st, prego.Errorf(prego.CodeInvalidTransition, "tenant %s is %s and has no site", id, t.State)
	}
	st, err = a.host(ctx, al.AppServerID, true)
	return t, st, err
}

// siteCommand runs a command on a site's host and waits for it. Its secrets are passed
// beside the arguments, and left out of the audit.
func (a *API) siteCommand(c echo.Context, t tenant.Tenant, st server.ProvisionState, secrets map[string]string, args ...string) error {
	// It is waited for, so that its row gets an outcome.
	ctx, done, err := a.stream(c, true)
	if err != nil {
		return err
	}
	defer done()
	cmd := server.Command{
		AuditID: "operator-" + uuid.NewString(), ServerID: st.ServerID, Kind: string(wire.KindBench), Args: args, Actor: prego.ActorOperator, By: requestedBy(c),
		TenantID: t.TenantID, Secrets: secrets, Within: siteTimeout,
	}
	if err := a.d.Store.BeginCommand(ctx, cmd); err != nil {
		return err
	}
	c.Response().Header().Set(auditHeader, cmd.AuditID)
	began := time.Now()
	outcome, failed := a.d.Shell.Run(ctx, st.Host, cmd, siteTimeout, func(string, string) {})
	if failed != nil {
		outcome = server.UnknownOutcome(failed, time.Since(began))
	}
	outcome.Stdout, outcome.Stderr = cmd.RedactEnd(outcome.Stdout), cmd.RedactEnd(outcome.Stderr)
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	if err := a.d.Store.FinishCommand(record, cmd.AuditID, outcome); err != nil {
		a.d.Log.Error("a command's end is not in the audit", zap.String("audit_id", cmd.AuditID), zap.String("error", prego.Redact(err.Error())))
	}
	switch {
	case failed != nil:
		return fromHost(failed, cmd)
	case outcome.ExitCode == nil || *outcome.ExitCode != 0:
		return prego.Errorf(prego.CodeSiteCommandFailed, "the command failed on the host (%s in the audit of server %s): %s", cmd.AuditID, st.ServerID, server.EndOf(outcome.Stderr, keptSaid))
	}
	return nil
}

// onSite runs a command on a tenant's site and waits for it.
func (a *API) onSite(c echo.Context, id prego.TenantID, secrets map[string]string, args func(site string) []string) (tenant.Tenant, error) {
	t, st, err := a.liveSite(c.Request().Context(), id)
	if err != nil {
		return t, err
	}
	return t, a.siteCommand(c, t, st, secrets, args(t.Site)...)
}

// note puts a change of a site on its tenant's timeline, even if the caller has left.
func (a *API) note(c echo.Context, id prego.TenantID, step tenant.Step, message string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), recordWithin)
	defer cancel()
	return a.d.Store.AddTenantEvent(ctx, tenant.Event{TenantID: id, Step: step, Actor: caller(c).By(), Message: message}, "")
}

// once marks an answer whose content is never shown again.
func once(c echo.Context) { c.Response().Header().Set("Cache-Control", "no-store") }

// administrator is Frappe's built-in user, who may do anything on a site.
const administrator = "Administrator"

// SetAdminPassword sets the Administrator's password and shows it once.
func (a *API) SetAdminPassword(c echo.Context, id TenantID, _ SetAdminPasswordParams) error {
	password := tenant.NewPassword()
	t, err := a.onSite(c, id, map[string]string{wire.SecretAdminPassword: password}, func(site string) []string {
		return []string{"--site", site, "set-admin-password"}
	})
	if err != nil {
		return err
	}
	if err := a.note(c, id, tenant.StepPasswordSet, ""); err != nil {
		return err
	}
	once(c)
	return c.JSON(http.StatusOK, AdminPassword{User: administrator, Password: password, SiteUrl: siteURL(t)})
}

// AddTenantUser creates a user of a tenant's site.
func (a *API) AddTenantUser(c echo.Context, id TenantID, _ AddTenantUserParams) error {
	var in struct {
		Email    string `json:"email"`
		Name     string `json:"name"`
		Password string `json:"password"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := tenant.ValidateEmail("email", in.Email); err != nil {
		return err
	}
	if in.Name == "" {
		in.Name = in.Email
	}
	if err := tenant.ValidatePerson("name", in.Name); err != nil {
		return err
	}
	out := TenantUser{Email: in.Email, Name: in.Name}
	secrets := map[string]string{}
	if in.Password != "none" {
		secrets[wire.SecretUserPassword] = tenant.NewPassword()
		out.Password = optional(secrets[wire.SecretUserPassword])
	}
	t, err := a.onSite(c, id, secrets, func(site string) []string {
		return []string{"--site", site, "add-user", in.Email, in.Name}
	})
	if err != nil {
		return err
	}
	if err := a.note(c, id, tenant.StepUserAdded, in.Email); err != nil {
		return err
	}
	out.SiteUrl = siteURL(t)
	once(c)
	return c.JSON(http.StatusCreated, out)
}

// PutTenantMail sets a site's outgoing mail server.
func (a *API) PutTenantMail(c echo.Context, id TenantID) error {
	var in struct {
		Server     string `json:"server"`
		Port       int    `json:"port"`
		TLS        bool   `json:"tls"`
		Login      string `json:"login"`
		Password   string `json:"password"`
		Sender     string `json:"sender"`
		SenderName string `json:"sender_name"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	m := tenant.MailSettings{Server: in.Server, Port: in.Port, TLS: in.TLS, Login: in.Login, Sender: in.Sender, SenderName: in.SenderName}
	if err := m.Validate(in.Password); err != nil {
		return err
	}
	secrets := map[string]string{}
	if in.Password != "" {
		secrets[wire.SecretMailPassword] = in.Password
	}
	if _, err := a.onSite(c, id, secrets, m.Configure().Args); err != nil {
		return err
	}
	if err := a.d.Store.SetMail(context.WithoutCancel(c.Request().Context()), id, &m, caller(c).By()); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, m)
}

// DeleteTenantMail removes a site's mail settings.
func (a *API) DeleteTenantMail(c echo.Context, id TenantID, _ DeleteTenantMailParams) error {
	ctx := c.Request().Context()
	t, st, err := a.liveSite(ctx, id)
	if err != nil {
		return err
	}
	if err := a.d.Store.MayRemoveMail(ctx, id); err != nil || dryRun(c) {
		return noContent(c, err)
	}
	if err := a.siteCommand(c, t, st, nil, tenant.NoMail().Args(t.Site)...); err != nil {
		return err
	}
	return noContent(c, a.d.Store.SetMail(context.WithoutCancel(ctx), id, nil, caller(c).By()))
}

// PutStorageQuota changes a tenant's storage quota.
func (a *API) PutStorageQuota(c echo.Context, id TenantID, _ PutStorageQuotaParams) error {
	var in struct {
		GB int `json:"gb"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	t, err := a.d.Store.SetStorageQuota(c.Request().Context(), id, in.GB, caller(c).By())
	return answer(c, http.StatusOK, t, err, tenantSummary)
}

func storageView(t tenant.Tenant, u tenant.SiteUsage) TenantStorage {
	quota := int64(t.StorageQuotaGB) * tenant.BytesPerGB
	return TenantStorage{
		UsedBytes: u.Used(), DatabaseBytes: u.DatabaseBytes, FilesBytes: u.FilesBytes, BackupsBytes: u.BackupsBytes, QuotaBytes: quota,
		UsedPct: 100 * float64(u.Used()) / float64(max(quota, 1)), Users: u.Users, Level: TenantStorageLevel(u.Level), OverSince: utc(u.OverSince),
		ReadOnly: u.ReadOnly, MeasuredAt: u.MeasuredAt.UTC(), Message: optional(u.Message),
	}
}
