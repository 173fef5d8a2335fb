package mesh

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/credential"
)

// WithCredentials returns the same revision with other credentials. Credentials are not part of a revision: Held does
// not name them, and Apply does not change them.
func (s *Snapshot) WithCredentials(set *credential.Set) *Snapshot {
	with := *s
	with.credentials = set
	return &with
}

// Credentials returns the credentials that are known; nil for none.
func (s *Snapshot) Credentials() *credential.Set { return s.credentials }

// CredentialTopic names the answer of Credentials().Get.
func CredentialTopic(ref credential.Ref) Topic {
	if ref.Namespace != "" {
		return Topic{SubjectCredential, ref.Identity, ref.Namespace + "/" + ref.Name}
	}
	return Topic{SubjectCredential, ref.Identity, ref.Name}
}

// Credential returns the reference that a topic of SubjectCredential is about.
func (t Topic) Credential() credential.Ref {
	if namespace, name, ok := strings.Cut(t.B, "/"); ok {
		return credential.Ref{Identity: t.A, Namespace: namespace, Name: name}
	}
	return credential.Ref{Identity: t.A, Name: t.B}
}

// UsesCredential reports whether a DestinationRule without a workload selector, for clients in the namespace, has the
// credentialName, which is given without its scheme.
func (s *Snapshot) UsesCredential(to, name string) bool {
	return slices.ContainsFunc([]string{"*", to}, func(t string) bool {
		_, ok := s.credentialUses.get(join(t, name))
		return ok
	})
}

// CredentialUseTopics names the answers of UsesCredential.
func CredentialUseTopics(to, name string) []Topic {
	return []Topic{{SubjectCredentialUse, "*", name}, {SubjectCredentialUse, to, name}}
}

// SelectsCredential reports whether a DestinationRule in the namespace has a workload selector that matches the labels,
// and the credentialName, which is given without its scheme; "" is any.
func (s *Snapshot) SelectsCredential(namespace string, labels map[string]string, name string) bool {
	return slices.ContainsFunc(s.credentialSelectors.list(namespace+sep), func(rule *DestinationRule) bool {
		return Matches(rule.Spec.GetWorkloadSelector().GetMatchLabels(), labels) &&
			(name == "" || slices.Contains(credentialNames(rule.Spec), name))
	})
}

// SelectsCredentialTopic names the answers of SelectsCredential.
func SelectsCredentialTopic(namespace string) Topic {
	return Topic{SubjectCredentialUse, namespace, ""}
}

func (w *writer) indexCredentialUses(v *DestinationRule, add bool) {
	names := credentialNames(v.Spec)
	if len(names) > 0 && len(v.Spec.GetWorkloadSelector().GetMatchLabels()) > 0 {
		put(w, &w.next.credentialSelectors, add, join(v.Key.Namespace, v.Key.Name), v)
		w.touch(SubjectCredentialUse, v.Key.Namespace, "")
		return
	}
	for _, name := range names {
		for _, to := range v.ExportedTo {
			w.count(&w.next.credentialUses, join(to, name), add)
			w.touch(SubjectCredentialUse, to, name)
		}
	}
}

// credentialNames lists the credentialNames of a rule, each once, without a scheme: "shop-tls" or
// "<namespace>/shop-tls".
func credentialNames(rule *networking.DestinationRule) []string {
	var found []string
	for _, policy := range policies(rule) {
		name := strings.TrimPrefix(policy.GetTls().GetCredentialName(), "kubernetes://")
		found = append(found, strings.TrimPrefix(name, "kubernetes-gateway://"))
	}
	slices.Sort(found)
	return slices.DeleteFunc(slices.Compact(found), func(name string) bool { return name == "" })
}

// WithSignedBundle returns the same revision with another trust bundle, which the ca has signed. Like credentials it is
// not part of a revision. The bundle is shared and must not be changed.
func (s *Snapshot) WithSignedBundle(b *cav1.SignedBundle) *Snapshot {
	with := *s
	with.signedBundle = b
	return &with
}

// SignedBundle returns the bundle, nil before the ca has sent one.
func (s *Snapshot) SignedBundle() *cav1.SignedBundle { return s.signedBundle }

// SignedBundleTopic names the answer of SignedBundle.
func SignedBundleTopic() Topic { return Topic{Subject: SubjectSignedBundle} }

// IdentityBans lists the identities that administrators have shut out of the mesh.
func (s *Snapshot) IdentityBans() (bans []*configv1.IdentityBan) {
	for _, e := range s.kinds[KindIdentityBan].list("") {
		bans = append(bans, e.value.(*configv1.IdentityBan))
	}
	return bans
}
