// Package secret builds the secrets that gateways terminate TLS with, and that gateways and sidecars originate TLS with (SDS): the one type whose resources hold keys. They are made for a proxy
// whose identity was verified, and from Secrets of that identity's namespace only.
package secret

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/credential"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/names"
)

// Translator makes secrets. Each is asked for by name; what nobody asks for any more is forgotten.
type Translator struct{}

// TypeURL of the resources.
func (Translator) TypeURL() string { return resource.SecretType }

// Traits of the type: a secret that no proxy subscribes to is dropped at once, with the key in it.
func (Translator) Traits() plan.Traits { return plan.Traits{DropUnused: true} }

// Names is empty: proxies ask by name.
func (Translator) Names(*input.Reader) ([]string, error) { return nil, nil }

// HostNames is empty, like Names.
func (Translator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

// Build makes the secret of a name as names.Credential and names.CredentialAuthority make them. A name may also say the namespace, as long as
// it is the proxy's own: "kubernetes://<namespace>/<name>" or "kubernetes-gateway://<namespace>/<name>".
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	namespace, ref, ok := names.ParseCredential(name)
	if !ok || r.Identity() == "" || !uses(r, name, ref) {
		return nil, nil
	}
	if namespace != "" && namespace != credential.NamespaceOf(r.Identity()) {
		return nil, nil
	}
	c, known := r.Credential(ref)
	switch {
	case !known:
		return nil, plan.ErrPending
	case c == nil:
		return nil, nil
	default:
		return build(name, c), nil
	}
}

// uses reports whether the proxy has a use for the secret: at a gateway, a Gateway that selects it names the
// credential, or a DestinationRule that it sees; at all others, whatever they call themselves, a DestinationRule that
// selects them. What is nobody's business is not handed out, although it is of the proxy's own namespace.
func uses(r *input.Reader, name, ref string) bool {
	named := r.SelectsCredential
	if r.IsGateway() {
		named = func(ref string) bool { return r.UsesCredential(ref) || r.SelectsCredential(ref) }
		if slices.ContainsFunc(r.Gateways(), func(g *mesh.Gateway) bool { return serves(g, name) }) {
			return true
		}
	}
	// The proxy's own namespace may be said, or not.
	for _, ref := range []string{ref, credential.NamespaceOf(r.Identity()) + "/" + ref} {
		if named(ref) || named(strings.TrimSuffix(ref, names.AuthoritySuffix)) {
			return true
		}
	}
	return false
}

// serves reports whether a server of the Gateway has the secret's credential.
func serves(g *mesh.Gateway, name string) bool {
	for _, server := range g.Spec.GetServers() {
		tls := server.GetTls()
		for _, named := range append([]string{tls.GetCredentialName(), tls.GetCaCertCredentialName()}, tls.GetCredentialNames()...) {
			if named != "" && (names.Credential(named) == name || names.CredentialAuthority(named) == name) {
				return true
			}
		}
	}
	return false
}

// build returns nil for a credential that has no part of what the name stands for.
func build(name string, c *credential.Credential) proto.Message {
	out := &tlsv3.Secret{Name: name}
	switch authority := names.IsCredentialAuthority(name); {
	case !authority && len(c.Chain()) > 0 && len(c.Key()) > 0:
		out.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(c.Chain()), PrivateKey: inline(c.Key()),
		}}
	case authority && len(c.Authorities()) > 0:
		validation := &tlsv3.CertificateValidationContext{TrustedCa: inline(c.Authorities())}
		if len(c.Revoked()) > 0 {
			validation.Crl = inline(c.Revoked())
		}
		out.Type = &tlsv3.Secret_ValidationContext{ValidationContext: validation}
	default:
		return nil
	}
	return out
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}
