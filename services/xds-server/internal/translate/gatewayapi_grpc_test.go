package translate_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// versionEcho answers with the HTTP version of each request, over TLS if there is a configuration. It returns its port.
func versionEcho(t *testing.T, config *tls.Config) int {
	t.Helper()
	listener := testkit.LoopbackListener(t)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: protocols, TLSConfig: config, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto)
	})}
	go func() {
		if config != nil {
			_ = server.ServeTLS(listener, "", "")
		} else {
			_ = server.Serve(listener)
		}
	}()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}

// http2Client sends requests to a port of the gateway by HTTP/2, without TLS.
func http2Client(port int) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", gatewayAddress, port))
		},
	}}
}

// A real Envoy at a gateway sends gRPC by HTTP/2 to a port of undeclared protocol that a GRPCRoute sends to, with TLS
// and without; requests by HTTP/1.1 for the same port, which an HTTPRoute sends to, stay what they are. Other ports of
// undeclared protocol get HTTP/1.1.
func TestGRPCToUndeclaredPortsByEnvoy(t *testing.T) {
	const port = 8080
	pki := testkit.PKI(t)
	authority, err := pki.NewSVID("gateways", "shop").Current()
	if err != nil {
		t.Fatal(err)
	}
	chain, key := pki.NewServer("secure.example.com")
	certificate, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.RootsPEM)
	ports := map[string]int{
		"grpc": versionEcho(t, nil), "plain": versionEcho(t, nil),
		"secure": versionEcho(t, &tls.Config{Certificates: []tls.Certificate{certificate}}),
	}
	var resources []*configv1.Resource
	var rules []*configv1.AttachedRule
	for name, at := range ports {
		host := name + ".default.svc.cluster.local"
		resources = append(resources, backend(host, at, configv1.Protocol_PROTOCOL_UNSPECIFIED)...)
		rules = append(rules, rule("b", "/"+name+"*", toHost(host)))
		if name != "plain" {
			resources = append(resources, attachedRoute(mesh.KindGRPCRoute, name, []*configv1.ListenerAttachment{attachment("http", "")},
				rule("a", "/"+name+"/grpc", toHost(host))))
		}
	}
	resources = append(resources,
		attachedRoute(mesh.KindHTTPRoute, "all", []*configv1.ListenerAttachment{attachment("http", "")}, rules...),
		meshtest.GatewayAPI(mesh.KindBackendTLSPolicy, "default", "secure", &configv1.BackendTLS{
			Hostname: "secure.example.com", Authorities: string(authority.RootsPEM),
			Targets: []*configv1.BackendTLSTarget{{Hostname: "secure.default.svc.cluster.local"}},
		}))
	gateway := gatewayOf(t, []*configv1.GatewayListener{
		{Name: "http", Port: port, Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP},
	}, resources...)
	startProxy(t, "gateway", buildAll(t, gateway), pki.NewSVID("gateways", "shop"))
	client := http2Client(port)
	for name, overHTTP2 := range map[string]string{"grpc": "HTTP/2.0", "secure": "HTTP/2.0", "plain": "HTTP/1.1"} {
		request, err := http.NewRequest(http.MethodPost, "http://x/"+name+"/grpc", strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/grpc")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || string(body) != overHTTP2 {
			t.Errorf("%s: a gRPC request has arrived by %q (%v), want %s", name, body, err, overHTTP2)
		}
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		asker{port: port}.expect(t, "x", "/"+name, http.StatusOK, "HTTP/1.1")
	}
}
