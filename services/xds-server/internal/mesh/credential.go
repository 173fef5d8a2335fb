package mesh

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/credential"
)

// WithCredentials returns the same revision beside other credentials. They are no part of the revision: Held does not name them, and they
// play no part in Apply.
func (s *Snapshot) WithCredentials(set *credential.Set) *Snapshot {
	with := *s
	with.credentials = set
	return &with
}

// Credentials returns what is known of credentials.
func (s *Snapshot) Credentials() *credential.Set { return s.credentials }

// CredentialTopic names the answer of Credentials().Get.
func CredentialTopic(ref credential.Ref) Topic {
	return Topic{SubjectCredential, ref.Identity, ref.Name}
}

// Credential returns the reference that a topic of SubjectCredential is about.
func (t Topic) Credential() credential.Ref { return credential.Ref{Identity: t.A, Name: t.B} }

// UsesCredential reports whether a DestinationRule for clients in the namespace that selects nobody in particular has
// the credentialName, which is given without its scheme.
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

// SelectsCredential reports whether a DestinationRule in the namespace has a workload selector that matches the labels, and the credentialName,
// which is given without its scheme; "" is any.
func (s *Snapshot) SelectsCredential(namespace string, labels map[string]string, name string) bool {
	found := false
	s.credentialSelectors.scan(namespace+sep, func(_ string, rule *DestinationRule) bool {
		found = Matches(rule.Spec.GetWorkloadSelector().GetMatchLabels(), labels) && (name == "" || slices.Contains(credentialNames(rule.Spec), name))
		return !found
	})
	return found
}

// SelectsCredentialTopic names the answers of SelectsCredential.
func SelectsCredentialTopic(namespace string) Topic {
	return Topic{SubjectCredentialUse, namespace, ""}
}

func (w *writer) postCredentialUses(v *DestinationRule, add bool) {
	names := credentialNames(v.Spec)
	if len(names) > 0 && len(v.Spec.GetWorkloadSelector().GetMatchLabels()) > 0 {
		put(w.state.credentialSelectors, add, join(v.Key.Namespace, v.Key.Name), v)
		w.touch(SubjectCredentialUse, v.Key.Namespace, "")
		return
	}
	for _, name := range names {
		for _, to := range v.ExportedTo {
			w.count(w.state.credentialUses, join(to, name), add)
			w.touch(SubjectCredentialUse, to, name)
		}
	}
}

// credentialNames lists those of a rule, each once, without the scheme that they may have: "shop-tls" or "<namespace>/shop-tls".
func credentialNames(rule *networking.DestinationRule) []string {
	var found []string
	of := func(p *networking.TrafficPolicy) {
		found = append(found, p.GetTls().GetCredentialName())
		for _, port := range p.GetPortLevelSettings() {
			found = append(found, port.GetTls().GetCredentialName())
		}
	}
	of(rule.GetTrafficPolicy())
	for _, subset := range rule.GetSubsets() {
		of(subset.GetTrafficPolicy())
	}
	for i, name := range found {
		found[i] = strings.TrimPrefix(strings.TrimPrefix(name, "kubernetes://"), "kubernetes-gateway://")
	}
	slices.Sort(found)
	return slices.DeleteFunc(slices.Compact(found), func(name string) bool { return name == "" })
}
