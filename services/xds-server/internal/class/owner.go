package class

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// defaultAccount is the service account of a Workload that names none, as Kubernetes has it of Pods. A WorkloadEntry
// without one belongs to it too, so that no Workload belongs to every account of its namespace.
const defaultAccount = "default"

// podKind is the kind of the objects whose proxies are named after them: nothing else finds them, an address does not.
const podKind = "Pod"

// Authorize checks the claims against the authenticated identity spiffe://<trust domain>/ns/<namespace>/sa/<service
// account>: a proxy may only be one of its own namespace and service account. On success the identity and its service
// account are the node's.
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

// Workload returns the mesh's object of the proxy, nil if the mesh knows none that is the caller's. The error, an
// ErrForeign, says that the node id names a Workload of another service account: such a proxy is not served. Who has
// proven no identity is believed the name.
func (n *Node) Workload(state *mesh.Snapshot) (*configv1.Workload, error) {
	w := state.Workload(n.Namespace, n.Name)
	switch {
	case w == nil:
		return n.machine(state), nil
	case n.owns(w):
		return w, nil
	case n.Identity == "":
		return nil, nil //nolint:nilnil // the account is no more than a claim, and contradicts the name
	default:
		return nil, fmt.Errorf("%w: node %q names Workload %s/%s of service account %q, the caller is %s; a proxy runs as the service account of "+
			"its Pod, or as the one in spec.serviceAccount of its WorkloadEntry", ErrForeign, n.ID, w.GetNamespace(), w.GetName(), account(w), n.Identity)
	}
}

// machine finds the Workload of a machine, whose WorkloadEntry may be named otherwise than its proxy: at one of its
// addresses, and of its service account.
func (n *Node) machine(state *mesh.Snapshot) *configv1.Workload {
	for _, a := range n.Addresses {
		for _, w := range state.WorkloadsAt(a) {
			if w.GetSource().GetKind() != podKind && n.owns(w) {
				return w
			}
		}
	}
	return nil
}

// owns reports whether the Workload is one of the caller's service account; an account that is neither proven nor
// claimed may be any.
func (n *Node) owns(w *configv1.Workload) bool {
	return w.GetNamespace() == n.Namespace && (account(w) == n.ServiceAccount || n.ServiceAccount == "" && n.Identity == "")
}

func account(w *configv1.Workload) string { return cmp.Or(w.GetServiceAccount(), defaultAccount) }

// addresses are the Workload's. Before it has any, and where there is none, they are those claimed that are no other
// account's.
func (n *Node) addresses(state *mesh.Snapshot, w *configv1.Workload) []string {
	if len(w.GetAddresses()) > 0 {
		return w.GetAddresses()
	}
	return slices.DeleteFunc(slices.Clone(n.Addresses), func(a string) bool {
		at := state.WorkloadsAt(a)
		return len(at) > 0 && !slices.ContainsFunc(at, n.owns)
	})
}

// facts are the entries of text of the node's metadata, with what is known in place of what is claimed: who the proxy
// is and where it runs.
func (n *Node) facts(w *configv1.Workload) map[string]string {
	facts := make(map[string]string, len(n.Metadata))
	for k, v := range n.Metadata {
		switch k {
		case "NAME", "NAMESPACE", "SERVICE_ACCOUNT", "CLUSTER_ID", "NETWORK":
		default:
			facts[k] = v
		}
	}
	for k, v := range map[string]string{
		"NAME": n.Name, "NAMESPACE": n.Namespace, "SERVICE_ACCOUNT": n.ServiceAccount, "CLUSTER_ID": w.GetCluster(), "NETWORK": w.GetNetwork(),
	} {
		if v != "" {
			facts[k] = v
		}
	}
	return facts
}
