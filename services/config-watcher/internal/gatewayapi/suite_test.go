package gatewayapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/config-watcher/internal/object"
)

// suite returns the manifests of the conformance suite by path.
func suite(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	files, err := filepath.Glob("testdata/suite/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no manifests", err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for part := range strings.SplitSeq(string(raw), "### ") {
			if name, text, found := strings.Cut(part, "\n"); found {
				out[name] = strings.NewReplacer("{GATEWAY_CLASS_NAME}", "istio", "PLACEHOLDER_USABLE_ADDRS", "192.0.2.1",
					"PLACEHOLDER_UNUSABLE_ADDRS", "198.51.100.1").Replace(text)
			}
		}
	}
	return out
}

// authority is a certificate in PEM.
func authority(t testing.TB) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1<<32, 0), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// suiteSetup has the Secrets and ConfigMaps that the suite makes in its own code.
func suiteSetup(t testing.TB) string {
	var b strings.Builder
	for _, name := range []string{
		"gateway-conformance-web-backend/certificate", "gateway-conformance-infra/tls-validity-checks-certificate",
		"gateway-conformance-infra/tls-validity-checks-client-certificate", "gateway-conformance-infra/tls-validity-checks-per-port-client-certificate",
		"gateway-conformance-infra/tls-checks-certificate", "gateway-conformance-infra/tls-checks-client-certificate",
		"gateway-conformance-infra/tls-passthrough-checks-certificate", "gateway-conformance-infra/tls-terminate-checks-certificate",
	} {
		ns, n, _ := strings.Cut(name, "/")
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\n", n, ns)
	}
	ca := strings.ReplaceAll(authority(t), "\n", "\n    ")
	for _, name := range []string{
		"gateway-conformance-web-backend/web-backend-cm", "gateway-conformance-infra/tls-validity-checks-ca-certificate",
		"gateway-conformance-infra/tls-validity-checks-per-port-ca-certificate", "gateway-conformance-infra/tls-checks-ca-certificate",
		"gateway-conformance-infra/mismatch-ca-certificate",
	} {
		ns, n, _ := strings.Cut(name, "/")
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata:\n  ca.crt: |\n    %s\n", n, ns, ca)
	}
	return b.String()
}

// suiteDefaults fills in what the CRDs' defaults fill in and the suite relies on.
func suiteSecrets(o *object.Object) {
	// The suite's malformed Secrets have data that is no certificate.
	if state, ok := o.Body.(*object.CredentialState); ok && strings.Contains(o.Key.Name, "malformed") {
		state.Problem = "tls.crt is no certificate"
	}
}

const infra = "gateway-conformance-infra"

// TestSuite checks what the suite's own code expects of statuses, but for Programmed.
func TestSuite(t *testing.T) {
	type expectation struct {
		file, kind, name string // the name may have a namespace
		want             []string
	}
	const (
		accepted   = "Accepted=True/Accepted"
		resolved   = "ResolvedRefs=True/ResolvedRefs"
		notGranted = "ResolvedRefs=False/RefNotPermitted"
		notFound   = "ResolvedRefs=False/BackendNotFound"
	)
	cases := []expectation{
		{"base/manifests.yaml", "Gateway", "same-namespace-with-https-listener", []string{accepted, resolved, "https: 0 [HTTPRoute GRPCRoute] served=true", "https-with-hostname: 0", "OverlappingTLSConfig=True/OverlappingHostnames"}},
		{"gateway-invalid-route-kind.yaml", "Gateway", "gateway-only-invalid-route-kind", []string{"http: 0 [] served=true", "ResolvedRefs=False/InvalidRouteKinds"}},
		{"gateway-invalid-route-kind.yaml", "Gateway", "gateway-supported-and-invalid-route-kind", []string{"http: 0 [HTTPRoute] served=true", "ResolvedRefs=False/InvalidRouteKinds"}},
		{"gateway-invalid-tls-configuration.yaml", "Gateway", "gateway-certificate-nonexistent-secret", []string{"https: 0 [HTTPRoute GRPCRoute] served=false Accepted=True", "ResolvedRefs=False/InvalidCertificateRef"}},
		{"gateway-invalid-tls-configuration.yaml", "Gateway", "gateway-certificate-unsupported-group", []string{"ResolvedRefs=False/InvalidCertificateRef"}},
		{"gateway-invalid-tls-configuration.yaml", "Gateway", "gateway-certificate-unsupported-kind", []string{"ResolvedRefs=False/InvalidCertificateRef"}},
		{"gateway-invalid-tls-configuration.yaml", "Gateway", "gateway-certificate-malformed-secret", []string{"ResolvedRefs=False/InvalidCertificateRef"}},
		{"gateway-invalid-tls-backend-configuration.yaml", "Gateway", "gateway-client-certificate-nonexistent-secret", []string{accepted + " ResolvedRefs=False/InvalidClientCertificateRef"}},
		{"gateway-invalid-tls-backend-configuration.yaml", "Gateway", "gateway-client-certificate-unsupported-group", []string{accepted + " ResolvedRefs=False/InvalidClientCertificateRef"}},
		{"gateway-invalid-tls-backend-configuration.yaml", "Gateway", "gateway-client-certificate-unsupported-kind", []string{accepted + " ResolvedRefs=False/InvalidClientCertificateRef"}},
		{"gateway-invalid-tls-backend-configuration.yaml", "Gateway", "gateway-client-certificate-malformed-secret", []string{accepted + " ResolvedRefs=False/InvalidClientCertificateRef"}},
		{"gateway-invalid-tls-backend-configuration.yaml", "Gateway", "gateway-client-certificate-missing-reference-grant", []string{accepted + " " + notGranted}},
		{"gateway-invalid-listeners-unsupported-protocol.yaml", "Gateway", "gateway-only-unsupported-protocols", []string{"Accepted=False/ListenersNotValid", "invalid: 0 [] served=false Accepted=False/UnsupportedProtocol"}},
		{"gateway-invalid-listeners-unsupported-protocol.yaml", "Gateway", "gateway-supported-and-unsupported-protocols", []string{"Accepted=True/ListenersNotValid", "http: 0 [HTTPRoute GRPCRoute] served=true " + accepted, "invalid: 0 [] served=false Accepted=False/UnsupportedProtocol"}},
		{"gateway-invalid-parameters-ref.yaml", "Gateway", "gateway-invalid-parameters-ref", []string{"Accepted=False/InvalidParameters"}},
		{"gateway-static-addresses.yaml", "Gateway", "gateway-static-addresses", []string{"Accepted=False/UnsupportedAddress"}},
		{"gateway-optional-address-value.yaml", "Gateway", "gateway-without-address-value", []string{accepted}},
		{"gateway-secret-invalid-reference-grant.yaml", "Gateway", "gateway-secret-invalid-reference-grant", []string{"https: 0 [HTTPRoute GRPCRoute] served=false", notGranted}},
		{"gateway-secret-missing-reference-grant.yaml", "Gateway", "gateway-secret-missing-reference-grant", []string{"https: 0 [HTTPRoute GRPCRoute] served=false", notGranted}},
		{"gateway-secret-reference-grant-all-in-namespace.yaml", "Gateway", "gateway-secret-reference-grant-all-in-namespace", []string{"https: 0 [HTTPRoute GRPCRoute] served=true", resolved}},
		{"gateway-secret-reference-grant-specific.yaml", "Gateway", "gateway-secret-reference-grant-specific", []string{"https: 0 [HTTPRoute GRPCRoute] served=true", resolved}},
		{"gateway-with-attached-routes.yaml", "Gateway", "gateway-with-one-attached-route", []string{"http: 1 [HTTPRoute] served=true"}},
		{"gateway-with-attached-routes.yaml", "Gateway", "gateway-with-two-attached-routes", []string{"http: 2 [HTTPRoute] served=true"}},
		{"gateway-with-attached-routes.yaml", "HTTPRoute", "http-route-not-accepted", []string{"Accepted=False/NoMatchingListenerHostname"}},
		{"gateway-with-attached-routes.yaml", "Gateway", "unresolved-gateway-with-one-attached-unresolved-route", []string{"tls: 1 [HTTPRoute] served=false", "ResolvedRefs=False"}},
		{"gateway-with-attached-routes.yaml", "HTTPRoute", "http-route-4", []string{"ResolvedRefs=False"}},
		{"gateway-with-attached-routes-with-port-8080.yaml", "Gateway", "gateway-with-two-listeners-and-one-attached-route", []string{"http-unattached: 0", "http: 1"}},
		{"gateway-with-invalid-clientcertificate-validation.yaml", "Gateway", "gateway-with-invalid-client-cert-validation", []string{
			"https: 0 [HTTPRoute GRPCRoute] served=true " + accepted + " Conflicted=False/NoConflicts " + resolved,
			"https-unresolved: 0 [HTTPRoute GRPCRoute] served=false Accepted=False/NoValidCACertificate Conflicted=False/NoConflicts ResolvedRefs=False/InvalidCACertificateRef",
			"https-invalid-kind: 0 [HTTPRoute GRPCRoute] served=false Accepted=False/NoValidCACertificate Conflicted=False/NoConflicts ResolvedRefs=False/InvalidCACertificateKind",
			"https-grant-missing: 0 [HTTPRoute GRPCRoute] served=false Accepted=False/NoValidCACertificate Conflicted=False/NoConflicts ResolvedRefs=False/RefNotPermitted",
		}},
		{"gateway-invalid-default-frontend-client-certificate-validation.yaml", "Gateway", "invalid-default-client-validation-config", []string{
			"http: 1 [HTTPRoute GRPCRoute] served=true " + accepted,
			"https: 1 [HTTPRoute GRPCRoute] served=false Accepted=False/NoValidCACertificate Conflicted=False/NoConflicts ResolvedRefs=False/InvalidCACertificateRef",
		}},
		{"gateway-with-clientcertificate-validation-insecure-fallback.yaml", "Gateway", "client-validation-insecure-fallback", []string{"InsecureFrontendValidationMode=True/ConfigurationChanged"}},
		{"gateway-tls-backend-client-certificate.yaml", "Gateway", "gateway-tls-backend-client-certificate", []string{resolved}},
		{"gateway-tls-backend-client-certificate.yaml", "BackendTLSPolicy", "gateway-tls-backend-client-certificate-test", []string{"gateway-tls-backend-client-certificate: " + accepted}},
		{"httproute-disallowed-kind.yaml", "HTTPRoute", "disallowed-kind", []string{"tlsroutes-only: Accepted=False/NotAllowedByListeners " + resolved}},
		{"httproute-cross-namespace.yaml", "HTTPRoute", "gateway-conformance-web-backend/cross-namespace", []string{accepted + " " + resolved}},
		{"httproute-hostname-intersection.yaml", "HTTPRoute", "no-intersecting-hosts", []string{"Accepted=False/NoMatchingListenerHostname"}},
		{"httproute-hostname-intersection.yaml", "Gateway", "httproute-hostname-intersection", []string{"listener-1: 2 ", "listener-2: 1 ", "listener-3: 1 "}},
		{"httproute-invalid-backendref-unknown-kind.yaml", "HTTPRoute", "invalid-backend-ref-unknown-kind", []string{accepted + " ResolvedRefs=False/InvalidKind"}},
		{"httproute-invalid-cross-namespace-backend-ref.yaml", "HTTPRoute", "invalid-cross-namespace-backend-ref", []string{accepted + " " + notGranted}},
		{"httproute-invalid-cross-namespace-parent-ref.yaml", "HTTPRoute", "gateway-conformance-web-backend/invalid-cross-namespace-parent-ref", []string{"Accepted=False/NotAllowedByListeners " + resolved}},
		{"httproute-invalid-nonexistent-backendref.yaml", "HTTPRoute", "invalid-nonexistent-backend-ref", []string{accepted + " " + notFound}},
		{"httproute-invalid-parentref-not-matching-listener-port.yaml", "HTTPRoute", "httproute-listener-not-matching-route-port", []string{"Accepted=False/NoMatchingParent " + resolved}},
		{"httproute-invalid-parentref-not-matching-section-name.yaml", "HTTPRoute", "httproute-listener-not-matching-section-name", []string{"Accepted=False/NoMatchingParent"}},
		{"httproute-invalid-parentref-section-name-not-matching-port.yaml", "HTTPRoute", "httproute-listener-section-name-not-matching-port", []string{"Accepted=False/NoMatchingParent"}},
		{"httproute-invalid-reference-grant.yaml", "HTTPRoute", "reference-grant", []string{accepted + " " + notGranted}},
		{"httproute-partially-invalid-via-invalid-reference-grant.yaml", "HTTPRoute", "invalid-reference-grant", []string{accepted + " " + notGranted}},
		{"httproute-reference-grant.yaml", "HTTPRoute", "reference-grant", []string{accepted + " " + resolved}},
		{"backendtlspolicy-conflict-resolution.yaml", "BackendTLSPolicy", "conflicted-without-section-name-1", []string{"same-namespace: " + accepted}},
		{"backendtlspolicy-conflict-resolution.yaml", "BackendTLSPolicy", "conflicted-without-section-name-2", []string{"same-namespace: Accepted=False/Conflicted"}},
		{"backendtlspolicy-conflict-resolution.yaml", "BackendTLSPolicy", "conflicted-with-section-name-1", []string{"same-namespace: " + accepted}},
		{"backendtlspolicy-conflict-resolution.yaml", "BackendTLSPolicy", "conflicted-with-section-name-2", []string{"same-namespace: Accepted=False/Conflicted"}},
		{"backendtlspolicy-conflict-resolution.yaml", "BackendTLSPolicy", "not-conflicted-with-section-name", []string{"same-namespace: " + accepted}},
		{"backendtlspolicy-conflict-resolution.yaml", "BackendTLSPolicy", "not-conflicted-without-section-name", []string{"same-namespace: " + accepted}},
		{"backendtlspolicy-invalid-ca-certificate-ref.yaml", "BackendTLSPolicy", "nonexistent-ca-certificate-ref", []string{"same-namespace: Accepted=False/NoValidCACertificate ResolvedRefs=False/InvalidCACertificateRef"}},
		{"backendtlspolicy-invalid-ca-certificate-ref.yaml", "BackendTLSPolicy", "malformed-ca-certificate-ref", []string{"same-namespace: Accepted=False/NoValidCACertificate ResolvedRefs=False/InvalidCACertificateRef"}},
		{"backendtlspolicy-invalid-kind.yaml", "BackendTLSPolicy", "invalid-kind", []string{"same-namespace: Accepted=False/NoValidCACertificate ResolvedRefs=False/InvalidKind"}},
		{"backendtlspolicy.yaml", "BackendTLSPolicy", "normative-test", []string{"same-namespace: " + accepted + " " + resolved}},
		{"listenerset-default-not-allowed.yaml", "ListenerSet", "listenerset-default-not-allowed", []string{"Accepted=False/NotAllowed\n"}},
		{"listenerset-allowed-namespace-none.yaml", "ListenerSet", "listenerset-not-allowed", []string{"Accepted=False/NotAllowed\n"}},
		{"listenerset-allowed-namespace-none.yaml", "Gateway", "gateway-does-not-allow-listenerset", []string{accepted, "sets: 0\n"}},
		{"listenerset-allowed-namespace-same.yaml", "Gateway", "gateway-allows-listenerset-in-same-namespace", []string{accepted, "sets: 1\n"}},
		{"listenerset-allowed-namespace-same.yaml", "ListenerSet", "listenerset-in-same-namespace", []string{accepted + "\n"}},
		{"listenerset-allowed-namespace-same.yaml", "ListenerSet", "gateway-api-listenerset-not-allowed-ns/listenerset-in-different-namespace", []string{"Accepted=False/NotAllowed\n"}},
		{"listenerset-allowed-routes-supported-kinds.yaml", "ListenerSet", "listenerset-test-allowed-routes-supported-kinds", []string{"listener-set-listener-allowed-routes-tls-only: 0 [] served=true", "ResolvedRefs=False/InvalidRouteKinds"}},
		{"listenerset-gateway-parent-section-name-not-found.yaml", "HTTPRoute", "route-via-gateway", []string{"Accepted=False/NoMatchingParent"}},
		{"listenerset-gateway-parent-section-name-not-found.yaml", "HTTPRoute", "route-via-listenerset", []string{accepted}},
		{"listenerset-hostname-conflict.yaml", "Gateway", "gateway-with-listenerset-hostname-conflict", []string{accepted + " " + resolved + " sets: 2\n"}},
		{"listenerset-hostname-conflict.yaml", "ListenerSet", "listenerset-with-hostname-conflict-with-gateway-1", []string{
			"Accepted=True/", "listener-set-1-listener: 0 [HTTPRoute GRPCRoute] served=true",
			"hostname-conflict-with-gateway-listener: 0 [HTTPRoute GRPCRoute] served=false Accepted=False/HostnameConflict Conflicted=True/HostnameConflict",
			"hostname-conflict-with-listener-set-listener: 0 [HTTPRoute GRPCRoute] served=true",
		}},
		{"listenerset-hostname-conflict.yaml", "ListenerSet", "listenerset-with-hostname-conflict-with-gateway-2", []string{"Accepted=False/ListenersNotValid\n"}},
		{"listenerset-hostname-conflict.yaml", "ListenerSet", "listenerset-with-hostname-conflict-with-listener-set-2", []string{"Accepted=False/ListenersNotValid\n", "Conflicted=True/HostnameConflict"}},
		{"listenerset-protocol-conflict.yaml", "Gateway", "gateway-with-listenerset-protocol-conflict", []string{accepted + " " + resolved + " sets: 2\n"}},
		{"listenerset-protocol-conflict.yaml", "ListenerSet", "listenerset-with-protocol-conflict-with-gateway-1", []string{"protocol-conflict-with-gateway-listener: 0 [TCPRoute] served=false Accepted=False/ProtocolConflict Conflicted=True/ProtocolConflict"}},
		{"listenerset-protocol-conflict.yaml", "ListenerSet", "listenerset-with-protocol-conflict-with-listener-set-2", []string{"Accepted=False/ListenersNotValid\n"}},
		{"listenerset-reference-grant.yaml", "ListenerSet", "listenerset-with-reference-grant", []string{accepted, "listenerset-with-reference-grant-listener: 0 [HTTPRoute GRPCRoute] served=true"}},
		{"listenerset-reference-grant.yaml", "ListenerSet", "gateway-api-listener-sets-test-reference-grant-ns/listenerset-without-reference-grant", []string{"Accepted=False/ListenersNotValid\n", notGranted}},
		{"listenerset-route-status-scoped-to-parentref.yaml", "ListenerSet", "listenerset-parentref", []string{"listenerset-parentref-listener: 1 [HTTPRoute"}},
		{"listenerset-route-status-scoped-to-parentref.yaml", "HTTPRoute", "route-parentref-gwonly", []string{"gateway-parentref: " + accepted}},
		{"listenerset-http-routing.yaml", "Gateway", "gateway-with-listener-sets-http-routing", []string{"sets: 2\n"}},
		{"listenerset-http-routing.yaml", "ListenerSet", "listener-set-http-routing-1", []string{": 3 [", ": 2 ["}},
		{"listenerset-http-routing.yaml", "ListenerSet", "listener-set-http-routing-2", []string{": 2 ["}},
		{"tcproute-invalid-backendref-nonexistent.yaml", "TCPRoute", "tcp-route-invalid-backend-ref-nonexistent", []string{accepted + " " + notFound}},
		{"tcproute-invalid-cross-namespace-backend-ref.yaml", "TCPRoute", "tcp-invalid-cross-namespace-backend-ref", []string{accepted + " " + notGranted}},
		{"tcproute-invalid-non-tcp-listener.yaml", "TCPRoute", "tcp-route", []string{"Accepted=False/NotAllowedByListeners"}},
		{"tcproute-reference-grant.yaml", "TCPRoute", "tcp-reference-grant", []string{accepted + " " + resolved}},
		{"tlsroute-invalid-no-matching-listener.yaml", "TLSRoute", "tlsroute-not-allowed-protocol-http", []string{"Accepted=False/NotAllowedByListeners"}},
		{"tlsroute-invalid-no-matching-listener.yaml", "TLSRoute", "tlsroute-not-allowed-protocol-https", []string{"Accepted=False/NotAllowedByListeners"}},
		{"tlsroute-invalid-no-matching-listener.yaml", "TLSRoute", "tlsroute-no-matching-section-name", []string{"Accepted=False/NoMatchingParent"}},
		{"tlsroute-invalid-no-matching-listener-hostname.yaml", "TLSRoute", "tlsroute-hostname-mismatch-1", []string{"Accepted=False/NoMatchingListenerHostname"}},
		{"tlsroute-invalid-backendref-nonexistent.yaml", "TLSRoute", "invalid-backend-ref-nonexistent", []string{accepted + " " + notFound}},
		{"tlsroute-invalid-backendref-unknown-kind.yaml", "TLSRoute", "invalid-backend-ref-unknown-kind", []string{accepted + " ResolvedRefs=False/InvalidKind"}},
		{"tlsroute-invalid-reference-grant.yaml", "TLSRoute", "gateway-conformance-infra-test", []string{accepted + " " + notGranted}},
		{"tlsroute-listener-passthrough-supported-kinds.yaml", "Gateway", "gateway-tlsroute-passthrough-supported-kind", []string{"tls-passthrough: 0 [TLSRoute] served=true", "ResolvedRefs=False/InvalidRouteKinds"}},
		{"tlsroute-listener-terminate-supported-kinds.yaml", "Gateway", "gateway-tlsroute-terminate-supported", []string{"tls-terminate: 0 [TLSRoute] served=true " + accepted}},
		{"tlsroute-mixed-termination-same-namespace.yaml", "Gateway", "gateway-tlsroute-mixed-termination", []string{"tls-terminate: 1 [TLSRoute] served=true", "tls-passthrough: 1 [TLSRoute] served=true"}},
		{"udproute-invalid-backendref-nonexistent.yaml", "UDPRoute", "udp-route-invalid-backend-ref-nonexistent", []string{accepted + " " + notFound}},
		{"udproute-invalid-cross-namespace-backend-ref.yaml", "UDPRoute", "udp-route-invalid-cross-namespace-backend-ref", []string{accepted + " " + notGranted}},
		{"udproute-not-allowed-by-listeners.yaml", "UDPRoute", "udproute-not-allowed-by-listeners", []string{"Accepted=False/NotAllowedByListeners"}},
		{"udproute-parentref-attach-all-listeners.yaml", "Gateway", "udp-attach-all-listeners-gateway", []string{"udp-1: 1 ", "udp-2: 1 ", "udp-3: 1 "}},
		{"udproute-reference-grant.yaml", "UDPRoute", "udp-route-reference-grant", []string{accepted + " " + resolved}},
		{"mesh/mesh-ports.yaml", "HTTPRoute", "gateway-conformance-mesh/mesh-split-v1", []string{"echo-v1: " + accepted + " " + resolved}},
		{"mesh/mesh-consumer-route.yaml", "HTTPRoute", "gateway-conformance-mesh-consumer/mesh-echo-add-header", []string{"echo-v1: " + accepted + " " + resolved}},
	}
	manifests, setup := suite(t), suiteSetup(t)
	worlds := map[string]*world{}
	for _, c := range cases {
		path := "tests/" + c.file
		if strings.HasPrefix(c.file, "base/") {
			path = c.file
		}
		w := worlds[path]
		if w == nil {
			if manifests[path] == "" {
				t.Fatalf("no manifest %s", path)
			}
			w = newWorld()
			for _, o := range parse(t, manifests["base/manifests.yaml"]+"\n---\n"+manifests["mesh/manifests.yaml"]+setup+"\n---\n"+manifests[path]) {
				suiteSecrets(o)
				w.Put(o.Key, o)
			}
			w.rebuild()
			worlds[path] = w
		}
		ns, n, found := strings.Cut(c.name, "/")
		if !found {
			ns, n = infra, c.name
		}
		got := statusText(w.statuses[gatewayKey(c.kind, ns, n)])
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s, %s %s:\n%shas not %q", c.file, c.kind, c.name, got, want)
			}
		}
	}
}

// TestSuiteIsAccepted checks that all other routes of the suite are taken by their parents: its tests send requests.
func TestSuiteIsAccepted(t *testing.T) {
	refused := map[string]bool{} // files whose routes are not all accepted, see TestSuite
	for _, f := range []string{
		"gateway-with-attached-routes", "httproute-disallowed-kind", "httproute-hostname-intersection", "httproute-invalid", "tcproute-invalid",
		"tlsroute-invalid", "udproute-invalid", "udproute-not-allowed", "listenerset-", "tlsroute-listener",
		"httproute-partially-invalid", "gateway-with-invalid-clientcertificate",
		"mesh/grpcroute-weight", // of the mesh: a backend of weight 0 does not exist
	} {
		refused[f] = true
	}
	manifests, setup := suite(t), suiteSetup(t)
files:
	for path, text := range manifests {
		for f := range refused {
			if strings.Contains(path, "/"+f) {
				continue files
			}
		}
		w := newWorld()
		for _, o := range parse(t, manifests["base/manifests.yaml"]+"\n---\n"+manifests["mesh/manifests.yaml"]+setup+"\n---\n"+text) {
			suiteSecrets(o)
			w.Put(o.Key, o)
		}
		w.rebuild()
		for k, s := range w.statuses {
			text := statusText(s)
			switch {
			case s.Route != nil && (!strings.Contains(text, "Accepted=True") || strings.Contains(text, "False") || strings.Contains(text, "Invalid")):
				t.Errorf("%s: %s\n%s", path, k, text)
			case s.Route != nil && w.resources[k] == nil:
				t.Errorf("%s: %s is attached and has no resource", path, k)
			}
		}
		for _, o := range parse(t, text) {
			if strings.HasSuffix(o.Key.Kind, "Route") && w.statuses[o.Key] == nil {
				t.Errorf("%s: %s has no status", path, o.Key)
			}
		}
	}
}
