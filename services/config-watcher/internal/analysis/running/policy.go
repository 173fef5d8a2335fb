package running

import (
	"fmt"
	"slices"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// checkProvider finds AuthorizationPolicies that ask a provider which the mesh configuration does not have, which has a
// field that keeps it from being asked, or whose service or port is not there.
func checkProvider(r *reader) {
	p := r.object.Body.(*security.AuthorizationPolicy)
	if p.Action != security.AuthorizationPolicy_CUSTOM || r.object.Held {
		return
	}
	const field = "spec.provider.name"
	name := p.GetProvider().GetName()
	providers := r.settings().GetExtensionProviders()
	i := slices.IndexFunc(providers, func(e *mesh.MeshConfig_ExtensionProvider) bool { return e.GetName() == name })
	if i < 0 {
		r.report(finding.ProviderNotFound, field, name, "MeshConfig has no such provider in extensionProviders: what the rules match is denied",
			"define the provider, or correct the name")
		return
	}
	if err := authz.CheckProvider(providers[i]); err != nil {
		r.report(finding.ProviderNotFound, field, name, "the provider cannot be asked, and what the rules match is denied: "+err.Error(),
			"correct the provider in MeshConfig's extensionProviders, or name another")
		return
	}
	service, port, failOpen := authorizer(providers[i])
	found, several := r.providerServices(service)
	switch {
	case several:
		r.report(finding.ProviderNotFound, field, name,
			"several namespaces have the provider's service "+service+": what the rules match is denied",
			"write NAMESPACE/HOST for the service in MeshConfig")
	case len(found) == 0:
		r.report(finding.ProviderNotFound, field, name, "the provider's service "+service+" is not there: what the rules match is denied",
			"create the service, or write its full host in MeshConfig")
	case !isAlias(found) && !slices.ContainsFunc(found, func(o *object.Object) bool { return hasPort(o, port) }):
		effect := "denied"
		if failOpen {
			effect = "let through, as its failOpen says"
		}
		r.report(finding.ProviderNotFound, field, name,
			fmt.Sprintf("the provider's service %s has no port %d: nobody is asked, and what the rules match is %s", service, port, effect),
			"add the port to the service, or correct the provider in MeshConfig")
	}
}

// providerServices lists the objects with the service that a provider names by its host or as NAMESPACE/HOST, whoever
// may see it, as xds-server finds it. Several is true if the name does not say which of several is meant: a Kubernetes
// Service is, wherever others have its host.
func (r *reader) providerServices(name string) (found []*object.Object, several bool) {
	namespace, host, qualified := strings.Cut(name, "/")
	if !qualified {
		namespace, host = "", name
	}
	for _, o := range r.services(host) {
		if o.Body == nil || qualified && o.Key.Namespace != namespace {
			continue
		}
		if o.Key.Kind == "Service" {
			return []*object.Object{o}, false
		}
		found = append(found, o)
	}
	return found, slices.ContainsFunc(found, func(o *object.Object) bool { return o.Key.Namespace != found[0].Key.Namespace })
}

func hasPort(o *object.Object, number uint32) bool {
	return slices.ContainsFunc(normalise.PortsOf(o), func(p *configv1.ServicePort) bool { return p.GetNumber() == number })
}

// authorizer is the service and port of a provider of external authorization, and whether it is open without an answer.
func authorizer(p *mesh.MeshConfig_ExtensionProvider) (service string, port uint32, failOpen bool) {
	if h := p.GetEnvoyExtAuthzHttp(); h != nil {
		return h.GetService(), h.GetPort(), h.GetFailOpen()
	}
	g := p.GetEnvoyExtAuthzGrpc()
	return g.GetService(), g.GetPort(), g.GetFailOpen()
}
