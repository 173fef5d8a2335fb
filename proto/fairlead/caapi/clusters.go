package caapi

// States of a ConfigMap of a remote cluster.
const (
	// ClusterTrusted: tokens of the cluster count.
	ClusterTrusted = "trusted"
	// ClusterRefused: the ConfigMap is not in order; what it said before, if anything, stays in force.
	ClusterRefused = "refused"
	// ClusterShared: it has a key that another cluster has, whose tokens are refused for both.
	ClusterShared = "shared_key"
	// ClusterIgnored: an older ConfigMap is of the same cluster, or there are too many.
	ClusterIgnored = "ignored"
)

// ClusterStates lists the states.
func ClusterStates() []string {
	return []string{ClusterTrusted, ClusterRefused, ClusterShared, ClusterIgnored}
}

// RemoteClusters are the remote clusters whose tokens count.
type RemoteClusters struct {
	Clusters []RemoteCluster `json:"clusters"`
	// Unread is why the ConfigMaps cannot be read; what they said before stays in force.
	Unread string `json:"unread,omitempty"`
	// Problem is what is wrong with what is in force.
	Problem string `json:"problem,omitempty"`
}

// RemoteCluster is a ConfigMap of a remote cluster.
type RemoteCluster struct {
	// Cluster is the id of the cluster, ConfigMap namespace/name.
	Cluster   string `json:"cluster"`
	ConfigMap string `json:"configMap"`
	State     string `json:"state"`
	// Problem is what is wrong, with the remedy.
	Problem string `json:"problem,omitempty"`
	// Issuer, TrustDomain ("": the mesh's), Namespaces (none: all) and Keys, as SHA-256 thumbprints, are those in
	// force.
	Issuer      string   `json:"issuer,omitempty"`
	TrustDomain string   `json:"trustDomain,omitempty"`
	Namespaces  []string `json:"namespaces,omitempty"`
	Keys        []string `json:"keys,omitempty"`
}
