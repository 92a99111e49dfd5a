package server

import (
	"strings"

	"github.com/prego/prego"
)

// Workflow ids are deterministic, so that a repeated start finds the first run.
const (
	provisionPrefix    = "server-provision/"
	decommissionPrefix = "server-decommission/"
)

// ProvisionWorkflowID is the id of the run that provisions a server.
func ProvisionWorkflowID(serverID prego.ServerID) string { return string(provisionPrefix + serverID) }

// IDFromProvisionWorkflow is the inverse of ProvisionWorkflowID.
func IDFromProvisionWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, provisionPrefix)
}

// DecommissionWorkflowID is the id of the run that decommissions a server.
func DecommissionWorkflowID(serverID prego.ServerID) string {
	return string(decommissionPrefix + serverID)
}

// IDFromDecommissionWorkflow is the inverse of DecommissionWorkflowID.
func IDFromDecommissionWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, decommissionPrefix)
}

// ReconcileWorkflowID and SweepWorkflowID are the ids of the periodic runs of
// one environment.
func ReconcileWorkflowID(environment string) string { return "reconcile/" + environment }

// CatalogWorkflowID is the id of the run that reads the providers' catalogs.
func CatalogWorkflowID(environment string) string { return "refresh-catalog/" + environment }

// SweepWorkflowID is the id of the run that marks silent agents.
func SweepWorkflowID(environment string) string { return "sweep-heartbeats/" + environment }

// Name is the name of a server at the provider. Names are unique per project there,
// which makes repeated and late creates harmless: at most one server of this name can
// exist, whatever the order of events.
func Name(environment string, serverID prego.ServerID) string {
	return "prego-" + environment + "-" + string(serverID)
}

// IDFromName is the inverse of ServerName.
func IDFromName(environment, name string) (string, bool) {
	return strings.CutPrefix(name, "prego-"+environment+"-")
}
