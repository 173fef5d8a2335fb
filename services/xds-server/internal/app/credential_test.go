package app_test

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/encoding/prototext"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/xds-server/internal/app"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// gatewayWorkload is a Workload that the Gateways of these tests select.
func gatewayWorkload(namespace, address string) *configv1.Resource {
	return meshtest.Workload(namespace, "gateway", address, func(w *configv1.Workload) {
		w.ServiceAccount, w.Labels = "gateway", map[string]string{"istio": "ingressgateway"}
	})
}

// gatewayNode is the router of a gatewayWorkload.
func gatewayNode(namespace, address string) *core.Node {
	return adstest.Node("router~"+address+"~gateway."+namespace+"~"+namespace+".svc.cluster.local",
		map[string]any{"NAMESPACE": namespace, "INTERCEPTION_MODE": "NONE"})
}

// httpsServer is a server of a Gateway.
func httpsServer(port uint32, name, host string, tls *networking.ServerTLSSettings) *networking.Server {
	return &networking.Server{Port: &networking.Port{Number: port, Name: name, Protocol: "HTTPS"}, Hosts: []string{host}, Tls: tls}
}

func gatewayOf(servers ...*networking.Server) *configv1.Resource {
	return meshtest.Config(mesh.KindGateway, "edge", "shop", &networking.Gateway{
		Selector: map[string]string{"istio": "ingressgateway"}, Servers: servers,
	})
}

// traces are forms in which key material would be recognised.
func traces(key []byte) []string {
	line := strings.Split(string(key), "\n")[1]
	found := []string{line[:40]}
	for skip := range 3 {
		encoded := base64.StdEncoding.EncodeToString(key[skip+30:])
		found = append(found, encoded[:40])
	}
	return found
}

func secretsIn(t *testing.T, m *discovery.DeltaDiscoveryResponse) map[string]*tlsv3.Secret {
	t.Helper()
	found := map[string]*tlsv3.Secret{}
	for _, r := range m.GetResources() {
		s := &tlsv3.Secret{}
		if err := r.GetResource().UnmarshalTo(s); err != nil {
			t.Fatal(err)
		}
		found[r.GetName()] = s
	}
	return found
}

func keyOf(s *tlsv3.Secret) string {
	return string(s.GetTlsCertificate().GetPrivateKey().GetInlineBytes())
}

// TestCredentials follows credentials from config-watcher to the proxies that may have them, and to nobody and nothing
// else.
func TestCredentials(t *testing.T) {
	pki, issuer := testkit.PKI(t), testkit.NewIssuer(t)
	simple := &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: "shop-tls"}
	mutual := &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_MUTUAL, CredentialName: "mutual"}
	foreign := &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: "kubernetes://edge/shop-tls"}
	watcher := startWatcher(t, pki, append(bookMesh(), gatewayWorkload("edge", "10.1.0.20"), gatewayWorkload("other", "10.1.0.21"),
		gatewayOf(httpsServer(443, "simple", "a.example.com", simple), httpsServer(443, "mutual", "b.example.com", mutual),
			httpsServer(443, "foreign", "c.example.com", foreign)),
		meshtest.Config(mesh.KindDestinationRule, "edge", "upstream", &networking.DestinationRule{
			Host: reviews, TrafficPolicy: &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_MUTUAL,
				CredentialName: "client"}},
		}))...)
	server := startServer(t, pki, watcher.address, noop.NewTracerProvider(), func(o *app.Options) {
		o.AdminJWKSFile, o.AdminIssuer, o.PlaintextAddress = issuer.JWKSFile, issuer.Name, "127.0.0.1:0"
	})
	server.WaitReady()
	chain, key := pki.NewServer("a.example.com")
	chain2, key2 := pki.NewServer("a.example.com")
	authority := testkit.CertPEM(pki.Cert)
	f := &watcher.secrets
	f.put("edge/shop-tls", &secretv1.Credential{CertificateChain: chain, PrivateKey: key})
	f.put("edge/mutual", &secretv1.Credential{CertificateChain: chain, PrivateKey: key, CaCertificates: authority})
	f.put("edge/mutual-cacert", &secretv1.Credential{CaCertificates: authority})
	f.put("edge/unused", &secretv1.Credential{CertificateChain: chain, PrivateKey: key})
	f.put("edge/client", &secretv1.Credential{CertificateChain: chain, PrivateKey: key})
	f.hold(true)

	open := func(namespace, address string) *proxyStream {
		conn := dial(t, server.secure,
			rpc.ClientConfig{TLS: tlsconf.Client(pki.NewSVID(namespace, "gateway"), pki.ID(contract.SystemNamespace, contract.XDSServerAccount))})
		p := openStream(t, conn)
		p.Node = gatewayNode(namespace, address)
		return p
	}
	p := open("edge", "10.1.0.20")
	// What is not known yet is neither sent nor said to be absent, and nothing else waits for it.
	testkit.NoError(t, p.Subscribe(resource.SecretType, "kubernetes://shop-tls"))
	f.follows(t, "edge/shop-tls")
	if got := names(p.ask(resource.ListenerType, "*")); !slices.Equal(got, []string{"10.1.0.20_443"}) {
		t.Errorf("listeners %v", got)
	}
	f.hold(false)
	if got := keyOf(secretsIn(t, p.next(resource.SecretType))["kubernetes://shop-tls"]); got != string(key) {
		t.Error("not the key of the Secret")
	}
	got := secretsIn(t, p.ask(resource.SecretType, "kubernetes://mutual-cacert"))["kubernetes://mutual-cacert"]
	if string(got.GetValidationContext().GetTrustedCa().GetInlineBytes()) != string(authority) || got.GetTlsCertificate() != nil {
		t.Error("not the authority, or more than that")
	}
	if got := keyOf(secretsIn(t, p.ask(resource.SecretType, "kubernetes://client"))["kubernetes://client"]); got != string(key) {
		t.Error("not the key that a DestinationRule names")
	}

	// Replaced, removed, back.
	f.put("edge/shop-tls", &secretv1.Credential{CertificateChain: chain2, PrivateKey: key2})
	if got := keyOf(secretsIn(t, p.next(resource.SecretType))["kubernetes://shop-tls"]); got != string(key2) {
		t.Error("not the new key")
	}
	f.put("edge/shop-tls", nil)
	if got := p.next(resource.SecretType).GetRemovedResources(); !slices.Equal(got, []string{"kubernetes://shop-tls"}) {
		t.Errorf("removed %v", got)
	}
	f.put("edge/shop-tls", &secretv1.Credential{CertificateChain: chain, PrivateKey: key})
	if got := keyOf(secretsIn(t, p.next(resource.SecretType))["kubernetes://shop-tls"]); got != string(key) {
		t.Error("not back")
	}

	// Names that are not there, not named by any Gateway, or not the proxy's to have.
	absent := func(p *proxyStream, name string) {
		t.Helper()
		m := p.ask(resource.SecretType, name)
		if !slices.Equal(m.GetRemovedResources(), []string{name}) || len(m.GetResources()) > 0 {
			t.Errorf("%s: %v", name, names(m))
		}
	}
	f.put("edge/mutual", nil)
	absent(p, "kubernetes://mutual") // known to be absent only once config-watcher has said so
	absent(p, "kubernetes://unused")
	absent(p, "default")
	absent(p, "kubernetes://edge/unused")
	if got := keyOf(secretsIn(t, p.ask(resource.SecretType, "kubernetes://edge/shop-tls"))["kubernetes://edge/shop-tls"]); got != string(
		key) {
		t.Error("the own namespace may be named")
	}
	elsewhere := open("other", "10.1.0.21")
	absent(elsewhere, "kubernetes://shop-tls")
	absent(elsewhere, "kubernetes://edge/shop-tls")
	anonymous := openStream(t, dial(t, server.plaintext, rpc.ClientConfig{Insecure: true}))
	anonymous.Node = gatewayNode("edge", "10.1.0.22")
	absent(anonymous, "kubernetes://shop-tls")
	sidecar := openStream(t, dial(t, server.secure,
		rpc.ClientConfig{TLS: tlsconf.Client(pki.NewSVID("edge", "gateway"), pki.ID(contract.SystemNamespace, contract.XDSServerAccount))}))
	sidecar.Node = &core.Node{Id: "sidecar~10.1.0.23~app.edge~edge.svc.cluster.local"}
	absent(sidecar, "kubernetes://shop-tls")
	if got, want := f.everAsked(),
		[]string{"edge/client", "edge/mutual", "edge/mutual-cacert", "edge/shop-tls", "other/shop-tls"}; !slices.Equal(got, want) {
		t.Errorf("config-watcher was asked for %v, want %v", got, want)
	}

	// The key is nowhere but in that one type.
	admin := issuer.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience)
	pages := []string{
		"/debug/proxies", "/debug/class", "/debug/class?proxy=gateway.edge", "/debug/resources?proxy=gateway.edge",
		"/debug/resources?proxy=gateway.edge&type=secrets", "/debug/why?proxy=gateway.edge&type=secrets&name=kubernetes://shop-tls",
		"/debug/why?proxy=gateway.edge&type=listeners&name=10.1.0.20_443",
	}
	for _, path := range pages {
		code, body := server.get(t, path, admin)
		if code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
		for _, trace := range traces(key) {
			if strings.Contains(body, trace) {
				t.Errorf("%s shows a private key", path)
			}
		}
		if strings.Contains(path, "name=kubernetes") && !strings.Contains(body, "Secret") {
			t.Errorf("%s does not name the Secret: %s", path, body)
		}
	}
	_, metrics := server.get(t, "/metrics", "")
	if !strings.Contains(metrics, "fairlead_xds_server_credentials_followed 5\n") ||
		!strings.Contains(metrics, "fairlead_xds_server_failing_resources 0\n") {
		t.Errorf("metrics of credentials:\n%s", metrics)
	}
	watcher.mu.Lock()
	reports := prototext.Format(&configv1.ReportRequest{})
	for _, m := range watcher.reports {
		reports += prototext.Format(m)
	}
	watcher.mu.Unlock()
	for _, trace := range traces(key) {
		if strings.Contains(reports, trace) || strings.Contains(metrics, trace) {
			t.Error("a report or a metric shows a private key")
		}
	}

	// Whoever asks no longer, needs no key.
	testkit.NoError(t, p.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.SecretType,
		ResourceNamesUnsubscribe: []string{"kubernetes://client", "kubernetes://mutual"}}))
	f.follows(t, "edge/mutual-cacert", "edge/shop-tls", "other/shop-tls")
	for _, s := range []*proxyStream{p, elsewhere} {
		testkit.NoError(t, s.CloseSend())
	}
	f.follows(t)
}
