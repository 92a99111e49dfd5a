package server

import "github.com/prego/prego"

// Workflow ids are deterministic, so that a repeated start finds the first run.

// ProvisionWorkflowID is the id of the run that provisions a server.
func ProvisionWorkflowID(serverID prego.ServerID) string {
	return string("server-provision/" + serverID)
}

// DecommissionWorkflowID is the id of the run that decommissions a server.
func DecommissionWorkflowID(serverID prego.ServerID) string {
	return string("server-decommission/" + serverID)
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
// exist in any order of events.
func Name(environment string, serverID prego.ServerID) string {
	return "prego-" + environment + "-" + string(serverID)
}
