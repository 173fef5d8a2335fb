package whole

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"istio.io/api/annotation"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/authz"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	validate "fairlead.dev/services/config-watcher/internal/validate/networking"
)

// checkSources finds namespaces in the sources of AuthorizationPolicies that are not there.
func checkSources(r *run) {
	for o, p := range bodies[*security.AuthorizationPolicy](r, "AuthorizationPolicy") {
		for at, rule := range manifest.Items("spec.rules", p.GetRules()) {
			for at, from := range manifest.Items(at+".from", rule.GetFrom()) {
				s := from.GetSource()
				r.missingNamespaces(o, at+".source.namespaces", s.GetNamespaces())
				r.missingNamespaces(o, at+".source.notNamespaces", s.GetNotNamespaces())
			}
		}
	}
}

func (r *run) missingNamespaces(o *Object, at string, list []string) {
	for i, ns := range list {
		if !r.hasNamespace(ns) {
			r.report(o, finding.SourceNamespaceNotFound, manifest.Index(at, i), ns, "there is no such namespace: no caller is of it",
				"create it, or correct the name")
		}
	}
}

// hasNamespace reports whether there is a namespace of this name, which may begin or end with a wildcard.
func (r *run) hasNamespace(name string) bool {
	if !strings.Contains(name, "*") {
		return r.namespaces[name] != nil
	}
	end, suffix := strings.CutPrefix(name, "*")
	begin, prefix := strings.CutSuffix(name, "*")
	for ns := range maps.Keys(r.namespaces) {
		if suffix && strings.HasSuffix(ns, end) || !suffix && prefix && strings.HasPrefix(ns, begin) {
			return true
		}
	}
	return name == "*"
}

// checkEnforcement finds policies that select workloads which no proxy guards, or whose proxy does not see every port
// or cannot ask about it, and RequestAuthentications of servers that verify no token.
func checkEnforcement(r *run) {
	for _, kind := range []string{"AuthorizationPolicy", "RequestAuthentication"} {
		for _, o := range r.kind(kind) {
			field, selector := policySelector(o)
			if len(selector) == 0 {
				continue
			}
			custom := r.askedOfHTTP(o)
			var open, passed, unasked, proxyless []string
			for _, w := range r.selected(r.reach(o), selector) {
				unasked = append(unasked, r.unaskedPorts(w, custom)...)
				switch {
				case kind == "RequestAuthentication" && w.proxyless():
					proxyless = append(proxyless, w.String())
				case !r.inMesh(w):
					open = append(open, w.String())
				case w.annotations[annotation.SidecarTrafficExcludeInboundPorts.Name] != "":
					passed = append(passed, w.String())
				}
			}
			report := func(code finding.Code, workloads []string, reason, remedy string) {
				if len(workloads) > 0 {
					r.report(o, code, field, object.LabelText(selector), fmt.Sprintf(reason, sentence(workloads)), remedy)
				}
			}
			report(finding.PolicyNotEnforced, open, "%s has no proxy that could enforce it",
				"have a sidecar injected, or keep the workload out of reach by other means")
			report(finding.PolicyNotEnforced, passed, "requests to ports of %s pass the proxy by, as "+
				annotation.SidecarTrafficExcludeInboundPorts.Name+" says", "remove the annotation")
			report(finding.PolicyNotEnforced, unasked, "connections to %s pass without a question: the provider is one for HTTP",
				"use a provider of kind envoyExtAuthzGrpc, or deny the connections by another policy")
			report(finding.TokensNotVerified, proxyless, "%s speaks xDS itself and verifies no tokens: it denies every request with one",
				"give it a sidecar, or have it verify tokens itself and select other workloads")
		}
	}
}

// askedOfHTTP are the rules of an AuthorizationPolicy by which a provider for HTTP is asked; nil if there are none.
func (r *run) askedOfHTTP(o *Object) []*authz.Rule {
	p, ok := o.Body.(*security.AuthorizationPolicy)
	if !ok || p.GetAction() != security.AuthorizationPolicy_CUSTOM || !slices.ContainsFunc(r.settings.GetExtensionProviders(),
		func(e *mesh.MeshConfig_ExtensionProvider) bool {
			return e.GetName() == p.GetProvider().GetName() && e.GetEnvoyExtAuthzHttp() != nil
		}) {
		return nil
	}
	set := authz.Compile([]authz.Policy{{Spec: p, DryRun: authz.DryRun(o.Annotations)}}, authz.Options{})
	return set.Custom[0].Enforced.List
}

// unaskedPorts lists the TCP ports of a workload that rules for a provider for HTTP are about.
func (r *run) unaskedPorts(w *workload, rules []*authz.Rule) []string {
	if len(rules) == 0 || w.spec == nil {
		return nil
	}
	var out []string
	for _, s := range r.servicesOf(w) {
		for _, p := range s.Body.(*corev1.Service).Spec.Ports {
			protocol := portProtocol(p)
			if contract.IsHTTP(protocol) || protocol == configv1.Protocol_PROTOCOL_UNSPECIFIED || protocol == configv1.Protocol_PROTOCOL_UDP {
				continue
			}
			for _, port := range r.targets(s, w, uint32(p.Port)) {
				if slices.ContainsFunc(rules, func(rule *authz.Rule) bool { return aboutPort(rule.HTTP, port) }) {
					out = append(out, fmt.Sprintf("port %d of %s", port, w))
				}
			}
		}
	}
	return out
}

// aboutPort reports whether a rule may match at a port without any field of HTTP.
func aboutPort(f *authz.Form, port uint32) bool {
	may := func(c authz.Clause) bool {
		return !slices.ContainsFunc(c, func(m authz.Match) bool {
			named := slices.ContainsFunc(m.Values, func(v authz.Value) bool { return v.Port == port })
			return m.Field.HTTPOnly() || m.Field == authz.Port && named == m.Not
		})
	}
	return may(f.When) && (len(f.To) == 0 || slices.ContainsFunc(f.To, may)) && (len(f.From) == 0 || slices.ContainsFunc(f.From, may))
}

// checkClaimRoutes finds routes by claims at gateways whose proxies verify no token.
func checkClaimRoutes(r *run) {
	for o, vs := range bodies[*networking.VirtualService](r, "VirtualService") {
		field := claimOf(vs)
		if field == "" {
			continue
		}
		for _, name := range vs.GetGateways() {
			g, body := r.gatewayFor(o, name)
			if body == nil {
				continue
			}
			i := slices.IndexFunc(r.selected("", body.GetSelector()), func(w *workload) bool { return !r.verifiesTokens(w) })
			if i >= 0 {
				r.report(o, finding.ClaimRouteWithoutTokens, field, nil,
					fmt.Sprintf("no RequestAuthentication is for %s of %s: no request has claims there", r.selected("", body.GetSelector())[i], g),
					"create one for the gateway's workloads")
			}
		}
	}
}

// claimOf returns the field of the first match on a claim; "" if there is none.
func claimOf(vs *networking.VirtualService) string {
	for at, route := range manifest.Items("spec.http", vs.GetHttp()) {
		for at, m := range manifest.Items(at+".match", route.GetMatch()) {
			for _, name := range slices.Sorted(maps.Keys(m.GetHeaders())) {
				if validate.IsClaim(name) {
					return manifest.Field(at+".headers", name)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(m.GetWithoutHeaders())) {
				if validate.IsClaim(name) {
					return manifest.Field(at+".withoutHeaders", name)
				}
			}
		}
	}
	return ""
}

// verifiesTokens reports whether a RequestAuthentication is for a workload.
func (r *run) verifiesTokens(w *workload) bool {
	for _, o := range r.kind("RequestAuthentication") {
		if reach := r.reach(o); reach != "" && reach != w.Key.Namespace {
			continue
		}
		if _, selector := policySelector(o); object.HasLabels(w.labels, selector) {
			return true
		}
	}
	return false
}
