package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// ListCertificates shows a page of certificates.
func (a *API) ListCertificates(c echo.Context, _ ListCertificatesParams) error {
	return list(c, "certificates", store.Certificates.In(a.d.Store), viewOf[Certificate])
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
	out := viewOf[Certificate](v)
	list := views(orders, viewOf[CertificateOrder])
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
	return accepted(a, c, v, viewOf[Certificate])
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
	out := viewOf[Certificate](*v)
	return &out, nil
}
