package binder

import (
	"strings"
	"testing"
)

// TestNeedsOfTheGatewayAPI: Secrets are read where Gateways of the mesh's own classes name them, and in other
// namespaces only while a grant is there. Objects are called o0, o1, ... in namespace shop.
func TestNeedsOfTheGatewayAPI(t *testing.T) {
	const (
		api     = "apiVersion: gateway.networking.k8s.io/v1, "
		class   = "{" + api + "kind: GatewayClass, spec: {controllerName: istio.io/gateway-controller}}\n---\n"
		others  = "{" + api + "kind: GatewayClass, spec: {controllerName: example.com/other}}\n---\n"
		gateway = "{" + api + "kind: Gateway, spec: {gatewayClassName: o0, "
		edge    = gateway + "listeners: [{tls: {certificateRefs: [{name: c}]}}]}}"
		far     = gateway + "listeners: [{tls: {certificateRefs: [{name: c, namespace: keys}]}}]}}"
	)
	grant := func(from, to string) string {
		return "{" + api + "kind: ReferenceGrant, metadata: {namespace: keys}, spec: {from: [{group: gateway.networking.k8s.io, " + from +
			"}], to: [{group: '', " + to + "}]}}"
	}
	for name, c := range map[string]struct{ objects, credentials string }{
		"a Gateway": {
			class + edge, "shop"},
		"of another controller": {
			others + edge, ""},
		"of a class that is not there": {
			edge, ""},
		"without a Secret": {
			class + gateway + "listeners: [{port: 80}]}}", ""},
		"another namespace's, without a grant": {
			class + far, ""},
		"another namespace's, with a grant": {
			class + far + "\n---\n" + grant("kind: Gateway, namespace: shop", "kind: Secret"), "keys"},
		"a grant for the name": {
			class + far + "\n---\n" + grant("kind: Gateway, namespace: shop", "kind: Secret, name: c"), "keys"},
		"a grant for another name": {
			class + far + "\n---\n" + grant("kind: Gateway, namespace: shop", "kind: Secret, name: d"), ""},
		"a grant for another kind": {
			class + far + "\n---\n" + grant("kind: Gateway, namespace: shop", "kind: ConfigMap"), ""},
		"a grant for another namespace": {
			class + far + "\n---\n" + grant("kind: Gateway, namespace: other", "kind: Secret"), ""},
		"a grant for ListenerSets alone": {
			class + far + "\n---\n" + grant("kind: ListenerSet, namespace: shop", "kind: Secret"), ""},
		"client certificates, of all ports and of one": {
			class + frontend("default: {validation: {caCertificateRefs: [{kind: ConfigMap, name: c}]}}"), "shop"},
		"client certificates of a port": {
			class + frontend("perPort: [{port: 443, tls: {validation: {caCertificateRefs: [{kind: ConfigMap, name: c}]}}}]"), "shop"},
		"a certificate for backends": {
			class + gateway + "tls: {backend: {clientCertificateRef: {name: c}}}}}", "shop"},
		"parameters": {
			class + gateway + "infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: c}}}}", "shop"},
		"a ListenerSet": {
			class + strings.Replace(edge, "certificateRefs: [{name: c}]", "", 1) + "\n---\n" + set("o1"), "sets"},
		"a ListenerSet of no Gateway": {
			class + strings.Replace(edge, "certificateRefs: [{name: c}]", "", 1) + "\n---\n" + set("o9"), ""},
		"a policy with certificates": {
			"{" + api + "kind: BackendTLSPolicy, spec: {validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: c}]}}}", "shop"},
		"a policy with the certificates of the system": {
			"{" + api + "kind: BackendTLSPolicy, spec: {validation: {wellKnownCACertificates: System}}}", ""},
		"fields of wrong types need nothing": {
			class + gateway + "listeners: {a: b}, tls: 1}}\n---\n{" + api + "kind: BackendTLSPolicy, spec: {validation: []}}", ""},
		"an object without a spec needs nothing, of no kind of it": {
			"{" + api + "kind: Gateway}\n---\n{" + api + "kind: ListenerSet}\n---\n{" + api + "kind: ReferenceGrant}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sorted(objects(t, c.objects).credentials()); got != c.credentials {
				t.Errorf("Secrets are read in %q, want %q", got, c.credentials)
			}
		})
	}
}

func frontend(validation string) string {
	return "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, spec: {gatewayClassName: o0, tls: {frontend: {" + validation + "}}}}"
}

func set(gateway string) string {
	return "{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {namespace: sets}, spec: {parentRef: {name: " + gateway +
		", namespace: shop}, listeners: [{tls: {certificateRefs: [{name: c}]}}]}}"
}
