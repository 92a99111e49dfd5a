package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/tenant"
)

// ListCertificates shows a page of certificates.
func (a *API) ListCertificates(c echo.Context, _ ListCertificatesParams) error {
	return list(c, "certificates", a.d.Store.ListCertificates, certificateView)
}

// GetCertificate shows a certificate with its last orders.
func (a *API) GetCertificate(c echo.Context, id CertificateIDInPath) error {
	ctx := c.Request().Context()
	v, err := a.d.Store.GetCertificate(ctx, id)
	if err != nil {
		return err
	}
	orders, err := a.d.Store.CertificateOrders(ctx, id)
	if err != nil {
		return err
	}
	out := certificateView(v)
	list := views(orders, orderView)
	out.Orders = &list
	return c.JSON(http.StatusOK, out)
}

// RenewCertificate orders a certificate again.
func (a *API) RenewCertificate(c echo.Context, id CertificateIDInPath, _ RenewCertificateParams) error {
	v, err := a.d.Store.RenewCertificate(c.Request().Context(), id)
	if err != nil {
		return err
	}
	ctx, cancel := startContext(c)
	defer cancel()
	if _, err := a.d.Runs.EnsureCertificate(ctx, id); err != nil {
		a.notStarted(c, tenant.CertificateWorkflowID(id), err)
	}
	out := certificateView(v)
	out.Operation = a.operation(c, out.WorkflowId)
	return c.JSON(http.StatusAccepted, out)
}

// siteCertificate is what edges serve a site with, or are to; nil if there is none.
func (a *API) siteCertificate(ctx context.Context, site string) (*Certificate, error) {
	if site == "" {
		return nil, nil
	}
	v, err := a.d.Store.CertificateFor(ctx, site)
	if err != nil || v == nil {
		return nil, err
	}
	out := certificateView(*v)
	return &out, nil
}

func certificateView(v tenant.Certificate) Certificate {
	out := Certificate{
		CertificateId: string(v.CertificateID), Names: v.Names, Challenge: CertificateChallenge(v.Challenge), Status: CertificateStatus(v.Status),
		Reason: optional(string(v.Reason)), Message: optional(v.Message), Renews: v.Renews, Failures: v.Failures, Version: v.Version,
		Serial: optional(v.Serial), Issuer: optional(v.Issuer), NotBefore: utc(v.NotBefore), NotAfter: utc(v.NotAfter), NextAttemptAt: utc(v.DueAt),
		IssuedAt: utc(v.IssuedAt), RetiredAt: utc(v.RetiredAt), ExplanationUrl: optional(v.AriURL),
		WorkflowId: tenant.CertificateWorkflowID(v.CertificateID), CreatedAt: v.CreatedAt.UTC(), UpdatedAt: v.UpdatedAt.UTC(),
	}
	if v.OrgID != nil {
		out.OrgId = optional(string(*v.OrgID))
	}
	if v.TenantID != nil {
		out.TenantId = optional(string(*v.TenantID))
	}
	return out
}

func orderView(o tenant.CertificateOrder) CertificateOrder {
	return CertificateOrder{
		OrderId: o.OrderID, State: CertificateOrderState(o.State), Reason: optional(string(o.Reason)), Message: optional(o.Message),
		CreatedAt: o.CreatedAt.UTC(), EndedAt: utc(o.EndedAt),
	}
}
