package object

import corev1 "k8s.io/api/core/v1"

// ClusterSet is what ServiceExports and ServiceImports of all clusters say of a Service, see package mcs. It is part of
// no manifest, so no user can write it.
type ClusterSet struct {
	// Exported is true if the Service's cluster exports it: clients in other clusters may find its endpoints.
	Exported bool
	// Strict is true if clients in other clusters do not find its endpoints at its ordinary host even so.
	Strict bool
	// Host is the hostname that the Services of this name have in all clusters together; "" for none.
	Host string
	// Service has the ports and all other properties of Host, which come from several clusters' Services; nil without
	// Host. Its cluster IPs are those of the import that decides.
	Service *corev1.Service
	// VIPs are the addresses of Host in each cluster that imports it, sorted by cluster.
	VIPs []ClusterVIPs
}

// ClusterVIPs are the addresses of a host for clients in a cluster, sorted; none for a headless host.
type ClusterVIPs struct {
	Cluster string
	IPs     []string
}
