package authzview

import "fairlead.dev/pkg/authz"

// providers fills in what providers of CUSTOM policies answer.
func (m *Mesh) providers(out *Result, set *authz.Set, req *authz.Request, said Request) {
	alike := m.answers(set, req.TCP)
	for _, p := range set.Custom {
		answer, known := alike[p.Name]
		switch {
		case !known:
			answer = said.Answers[p.Name]
		case answer == authz.Refuses:
			out.note("MeshConfig has no extension provider %q for authorization: what its rules match is denied", p.Name)
		default:
			out.note("provider %s is for HTTP and is not asked about connections", p.Name)
		}
		req.Answers[p.Name] = answer
	}
}

// answers are those of providers that answer every request alike: one that is not there is never asked and refuses, and
// one for HTTP is not asked about connections.
func (m *Mesh) answers(set *authz.Set, tcp bool) map[string]authz.Answer {
	out := map[string]authz.Answer{}
	for _, p := range set.Custom {
		switch kind := m.provider(p.Name); {
		case m.SettingsKnown && kind == "":
			out[p.Name] = authz.Refuses
		case tcp && kind == "HTTP":
			out[p.Name] = authz.Allows
		}
	}
	return out
}

// provider is the kind of an authorization provider, "HTTP" or "gRPC"; "" if there is none.
func (m *Mesh) provider(name string) string {
	for _, p := range m.Settings.GetExtensionProviders() {
		switch {
		case p.GetName() != name:
		case p.GetEnvoyExtAuthzHttp() != nil:
			return "HTTP"
		case p.GetEnvoyExtAuthzGrpc() != nil:
			return "gRPC"
		}
	}
	return ""
}
