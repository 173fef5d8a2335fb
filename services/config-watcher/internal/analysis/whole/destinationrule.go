package whole

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/analysis/running"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// checkServerVerification finds TLS settings that verify no server.
func checkServerVerification(r *run) {
	for o, rule := range bodies[*networking.DestinationRule](r, "DestinationRule") {
		for _, p := range running.TLSParts(rule) {
			mode := p.TLS.GetMode()
			if p.TLS == nil || mode != networking.ClientTLSSettings_SIMPLE && mode != networking.ClientTLSSettings_MUTUAL ||
				p.TLS.GetCaCertificates() != "" || p.TLS.GetCredentialName() != "" || p.TLS.GetInsecureSkipVerify().GetValue() {
				continue
			}
			code, what := finding.ServerNotVerified, "host "+rule.GetHost()
			if p.Port != 0 {
				code, what = finding.ServerNotVerifiedAtPort, fmt.Sprintf("host %s at port %d", rule.GetHost(), p.Port)
			}
			r.report(o, code, p.Field, mode.String(), "names no certificates of authorities, with which the server of "+what+" would be verified",
				"set caCertificates or credentialName; `system` stands for those of the operating system")
		}
	}
}

// checkSubsets finds subsets that select no workload of their host.
func checkSubsets(r *run) {
	hosts := r.hosts()
	for o, rule := range bodies[*networking.DestinationRule](r, "DestinationRule") {
		owners := hosts[normalise.Host(rule.GetHost(), o.Key.Namespace, r.cfg.Domain)]
		for i, s := range rule.GetSubsets() {
			if len(s.GetLabels()) == 0 || len(owners) == 0 {
				continue
			}
			selectable, found := false, false
			for _, owner := range owners {
				sel := selectorOf(owner)
				if len(sel) == 0 {
					continue
				}
				selectable = true
				for _, w := range r.selected(owner.Key.Namespace, sel) {
					found = found || object.HasLabels(w.labels, s.GetLabels())
				}
			}
			if selectable && !found {
				r.report(o, finding.SubsetSelectsNothing, fmt.Sprintf("spec.subsets[%d].labels", i), object.LabelText(s.GetLabels()),
					"no workload of the host has these labels: requests to the subset are answered 503",
					"start the workload, or write the labels that it has")
			}
		}
	}
}

// checkMutualTLS finds DestinationRules that speak to servers otherwise than the servers' PeerAuthentications ask for.
func checkMutualTLS(r *run) {
	hosts := r.hosts()
	policies := r.peerPolicies()
	for o, rule := range bodies[*networking.DestinationRule](r, "DestinationRule") {
		host := normalise.Host(rule.GetHost(), o.Key.Namespace, r.cfg.Domain)
		owners := hosts[host]
		if strings.HasPrefix(host, "*") || len(owners) == 0 {
			continue
		}
		for _, p := range running.TLSParts(rule) {
			if p.TLS == nil {
				continue
			}
			for _, owner := range owners {
				if reason := r.mismatch(policies, owner, p); reason != "" {
					r.report(o, finding.MutualTLSMismatch, p.Field, p.TLS.GetMode().String(), reason,
						"use ISTIO_MUTUAL, or leave tls out: proxies then choose what the server asks for; or change the PeerAuthentication")
					break
				}
			}
		}
	}
}

// mismatch says why the workloads of a Service do not take the connections of a policy part; "" if they do.
func (r *run) mismatch(policies peerPolicies, owner *Object, p running.TLSPart) string {
	mutual := p.TLS.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL
	plain := p.TLS.GetMode() == networking.ClientTLSSettings_DISABLE
	if !mutual && !plain || len(selectorOf(owner)) == 0 {
		return ""
	}
	for _, w := range r.selected(owner.Key.Namespace, selectorOf(owner)) {
		if !object.HasLabels(w.labels, p.Subset) {
			continue
		}
		if w.spec == nil {
			continue
		}
		if !r.inMesh(w) && !r.injected(w) {
			if mutual {
				return fmt.Sprintf("%s %s/%s has no sidecar that would take mutual TLS", w.Key.Kind, w.Key.Namespace, w.Key.Name)
			}
			continue
		}
		for _, port := range r.targets(owner, w, p.Port) {
			mode, by := policies.mode(w, port)
			switch {
			case plain && mode == "STRICT":
				return fmt.Sprintf("%s asks for mutual TLS at %s %s/%s: its proxy refuses plain text", by, w.Key.Kind, w.Key.Namespace, w.Key.Name)
			case mutual && mode == "DISABLE":
				return fmt.Sprintf("%s turns mutual TLS off at %s %s/%s: its proxy takes the handshake for plain text", by, w.Key.Kind, w.Key.Namespace,
					w.Key.Name)
			}
		}
	}
	return ""
}
