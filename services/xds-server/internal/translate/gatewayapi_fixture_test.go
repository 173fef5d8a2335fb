package translate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/route"
)

// gatewayAddress is what the gateway of these tests listens on.
const gatewayAddress = "127.66.201.1"

// attachment attaches a route to a listener of the tests' Gateway for domains; "" is any.
func attachment(listener string, domains ...string) *configv1.ListenerAttachment {
	out := &configv1.ListenerAttachment{Gateway: "gateways/shop", Listener: listener}
	for _, domain := range domains {
		out.Hosts = append(out.Hosts, &configv1.AttachedHost{Domain: domain, Rank: []byte("host")})
	}
	return out
}

// rule makes a rule with one match, which is tried after those with a lesser rank. uri is an exact path, or a prefix of
// whole elements that ends with "*".
func rule(rank, uri string, http *networking.HTTPRoute, change ...func(*configv1.AttachedRule)) *configv1.AttachedRule {
	m := &configv1.RuleMatch{Rank: []byte(rank)}
	match := &networking.HTTPMatchRequest{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: uri}}}
	if prefix, ok := strings.CutSuffix(uri, "*"); ok {
		match.Uri.MatchType, m.PathElements = &networking.StringMatch_Prefix{Prefix: prefix}, true
	}
	m.Match = meshtest.Any(match)
	out := &configv1.AttachedRule{Matches: []*configv1.RuleMatch{m}, Http: meshtest.Any(http)}
	for _, f := range change {
		f(out)
	}
	return out
}

func rewritten(to string) func(*configv1.AttachedRule) {
	return func(r *configv1.AttachedRule) { r.PrefixRewrite = &to }
}

func redirected(to string) func(*configv1.AttachedRule) {
	return func(r *configv1.AttachedRule) { r.PrefixRedirect = &to }
}

// toHost sends to hosts in equal shares.
func toHost(hosts ...string) *networking.HTTPRoute {
	out := &networking.HTTPRoute{}
	for _, host := range hosts {
		out.Route = append(out.Route, &networking.HTTPRouteDestination{
			Destination: &networking.Destination{Host: host, Port: &networking.PortSelector{Number: 80}}, Weight: 1,
		})
	}
	return out
}

func answer(status uint32) *networking.HTTPRoute {
	return &networking.HTTPRoute{DirectResponse: &networking.HTTPDirectResponse{Status: status}}
}

func attachedRoute(kind, name string, to []*configv1.ListenerAttachment, rules ...*configv1.AttachedRule) *configv1.Resource {
	return meshtest.GatewayAPI(kind, "default", name, &configv1.AttachedRoute{Listeners: to, Rules: rules, Rank: []byte(name)})
}

// plain makes endpoints without a proxy.
func plain(r *configv1.Resource) *configv1.Resource {
	for _, e := range r.GetEndpointSet().GetEndpoints() {
		e.TlsMode = configv1.TlsMode_TLS_MODE_DISABLED
	}
	return meshtest.Resource(r.GetKey().GetKind(), r.GetKey().GetNamespace(), r.GetKey().GetName(), r)
}

// backend makes a service and its endpoint at a port of this machine.
func backend(host string, port int, protocol configv1.Protocol) []*configv1.Resource {
	endpoints := meshtest.Endpoints("default", host, 80, "127.0.0.1")
	endpoints.GetEndpointSet().GetEndpoints()[0].Port = uint32(port) //nolint:gosec // a port
	return []*configv1.Resource{plain(endpoints), meshtest.Service("default", host, 80, func(s *configv1.Service) {
		s.Ports[0].Protocol = protocol
	})}
}

// gatewayOf makes a router at gatewayAddress that serves the listeners, and the mesh with further resources.
func gatewayOf(t *testing.T, listeners []*configv1.GatewayListener, resources ...*configv1.Resource) fixture {
	labels := map[string]string{contract.GatewayNameLabel: "shop"}
	resources = append(resources, meshtest.GatewayAPI(mesh.KindGatewayListeners, "gateways", "shop", &configv1.GatewayListeners{
		Gateway: "gateways/shop", Listeners: listeners,
		Selections: []*configv1.WorkloadSelection{{Namespace: "gateways", Labels: labels}},
	}))
	return fixture{state: meshtest.State(t, resources...), key: &class.Key{
		Type: class.Router, Namespace: "gateways", Labels: labels, Interception: class.None, Addresses: []string{gatewayAddress},
		TrustDomain: "cluster.local", DNSDomain: "gateways.svc.cluster.local",
	}}
}

// asker sends requests to a port of the gateway.
type asker struct {
	port int
	tls  *tls.Config
}

// ask sends a request and returns the status, the headers and the body. The host may have a port.
func (a asker) ask(host, target string) (*http.Response, string, error) {
	transport := &http.Transport{TLSClientConfig: a.tls, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", gatewayAddress, a.port))
	}}
	defer transport.CloseIdleConnections()
	scheme := "http"
	if a.tls != nil {
		scheme = "https"
	}
	request, err := http.NewRequest(http.MethodGet, scheme+"://"+host+target, nil)
	if err != nil {
		return nil, "", err
	}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, string(body), err
}

// expect fails the test unless the request is answered with the status, and with the text, if it is not "", as location
// or body.
func (a asker) expect(t *testing.T, host, target string, status int, text string) {
	t.Helper()
	response, body, err := a.ask(host, target)
	if err != nil {
		t.Errorf("%s%s: %v", host, target, err)
		return
	}
	if got := response.Header.Get("Location") + body; response.StatusCode != status || text != "" && got != text {
		t.Errorf("%s%s: got %d %q, want %d %q", host, target, response.StatusCode, got, status, text)
	}
}

// pathEcho answers with the path and the header x-set of each request, and returns its port.
func pathEcho(t *testing.T) int {
	t.Helper()
	listener := testkit.LoopbackListener(t)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.RequestURI+r.Header.Get("X-Set"))
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}

// buildIncomplete is buildAll for a mesh with a rule that cannot be built, of which the translator reports want.
func buildIncomplete(t *testing.T, w fixture, routeConfig, want string) built {
	t.Helper()
	out := accepted(w)
	m, err := route.Translator{}.Build(w.reader(), routeConfig)
	if _, incomplete := errors.AsType[*plan.Incomplete](err); !incomplete || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error about %s", err, want)
	}
	out.routes = []proto.Message{m}
	return out
}

// buildAllRoutes builds route configurations that have to be complete.
func buildAllRoutes(t *testing.T, w fixture, names ...string) []proto.Message {
	t.Helper()
	var out []proto.Message
	for _, name := range names {
		m, err := route.Translator{}.Build(w.reader(), name)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// tlsSecret makes the secret of a certificate and its key.
func tlsSecret(name string, chain, key []byte) *tlsv3.Secret {
	inline := func(b []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
	}
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(chain), PrivateKey: inline(key),
	}}}
}

func serverConfig(t *testing.T, chain, key []byte) *tls.Config {
	t.Helper()
	certificate, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{certificate}}
}

// greeter is a server of TCP, or of TLS, that sends a line, and returns its port.
func greeter(t *testing.T, text string, config *tls.Config) int {
	t.Helper()
	listener := testkit.LoopbackListener(t)
	port := listener.Addr().(*net.TCPAddr).Port
	t.Cleanup(func() { _ = listener.Close() })
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	serve(listener, func(conn net.Conn) { _, _ = fmt.Fprintln(conn, text) })
	return port
}

// udpGreeter answers each datagram with a line, and returns its port.
func udpGreeter(t *testing.T, text string) int {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			_, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(text+"\n"), from)
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).Port
}
