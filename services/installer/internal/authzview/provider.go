package authzview

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
)

// providers fills in what providers of CUSTOM policies answer.
func (m *Mesh) providers(out *Result, set *authz.Set, req *authz.Request, said Request) {
	for _, p := range set.Custom {
		answer, why := m.standing(p.Name, req.TCP)
		if answer == authz.Unknown {
			answer = said.Answers[p.Name]
			if service, _ := asked(m.provider(p.Name)); service != "" && m.serviceOf(service) == nil {
				out.note("service %q, which extension provider %q names, is in none of the files, or in those of several namespaces: a mesh "+
					"without it denies what its rules match", service, p.Name)
			}
		}
		if why != "" {
			out.note("%s", why)
		}
		req.Answers[p.Name] = answer
	}
}

// answers are those of providers that answer every request alike.
func (m *Mesh) answers(set *authz.Set, tcp bool) map[string]authz.Answer {
	out := map[string]authz.Answer{}
	for _, p := range set.Custom {
		if answer, _ := m.standing(p.Name, tcp); answer != authz.Unknown {
			out[p.Name] = answer
		}
	}
	return out
}

// standing is the answer of a provider that answers every request alike, and why it does: one that cannot be asked
// refuses, one for HTTP is not asked about connections, and asking at a port that there is not fails.
func (m *Mesh) standing(name string, tcp bool) (_ authz.Answer, why string) {
	p := m.provider(name)
	if m.SettingsKnown {
		if err := m.unasked(p); err != nil {
			return authz.Refuses, fmt.Sprintf("extension provider %q cannot be asked, and what its rules match is denied: %v", name, err)
		}
	}
	if tcp && p.GetEnvoyExtAuthzHttp() != nil {
		return authz.Allows, fmt.Sprintf("provider %s is for HTTP and is not asked about connections", name)
	}
	service, port := asked(p)
	found := m.serviceOf(service)
	if found == nil || slices.Contains(found.ports, port) {
		return authz.Unknown, ""
	}
	why = fmt.Sprintf("service %q has no port %d, at which extension provider %q is asked: ", service, port, name)
	if p.GetEnvoyExtAuthzHttp().GetFailOpen() || p.GetEnvoyExtAuthzGrpc().GetFailOpen() {
		return authz.Allows, why + "that fails, and failOpen allows what its rules match"
	}
	return authz.Refuses, why + "that fails, and what its rules match is denied"
}

// unasked says why a provider cannot be asked; nil if it can.
func (m *Mesh) unasked(p *mesh.MeshConfig_ExtensionProvider) error {
	if p == nil {
		return errors.New("MeshConfig has none of that name")
	}
	if err := authz.CheckProvider(p); err != nil {
		return err
	}
	if service, _ := asked(p); m.servicesKnown && m.serviceOf(service) == nil {
		return fmt.Errorf("there is no service %q, or several namespaces have one: name it NAMESPACE/HOST", service)
	}
	return nil
}

// checkAnswers refuses an answer of a provider that no policy asks.
func (m *Mesh) checkAnswers(answers map[string]authz.Answer) error {
	var names []string
	for _, p := range m.Policies {
		if name := p.Spec.GetProvider().GetName(); name != "" && p.Spec.GetAction() == security.AuthorizationPolicy_CUSTOM {
			names = append(names, name)
		}
	}
	for _, name := range sortedKeys(answers) {
		if !slices.Contains(names, name) {
			return process.Usagef("--answer: no AuthorizationPolicy has provider %q%s", name, nearest.Hint(name, names))
		}
	}
	return nil
}

// asked are the service that a provider names, as HOST or NAMESPACE/HOST, and its port.
func asked(p *mesh.MeshConfig_ExtensionProvider) (service string, port uint32) {
	if g := p.GetEnvoyExtAuthzGrpc(); g != nil {
		return g.GetService(), g.GetPort()
	}
	return p.GetEnvoyExtAuthzHttp().GetService(), p.GetEnvoyExtAuthzHttp().GetPort()
}

// host is a host of a Service or of a ServiceEntry.
type host struct {
	name, namespace string
	kubernetes      bool
	ports           []uint32
}

// serviceOf finds what a provider asks, as xds-server does: a Service goes before a ServiceEntry, and one of several
// namespaces is none.
func (m *Mesh) serviceOf(service string) *host {
	namespace, name, ok := strings.Cut(service, "/")
	if !ok {
		namespace, name = "", service
	}
	var kubernetes, all []*host
	for i, h := range m.hosts {
		// The cluster's domain is not known.
		named := h.name == name || h.kubernetes && strings.HasPrefix(name, strings.TrimSuffix(h.name, m.describe.Domain))
		if !named || namespace != "" && h.namespace != namespace {
			continue
		}
		all = append(all, &m.hosts[i])
		if h.kubernetes {
			kubernetes = append(kubernetes, &m.hosts[i])
		}
	}
	return cmp.Or(onlyOne(kubernetes), onlyOne(all))
}

// onlyOne returns the first of hosts if all are of one namespace, else nil.
func onlyOne(list []*host) *host {
	if len(list) == 0 || slices.ContainsFunc(list, func(h *host) bool { return h.namespace != list[0].namespace }) {
		return nil
	}
	return list[0]
}

// provider is the extension provider of a name; nil if there is none.
func (m *Mesh) provider(name string) *mesh.MeshConfig_ExtensionProvider {
	all := m.Settings.GetExtensionProviders()
	if i := slices.IndexFunc(all, func(p *mesh.MeshConfig_ExtensionProvider) bool { return p.GetName() == name }); i >= 0 {
		return all[i]
	}
	return nil
}
