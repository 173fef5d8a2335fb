package mesh

import (
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
)

// PolicySpec is what an AuthorizationPolicy and a RequestAuthentication have in common: what selects the workloads.
type PolicySpec interface {
	proto.Message
	authz.Attached
}

func (w *writer) indexAuthorizationPolicy(v *AuthorizationPolicy, add bool) {
	put(w, &w.next.authorizationPolicies, add, join(v.Key.Namespace, age(v.Created), v.Key.Name), v)
	indexPolicy(w, SubjectAuthorizationPolicies, v, add)
}

func (w *writer) indexRequestAuthentication(v *RequestAuthentication, add bool) {
	put(w, &w.next.requestAuthentications, add, join(v.Key.Namespace, age(v.Created), v.Key.Name), v)
	indexPolicy(w, SubjectRequestAuthentications, v, add)
}

func indexPolicy[T PolicySpec](w *writer, subject Subject, v *Config[T], add bool) {
	namespace := v.Key.Namespace
	w.touch(subject, namespace, "")
	w.countPrivate([]string{namespace}, add, Topic{subject, "*", ""})
	w.countRelevantLabels(namespace, policySelector(v.Spec), add)
	// If the namespace is the root namespace, the labels of all workloads count. Which it is, the settings say.
	w.countRelevantLabels(rootSelectors(namespace), policySelector(v.Spec), add)
}

// rootSelectors stands in the index of relevant labels for what policies of a namespace test if it is the root
// namespace.
func rootSelectors(namespace string) string { return "root:" + namespace }

// policySelector has the label keys that decide which workloads a policy is for.
func policySelector(spec PolicySpec) map[string]string {
	if len(authz.Targets(spec)) > 0 {
		return map[string]string{gatewayLabel: ""}
	}
	return spec.GetSelector().GetMatchLabels()
}

// IsSelective reports whether a policy is for some workloads of its namespace only; of the root namespace: of the mesh.
func IsSelective[T PolicySpec](v *Config[T]) bool { return len(policySelector(v.Spec)) > 0 }

// AuthorizationPolicies lists those of a namespace, oldest first.
func (s *Snapshot) AuthorizationPolicies(namespace string) []*AuthorizationPolicy {
	return s.authorizationPolicies.list(namespace + sep)
}

// RequestAuthentications lists those of a namespace, oldest first.
func (s *Snapshot) RequestAuthentications(namespace string) []*RequestAuthentication {
	return s.requestAuthentications.list(namespace + sep)
}

// PoliciesTopics names the answer of AuthorizationPolicies or RequestAuthentications, which the subject says, for a
// client's own namespace.
func PoliciesTopics(subject Subject, namespace string) []Topic {
	return []Topic{{subject, "*", ""}, {subject, namespace, ""}}
}

// RootPoliciesTopic names the answer for the root namespace, which is the same for all clients.
func RootPoliciesTopic(subject Subject, namespace string) Topic { return Topic{subject, namespace, ""} }

type (
	// AuthorizationPolicy of security.istio.io.
	AuthorizationPolicy = Config[*security.AuthorizationPolicy]
	// RequestAuthentication of security.istio.io.
	RequestAuthentication = Config[*security.RequestAuthentication]
)

func (w *writer) indexPeerAuthentication(v *PeerAuthentication, add bool) {
	put(w, &w.next.peerAuthentications, add, join(v.Key.Namespace, age(v.Created), v.Key.Name), v)
	w.touch(SubjectPeerAuthentications, v.Key.Namespace, "")
	w.countRelevantLabels(v.Key.Namespace, v.Spec.GetSelector().GetMatchLabels(), add)
}

// PeerAuthentications lists the PeerAuthentications of a namespace, oldest first.
func (s *Snapshot) PeerAuthentications(namespace string) []*PeerAuthentication {
	return s.peerAuthentications.list(namespace + sep)
}

// PeerAuthenticationsTopic names the answer of PeerAuthentications.
func PeerAuthenticationsTopic(namespace string) Topic {
	return Topic{SubjectPeerAuthentications, namespace, ""}
}
