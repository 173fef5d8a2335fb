package running

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/normalise"
)

// checkCredentials finds credentialNames in a Gateway's servers for which there is no usable Secret in the namespace of
// the gateway's workloads. Without workloads there is no namespace to look in; checkSelector reports that.
func checkCredentials(r *reader) {
	g := r.object.Body.(*networking.Gateway)
	for i, s := range g.GetServers() {
		tls := s.GetTls()
		switch tls.GetMode() {
		case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH, networking.ServerTLSSettings_ISTIO_MUTUAL:
			continue // these use no Secret
		}
		field := fmt.Sprintf("spec.servers[%d].tls.", i)
		for _, ns := range r.selected(g.GetSelector()) {
			names := tls.GetCredentialNames()
			first := field + "credentialNames[0]"
			for j, name := range names {
				r.checkCredential(fmt.Sprintf("%scredentialNames[%d]", field, j), name, ns, needsKey)
			}
			if name := tls.GetCredentialName(); name != "" {
				names, first = []string{name}, field+"credentialName"
				r.checkCredential(first, name, ns, needsKey)
			}
			switch authority := tls.GetCaCertCredentialName(); {
			case authority != "":
				r.checkCredential(field+"caCertCredentialName", authority, ns, needsAuthority)
			case len(names) > 0 && (tls.GetMode() == networking.ServerTLSSettings_MUTUAL ||
				tls.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL):
				r.checkCredential(first, names[0], ns, needsAuthority)
			}
		}
	}
}

// checkRuleCredentials finds credentialNames in a DestinationRule for which there is no usable Secret: in the rule's
// own namespace if it has a workloadSelector, otherwise in the namespaces of gateways, because sidecars do not use the
// credential then.
func checkRuleCredentials(r *reader) {
	rule := r.object.Body.(*networking.DestinationRule)
	check := func(field string, tls *networking.ClientTLSSettings) {
		if tls.GetCredentialName() == "" {
			return
		}
		namespaces := []string{r.namespace()}
		if len(rule.GetWorkloadSelector().GetMatchLabels()) == 0 {
			namespaces = nil
			for _, ns := range r.gatewayNamespaces() {
				if normalise.VisibleTo(r.exported(r.object), ns) {
					namespaces = append(namespaces, ns)
				}
			}
		}
		need := needsAny
		if tls.GetMode() == networking.ClientTLSSettings_MUTUAL {
			need = needsKey
		}
		for i, ns := range namespaces {
			// One gateway that has it is enough: the others may send nothing to the host.
			if code, _ := r.credential(tls.GetCredentialName(), ns, need); code == "" {
				return
			}
			if i == len(namespaces)-1 {
				r.checkCredential(field+".credentialName", tls.GetCredentialName(), namespaces[0], need)
			}
		}
	}
	for _, p := range TLSParts(rule) {
		check(p.Field, p.TLS)
	}
}

// TLSPart is a part of a DestinationRule that may have TLS settings.
type TLSPart struct {
	Field string
	TLS   *networking.ClientTLSSettings
	// Port is 0 for all ports.
	Port uint32
	// Subset is the labels of the subset; nil for all workloads.
	Subset map[string]string
}

// TLSParts lists the parts of a DestinationRule.
func TLSParts(rule *networking.DestinationRule) []TLSPart {
	var out []TLSPart
	add := func(field string, p *networking.TrafficPolicy, subset map[string]string) {
		out = append(out, TLSPart{field + ".tls", p.GetTls(), 0, subset})
		for at, port := range manifest.Items(field+".portLevelSettings", p.GetPortLevelSettings()) {
			out = append(out, TLSPart{at + ".tls", port.GetTls(), port.GetPort().GetNumber(), subset})
		}
	}
	add("spec.trafficPolicy", rule.GetTrafficPolicy(), nil)
	for at, s := range manifest.Items("spec.subsets", rule.GetSubsets()) {
		add(at+".trafficPolicy", s.GetTrafficPolicy(), s.GetLabels())
	}
	return out
}

// need is the part of a credential that is needed.
type need int

const (
	needsKey need = iota
	needsAuthority
	needsAny
)

func (r *reader) checkCredential(field, name, ns string, what need) {
	code, reason := r.credential(name, ns, what)
	if code == "" {
		return
	}
	remedy := "create it, or correct the name"
	if code == finding.CredentialUnusable {
		remedy = "give it the entries tls.crt and tls.key"
		if what != needsKey {
			remedy = "give it the entry ca.crt"
		}
	}
	r.report(code, field, name, reason, remedy)
}

// credential reports whether a credentialName names a usable Secret for workloads of a namespace; an empty code means
// that it does.
func (r *reader) credential(name, ns string, what need) (code finding.Code, reason string) {
	at := credential.WithoutScheme(name)
	// refused by validation, or not the name of a Secret
	if at == "" {
		return "", "" // refused elsewhere, or none of a Secret
	}
	if of, rest, found := strings.Cut(at, "/"); found {
		if of != ns {
			return finding.CredentialNotFound, fmt.Sprintf("Secret %s is not served to gateways of namespace %s", at, ns)
		}
		at = rest
	}
	unknown := false
	look := func(name string) secret {
		r.record(subjectSecret, ns, name)
		s := r.mesh.secrets[ref{ns, name}]
		if at := (ref{ns, name}); !s.there && r.mesh.unknown != nil && !r.mesh.answers[at] {
			unknown, r.mesh.answers[at] = true, false
		}
		s.authority = s.authority || r.mesh.configMaps[ref{ns, name}]
		return s
	}
	own := look(at)
	if own.key && what != needsAuthority {
		return "", ""
	}
	if what == needsKey {
		if unknown {
			return "", ""
		}
		if !own.there {
			return finding.CredentialNotFound, fmt.Sprintf("there is no Secret %s/%s", ns, at)
		}
		return finding.CredentialUnusable, fmt.Sprintf("Secret %s/%s has no usable certificate and key", ns, at)
	}
	base := strings.TrimSuffix(at, credential.AuthoritySuffix)
	ca, plain := look(base+credential.AuthoritySuffix), look(base)
	if own.authority || ca.authority || plain.authority || unknown {
		return "", ""
	}
	if !own.there && !ca.there && !plain.there {
		return finding.CredentialNotFound, fmt.Sprintf("there is no Secret %s/%s, nor %s", ns, at, base+credential.AuthoritySuffix)
	}
	return finding.CredentialUnusable, fmt.Sprintf("Secret %s/%s has no certificates to verify with, and there is none named %s", ns, at,
		base+credential.AuthoritySuffix)
}
