package workflows

import (
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// EnsureCertificate starts the run that gets a certificate issued unless it is running.
func (c *Client) EnsureCertificate(ctx context.Context, id prego.CertificateID) (bool, error) {
	return c.start(ctx, tenant.CertificateWorkflowID(id), string("Certificate "+id), IssueCertificate, IssueCertificateInput{CertificateID: id})
}

// StartCertificateSweep starts the sweep of certificates; success if it is already running.
func (c *Client) StartCertificateSweep(ctx context.Context) error {
	_, err := c.startPeriodic(ctx, tenant.CertificateSweepWorkflowID(c.Environment), fmt.Sprintf("Sweep certificates of %s", c.Environment), SweepCertificates)
	return err
}
