package class

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// defaultAccount is the service account of a Workload that names none, as for Kubernetes Pods. It is also that of a
// WorkloadEntry without one, so that no Workload belongs to every account of its namespace.
const defaultAccount = "default"

// podKind is the kind of the objects whose proxies have their name: a Pod's Workload is found by name, never by
// address.
const podKind = "Pod"

// Authorize checks the node against the authenticated identity spiffe://<trust domain>/ns/<namespace>/sa/<service
// account>: a proxy must be of its identity's namespace and service account. On success it sets the node's identity and
// service account.
func (n *Node) Authorize(id spiffeid.ID) error {
	ns, sa, ok := auth.WorkloadOf(id)
	if !ok {
		return fmt.Errorf("%w: identity %s is not of the form /ns/<namespace>/sa/<service account>", ErrForeign, id)
	}
	if ns != n.Namespace {
		return fmt.Errorf("%w: node %q is of namespace %q, the caller of %q", ErrForeign, n.ID, n.Namespace, ns)
	}
	if n.ServiceAccount != "" && n.ServiceAccount != sa {
		return fmt.Errorf("%w: node %q claims service account %q, the caller is %q", ErrForeign, n.ID, n.ServiceAccount, sa)
	}
	n.ServiceAccount, n.Identity = sa, id.String()
	return nil
}

// Workload returns the mesh's object of the proxy, nil if there is none of the caller's service account. The error, an
// ErrForeign, says that the node id names a Workload of another service account; the server then rejects the proxy. The
// name of a node without a proven identity is trusted.
func (n *Node) Workload(state *mesh.Snapshot) (*configv1.Workload, error) {
	w := n.named(state)
	switch {
	case w == nil:
		return n.workloadAtAddress(state), nil
	case n.owns(w):
		return w, nil
	case n.Identity == "":
		return nil, nil //nolint:nilnil // the account is no more than a claim, and contradicts the name
	default:
		return nil, fmt.Errorf("%w: node %q names Workload %s/%s of service account %q, the caller is %s; a proxy runs as the service account "+
			"of "+
			"its Pod, or as the one in spec.serviceAccount of its WorkloadEntry", ErrForeign, n.ID, w.GetNamespace(), w.GetName(), account(w),
			n.Identity)
	}
}

// named returns the Workload of the proxy's name: that of the cluster which the proxy names, else that of
// config-watcher's own cluster.
func (n *Node) named(state *mesh.Snapshot) *configv1.Workload {
	if n.Cluster != "" {
		if w := state.Workload(n.Namespace, contract.WorkloadName(n.Name, n.Cluster)); w != nil {
			return w
		}
	}
	w := state.Workload(n.Namespace, n.Name)
	if n.Cluster != "" && w.GetCluster() != n.Cluster && state.ManyClusters() {
		return nil // the Pod of that name in another cluster
	}
	return w
}

// workloadAtAddress finds the Workload of a machine, whose WorkloadEntry may have another name than its proxy: one of
// the node's service account at one of its addresses.
func (n *Node) workloadAtAddress(state *mesh.Snapshot) *configv1.Workload {
	for _, a := range n.Addresses {
		for _, w := range state.WorkloadsAt(a) {
			if w.GetSource().GetKind() != podKind && n.owns(w) {
				return w
			}
		}
	}
	return nil
}

// owns reports whether the Workload is of the node's service account. A node with neither a proven nor a claimed
// account owns every Workload of its namespace.
func (n *Node) owns(w *configv1.Workload) bool {
	return w.GetNamespace() == n.Namespace && (account(w) == n.ServiceAccount || n.ServiceAccount == "" && n.Identity == "")
}

func account(w *configv1.Workload) string { return cmp.Or(w.GetServiceAccount(), defaultAccount) }

// addresses returns the Workload's addresses. If there are none, they are the claimed ones, without those of Workloads
// of other service accounts.
func (n *Node) addresses(state *mesh.Snapshot, w *configv1.Workload) []string {
	if len(w.GetAddresses()) > 0 {
		return w.GetAddresses()
	}
	return slices.DeleteFunc(slices.Clone(n.Addresses), func(a string) bool {
		at := state.WorkloadsAt(a)
		return len(at) > 0 && !slices.ContainsFunc(at, n.owns)
	})
}

// verifiedMetadata returns the text entries of the node's metadata, in which the entries that say who the proxy is and
// where it runs are those of its identity and Workload, not the claimed ones.
func (n *Node) verifiedMetadata(w *configv1.Workload) map[string]string {
	verified := make(map[string]string, len(n.Metadata))
	for k, v := range n.Metadata {
		switch k {
		case "NAME", "NAMESPACE", "SERVICE_ACCOUNT", "CLUSTER_ID", "NETWORK":
		default:
			verified[k] = v
		}
	}
	for k, v := range map[string]string{
		"NAME": n.Name, "NAMESPACE": n.Namespace, "SERVICE_ACCOUNT": n.ServiceAccount, "CLUSTER_ID": w.GetCluster(), "NETWORK": w.GetNetwork(),
	} {
		if v != "" {
			verified[k] = v
		}
	}
	return verified
}
