package gatewayapi

import (
	"fmt"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/validate/cipher"
)

// Options of a listener's TLS that Istio has.
const (
	optionMode    = "gateway.istio.io/tls-terminate-mode"
	optionCiphers = "gateway.istio.io/tls-cipher-suites"
)

// terminateModes are the values of optionMode.
var terminateModes = map[gatewayv1.AnnotationValue]networking.ServerTLSSettings_TLSmode{
	"":                networking.ServerTLSSettings_SIMPLE,
	"SIMPLE":          networking.ServerTLSSettings_SIMPLE,
	"MUTUAL":          networking.ServerTLSSettings_MUTUAL,
	"OPTIONAL_MUTUAL": networking.ServerTLSSettings_OPTIONAL_MUTUAL,
	"ISTIO_MUTUAL":    networking.ServerTLSSettings_ISTIO_MUTUAL,
}

// listenerTLS judges the TLS of an HTTPS or TLS listener.
func (l *lookup) listenerTLS(g *gateway, out *listener, kind string, in *gatewayv1.Listener) {
	https := out.protocol == configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS
	mode := gatewayv1.TLSModeTerminate
	if in.TLS != nil && in.TLS.Mode != nil && *in.TLS.Mode != "" {
		mode = *in.TLS.Mode
	}
	settings := &networking.ServerTLSSettings{}
	switch {
	case in.TLS == nil:
		out.unsupportedValue("tls is missing; give certificateRefs")
	case mode == gatewayv1.TLSModeTerminate:
		l.terminate(g, out, kind, in.TLS, settings)
	case mode == gatewayv1.TLSModePassthrough && !https:
		settings.Mode, out.passthrough = networking.ServerTLSSettings_PASSTHROUGH, true
	default:
		out.unsupportedValue("tls.mode: %q is not supported with protocol %s", mode, in.Protocol)
	}
	if https {
		l.clientValidation(g, out, settings)
	}
	if out.refused != nil || out.broken {
		return
	}
	var err error
	if out.proto.Tls, err = resource.Any(settings); err != nil {
		out.unsupportedValue("tls cannot be encoded: %v", err)
	}
}

// terminate takes over certificates and options.
func (l *lookup) terminate(
	g *gateway, out *listener, kind string, in *gatewayv1.ListenerTLSConfig, settings *networking.ServerTLSSettings,
) {
	mode, ok := terminateModes[in.Options[optionMode]]
	if !ok {
		out.unsupportedValue("tls.options[%s]: %q is not supported; use SIMPLE, MUTUAL, OPTIONAL_MUTUAL or ISTIO_MUTUAL", optionMode,
			in.Options[optionMode])
	}
	settings.Mode = mode
	if suites := in.Options[optionCiphers]; suites != "" {
		var names []string
		for name := range strings.SplitSeq(string(suites), ",") {
			names = append(names, strings.TrimSpace(name))
		}
		settings.CipherSuites = cipher.Known(names)
		if len(settings.CipherSuites) < len(names) {
			out.warning = fmt.Sprintf("tls.options[%s] names cipher suites that are not known, or repeats one; they are left out", optionCiphers)
		}
		if len(settings.CipherSuites) == 0 {
			out.unsupportedValue("tls.options[%s]: none of the cipher suites is known", optionCiphers)
		}
	}
	if mode == networking.ServerTLSSettings_ISTIO_MUTUAL {
		return // the certificate is the workload's own
	}
	if len(in.CertificateRefs) == 0 {
		out.unresolve(gatewayv1.ListenerReasonInvalidCertificateRef, "tls.certificateRefs is empty; name a Secret with a certificate and its key")
	}
	for i := range in.CertificateRefs {
		n, reason, message := l.certificate(kind, out.owner, fmt.Sprintf("tls.certificateRefs[%d]", i), &in.CertificateRefs[i])
		if reason != "" {
			out.unresolve(gatewayv1.ListenerConditionReason(reason), "%s", message)
			continue
		}
		settings.CredentialNames = append(settings.CredentialNames, credentialName(n))
		if warning := l.expiry(g, n); warning != "" {
			out.warning = warning
		}
		if authority := (Name{Namespace: n.Namespace, Name: n.Name + authoritySuffix}); mode != networking.ServerTLSSettings_SIMPLE &&
			l.granted(reference{kind, out.owner}, "", secret, authority) {
			l.credential(authority) // clients are verified with it if it is there, so it is wanted
		}
	}
	out.broken = len(settings.CredentialNames) == 0
}

// authoritySuffix is added to the name of a Secret for the one with the authorities that clients are verified with, as
// in Istio.
const authoritySuffix = "-cacert"

func credentialName(n Name) string { return "kubernetes-gateway://" + n.String() }

// certificate resolves a reference of an object of a kind and namespace to a Secret. The reason why it cannot be used
// is one of those of a listener.
func (l *lookup) certificate(kind, namespace, field string, ref *gatewayv1.SecretObjectReference) (n Name, reason, message string) {
	invalid := string(gatewayv1.ListenerReasonInvalidCertificateRef)
	if ref.Group != nil && *ref.Group != "" || ref.Kind != nil && *ref.Kind != secret {
		return n, invalid, field + ": only Secrets are supported; name one"
	}
	n = Name{Namespace: namespace, Name: string(ref.Name)}
	if ref.Namespace != nil {
		n.Namespace = string(*ref.Namespace)
	}
	if !l.granted(reference{kind, namespace}, "", secret, n) {
		return n, string(gatewayv1.ListenerReasonRefNotPermitted), field + ": " + notGranted(secret, n, kind, namespace)
	}
	switch state := l.credential(n); {
	case state == nil:
		return n, invalid, fmt.Sprintf("%s: there is no Secret %s; create it, of type kubernetes.io/tls", field, n)
	case state.Problem != "":
		return n, invalid, fmt.Sprintf("%s: Secret %s: %s", field, n, state.Problem)
	}
	return n, "", ""
}

// credential finds what is known of a Secret; nil if there is none.
func (l *lookup) credential(n Name) *object.CredentialState {
	k := object.Key{Group: groupFairlead, Kind: credential, Namespace: n.Namespace, Name: n.Name}
	l.read(k)
	if o := l.objects[k]; o != nil {
		return o.Body.(*object.CredentialState)
	}
	return nil
}

// expiry warns of an expired certificate, or notes when it expires.
func (l *lookup) expiry(g *gateway, n Name) string {
	at := l.credential(n).NotAfter
	switch {
	case at.IsZero():
	case !at.After(l.now):
		return fmt.Sprintf("the certificate in Secret %s has expired at %s, and is served; renew it", n, at.UTC().Format(time.RFC3339))
	case g.expires.IsZero() || at.Before(g.expires):
		g.expires = at
	}
	return ""
}

// backendCertificate resolves the certificate that the Gateway shows to backends. It returns the reason why it cannot
// and a message; without a reason, a message is a warning.
func (l *lookup) backendCertificate(
	g *gateway, o *object.Object, in *gatewayv1.GatewayTLSConfig,
) (gatewayv1.GatewayConditionReason, string) {
	if in == nil || in.Backend == nil || in.Backend.ClientCertificateRef == nil {
		return "", ""
	}
	n, reason, message := l.certificate(Gateway, o.Key.Namespace, "spec.tls.backend.clientCertificateRef", in.Backend.ClientCertificateRef)
	switch reason {
	case "":
		g.backend = credentialName(n)
		return "", l.expiry(g, n)
	case string(gatewayv1.ListenerReasonRefNotPermitted):
		return gatewayv1.GatewayReasonRefNotPermitted, message
	default:
		return gatewayv1.GatewayReasonInvalidClientCertificateRef, message
	}
}

// frontend says how clients are verified.
type frontend struct {
	authorities string
	insecure    bool
	// problem is the first authority that cannot be used.
	problem *finding
}

// frontends resolves the authorities that clients are verified with.
func (l *lookup) frontends(g *gateway, in *gatewayv1.GatewayTLSConfig) {
	if in == nil || in.Frontend == nil {
		return
	}
	g.frontend = map[uint32]*frontend{0: l.frontend(g, "spec.tls.frontend.default", in.Frontend.Default.Validation)}
	for i := range in.Frontend.PerPort {
		p := &in.Frontend.PerPort[i]
		g.frontend[uint32(p.Port)] = l.frontend(g, fmt.Sprintf("spec.tls.frontend.perPort[%d].tls", i), p.TLS.Validation) //nolint:gosec // a port
	}
}

func (l *lookup) frontend(g *gateway, field string, in *gatewayv1.FrontendTLSValidation) *frontend {
	if in == nil {
		return nil
	}
	out := &frontend{insecure: in.Mode == gatewayv1.AllowInsecureFallback}
	for i, ref := range in.CACertificateRefs {
		at := fmt.Sprintf("%s.validation.caCertificateRefs[%d]", field, i)
		n := Name{Namespace: g.name.Namespace, Name: string(ref.Name)}
		if ref.Namespace != nil {
			n.Namespace = string(*ref.Namespace)
		}
		problem := func(reason gatewayv1.ListenerConditionReason, message string) {
			if out.problem == nil {
				out.problem = &finding{string(reason), message}
			}
		}
		if ref.Group != "" || ref.Kind != configMap {
			problem(gatewayv1.ListenerReasonInvalidCACertificateKind,
				fmt.Sprintf("%s: %s of group %q is not supported; use a ConfigMap", at, ref.Kind, ref.Group))
			continue
		}
		if !l.granted(reference{Gateway, g.name.Namespace}, "", configMap, n) {
			problem(gatewayv1.ListenerReasonRefNotPermitted, at+": "+notGranted(configMap, n, Gateway, g.name.Namespace))
			continue
		}
		text, message := l.authority(n)
		if message != "" {
			problem(gatewayv1.ListenerReasonInvalidCACertificateRef, at+": "+message)
			continue
		}
		out.authorities = joinPEM(out.authorities, text)
	}
	return out
}

// clientValidation has an HTTPS listener verify clients.
func (l *lookup) clientValidation(g *gateway, out *listener, settings *networking.ServerTLSSettings) {
	f, ok := g.frontend[out.port]
	if !ok {
		f = g.frontend[0]
	}
	if f == nil {
		return
	}
	if f.problem != nil {
		out.unresolve(gatewayv1.ListenerConditionReason(f.problem.reason), "%s", f.problem.message)
	}
	if f.authorities == "" {
		if out.refused == nil {
			out.refused = &finding{
				string(gatewayv1.ListenerReasonNoValidCACertificate), "no certificate of an authority to verify clients with is valid",
			}
		}
		return
	}
	if settings.Mode == networking.ServerTLSSettings_SIMPLE {
		settings.Mode = networking.ServerTLSSettings_MUTUAL
	}
	out.proto.ClientAuthorities, out.proto.InsecureFallback = f.authorities, f.insecure
}

// insecure reports whether clients are let in without a valid certificate anywhere.
func insecure(in *gatewayv1.GatewayTLSConfig) bool {
	if in == nil || in.Frontend == nil {
		return false
	}
	of := func(c *gatewayv1.TLSConfig) bool {
		return c.Validation != nil && c.Validation.Mode == gatewayv1.AllowInsecureFallback
	}
	return of(&in.Frontend.Default) || slices.ContainsFunc(in.Frontend.PerPort, func(p gatewayv1.TLSPortConfig) bool { return of(&p.TLS) })
}

func joinPEM(a, b string) string {
	if a != "" && !strings.HasSuffix(a, "\n") {
		a += "\n"
	}
	return a + b
}
