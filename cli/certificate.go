package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/tenant"
)

var certificateTable = Table[api.Certificate]{
	ID: "certificate_id", Columns: "certificate_id: certificate, names, status, reason, not_after: ends, next_attempt_at: next", Spare: "next, reason",
	More: "message, challenge, renews, failures, version, org_id, tenant_id, serial, issuer, not_before, issued_at, retired_at, explanation_url, workflow_id, created_at",
}

func certificateCommand(c *CLI) *cobra.Command {
	return c.group("certificate", "Show and renew certificates for host names",
		List[api.Certificate]{
			Short: "List certificates, newest first", Path: "/v1/certificates", Items: "certificates", All: true, Filters: "status, reason, org: org_id, tenant: tenant_id",
			Values: map[string][]string{"status": words(tenant.CertificateStatuses())}, Sorts: "created_at", Table: certificateTable,
		},
		Show[api.Certificate]{Use: "show CERTIFICATE…", Short: "Show certificates with their last orders", Path: "/v1/certificates/{certificate}", Table: certificateTable},
		Action[api.Certificate]{
			Use: "renew CERTIFICATE…", Short: "Renew certificates now; those that there are stay in use until then", Path: "/v1/certificates/{certificate}/renew", Table: certificateTable,
			Say: func(_ *call, v api.Certificate) string {
				return fmt.Sprintf("accepted: certificate %s, workflow %s", v.CertificateId, v.WorkflowId)
			},
		},
	)
}
