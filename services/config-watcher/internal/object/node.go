package object

import corev1 "k8s.io/api/core/v1"

// Node is what the mesh reads of a Node beside its labels.
type Node struct {
	// ExternalIPs are the addresses by which the node is reached from outside the cluster.
	ExternalIPs []string
}

// NodeOf reads a Node. The result keeps no part of n in memory.
func NodeOf(n *corev1.Node) *Node {
	out := &Node{}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeExternalIP && a.Address != "" {
			out.ExternalIPs = append(out.ExternalIPs, a.Address)
		}
	}
	return out
}
