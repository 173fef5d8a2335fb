// Package secret builds the SDS secrets with which gateways terminate TLS, and gateways and sidecars originate it. It
// is the only type whose resources contain private keys. It builds them only for proxies with a verified identity, from
// Secrets of that identity's namespace, and from those of other namespaces that a listener of the Gateway API names.
package secret

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/credential"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// Translator builds secrets (SDS). Proxies request each by name; package plan forgets secrets that no proxy requests
// any more.
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return resource.SecretType }

// Traits of the type: a secret that no proxy subscribes to is dropped at once, with the key in it.
func (Translator) Traits() plan.Traits { return plan.Traits{DropUnused: true} }

// Names is nil: proxies request secrets by name.
func (Translator) Names(*input.Reader) ([]string, error) { return nil, nil }

// HostNames is empty, like Names.
func (Translator) HostNames(*input.Reader, string) ([]string, error) { return nil, nil }

// Build builds the secret of a name that resourcename.Credential or CredentialAuthority made. The name may contain the
// proxy's own namespace: "kubernetes://<namespace>/<name>" or "kubernetes-gateway://<namespace>/<name>". It returns
// plan.ErrPending while config-watcher has not answered yet.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	namespace, ref, ok := resourcename.ParseCredential(name)
	if !ok || r.Identity() == "" {
		return nil, nil
	}
	if namespace == credential.NamespaceOf(r.Identity()) {
		namespace = ""
	}
	if !slices.ContainsFunc(r.GatewayListeners(), func(g *mesh.GatewayListeners) bool { return listens(g, name) }) &&
		(namespace != "" || !uses(r, name, ref)) {
		return nil, nil
	}
	c, known := r.Credential(namespace, ref)
	switch {
	case !known:
		return nil, plan.ErrPending
	case c == nil:
		return nil, nil
	default:
		return build(name, c), nil
	}
}

// uses reports whether the proxy's configuration refers to the secret; other Secrets of its namespace are not sent. A
// gateway uses the credentials of the Gateways that select it and of the DestinationRules that it sees; all other
// proxies use those of DestinationRules whose workloadSelector selects them.
func uses(r *input.Reader, name, ref string) bool {
	named := r.SelectsCredential
	if r.IsGateway() {
		named = func(ref string) bool { return r.UsesCredential(ref) || r.SelectsCredential(ref) }
		if slices.ContainsFunc(r.Gateways(), func(g *mesh.Gateway) bool { return serves(g, name) }) {
			return true
		}
	}
	// The proxy's own namespace is optional in the name.
	for _, ref := range []string{ref, credential.NamespaceOf(r.Identity()) + "/" + ref} {
		if named(ref) || named(strings.TrimSuffix(ref, resourcename.AuthoritySuffix)) {
			return true
		}
	}
	return false
}

// listens reports whether a Gateway or ListenerSet of the Gateway API has the secret's credential: for one of its
// listeners, or to show to backends. config-watcher judges whether it may: it leaves out those that it may not have.
func listens(g *mesh.GatewayListeners, name string) bool {
	return isNamed(name, g.Spec.GetBackendCredential()) ||
		slices.ContainsFunc(g.TLS, func(tls *networking.ServerTLSSettings) bool { return names(tls, name) })
}

// serves reports whether a server of the Gateway has the secret's credential.
func serves(g *mesh.Gateway, name string) bool {
	return slices.ContainsFunc(g.Spec.GetServers(), func(s *networking.Server) bool { return names(s.GetTls(), name) })
}

func names(tls *networking.ServerTLSSettings, name string) bool {
	return isNamed(name, append([]string{tls.GetCredentialName(), tls.GetCaCertCredentialName()}, tls.GetCredentialNames()...)...)
}

// isNamed reports whether the secret is that of one of the credentials, or of the CA certificates of one.
func isNamed(name string, credentials ...string) bool {
	return slices.ContainsFunc(credentials, func(named string) bool {
		return named != "" && (resourcename.Credential(named) == name || resourcename.CredentialAuthority(named) == name)
	})
}

// build returns nil for a credential without the part that the name stands for.
func build(name string, c *credential.Credential) proto.Message {
	out := &tlsv3.Secret{Name: name}
	switch authority := resourcename.IsCredentialAuthority(name); {
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
