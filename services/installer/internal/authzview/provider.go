package authzview

import (
	"errors"
	"slices"

	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/authz"
)

// providers fills in what providers of CUSTOM policies answer.
func (m *Mesh) providers(out *Result, set *authz.Set, req *authz.Request, said Request) {
	alike := m.answers(set, req.TCP)
	for _, p := range set.Custom {
		answer, known := alike[p.Name]
		switch {
		case !known:
			answer = said.Answers[p.Name]
		case answer == authz.Refuses:
			out.note("extension provider %q cannot be asked, and what its rules match is denied: %s", p.Name, m.unasked(p.Name))
		default:
			out.note("provider %s is for HTTP and is not asked about connections", p.Name)
		}
		req.Answers[p.Name] = answer
	}
}

// answers are those of providers that answer every request alike: one that cannot be asked refuses, and one for HTTP is
// not asked about connections.
func (m *Mesh) answers(set *authz.Set, tcp bool) map[string]authz.Answer {
	out := map[string]authz.Answer{}
	for _, p := range set.Custom {
		switch {
		case m.SettingsKnown && m.unasked(p.Name) != nil:
			out[p.Name] = authz.Refuses
		case tcp && m.provider(p.Name).GetEnvoyExtAuthzHttp() != nil:
			out[p.Name] = authz.Allows
		}
	}
	return out
}

// unasked says why a provider cannot be asked; nil if it can.
func (m *Mesh) unasked(name string) error {
	p := m.provider(name)
	if p == nil {
		return errors.New("MeshConfig has none of that name")
	}
	return authz.CheckProvider(p)
}

// provider is the extension provider of a name; nil if there is none.
func (m *Mesh) provider(name string) *mesh.MeshConfig_ExtensionProvider {
	all := m.Settings.GetExtensionProviders()
	if i := slices.IndexFunc(all, func(p *mesh.MeshConfig_ExtensionProvider) bool { return p.GetName() == name }); i >= 0 {
		return all[i]
	}
	return nil
}
