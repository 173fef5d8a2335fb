package translate_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// A real Envoy matches whole elements of a path, and replaces them, as the specification's table says.
func TestGatewayAPIPathsByEnvoy(t *testing.T) {
	const host, port = "echo.default.svc.cluster.local", 8080
	to := toHost(host)
	full := toHost(host)
	full.Rewrite = &networking.HTTPRewrite{UriRegexRewrite: &networking.RegexRewrite{Match: "/.*", Rewrite: "/full"}}
	set := toHost(host)
	set.Headers = &networking.Headers{Request: &networking.Headers_HeaderOperations{Set: map[string]string{"x-set": "%100%"}}}
	moved := func(change func(*networking.HTTPRedirect)) *networking.HTTPRoute {
		out := &networking.HTTPRedirect{RedirectCode: 302}
		change(out)
		return &networking.HTTPRoute{Redirect: out}
	}
	nothing := func(*networking.HTTPRedirect) {}
	broken := &networking.HTTPRoute{Headers: &networking.Headers{Request: &networking.Headers_HeaderOperations{
		Set: map[string]string{"x-set": "\x00"}}}, Route: to.GetRoute()}
	rules := []*configv1.AttachedRule{
		rule("b1", "/echo*", to), rule("b0", "/echo/first*", answer(418)), rule("b2", "/echo/second*", answer(418)),
		rule("a", "/foo*", to, rewritten("/xyz")), rule("a", "/foo2*", to, rewritten("/xyz/")), rule("a", "/foo3/*", to, rewritten("/xyz")),
		rule("a", "/foo4/*", to, rewritten("")), rule("a", "/foo5*", to, rewritten("/")), rule("a", "/full*", full), rule("a", "/set*", set),
		rule("a", "/dot.s*", to, rewritten("/")),
		rule("a", "/r1*", moved(nothing), redirected("/new")), rule("a", "/r2*", moved(nothing), redirected("/")),
		rule("a", "/r3*", moved(func(r *networking.HTTPRedirect) { r.Uri = "/whole" })),
		rule("a", "/r4*", moved(func(r *networking.HTTPRedirect) { r.Scheme = "https" })),
		rule("a", "/r5*", moved(func(r *networking.HTTPRedirect) { r.Authority = "other.example.com" })),
		rule("a", "/r6*", moved(func(r *networking.HTTPRedirect) {
			r.RedirectPort, r.Authority, r.RedirectCode = &networking.HTTPRedirect_Port{Port: 80}, "other.example.com", 308
		})),
		rule("a", "/r7*", moved(func(r *networking.HTTPRedirect) { r.RedirectPort = &networking.HTTPRedirect_Port{Port: 9} })),
		rule("a", "/none*", toHost("empty.default.svc.cluster.local")), rule("a", "/gone*", answer(500)),
		rule("a", "/unresolved*", toHost(contract.UnresolvedBackend)), rule("a", "/half*", toHost(host, contract.UnresolvedBackend)),
		rule("a", "/broken*", broken),
	}
	resources := backend(host, pathEcho(t), configv1.Protocol_PROTOCOL_HTTP)
	resources = append(resources, meshtest.Service("default", "empty.default.svc.cluster.local", 80),
		attachedRoute(mesh.KindHTTPRoute, "paths", []*configv1.ListenerAttachment{attachment("http", "a.example.com")}, rules...),
		attachedRoute(mesh.KindHTTPRoute, "root", []*configv1.ListenerAttachment{attachment("http", "root.example.com")},
			rule("a", "/*", to, rewritten("/b")), rule("b", "/never*", answer(418))),
		attachedRoute(mesh.KindHTTPRoute, "same", []*configv1.ListenerAttachment{attachment("http", "same.example.com")},
			rule("a", "/*", to, rewritten("/"))),
		attachedRoute(mesh.KindHTTPRoute, "moved", []*configv1.ListenerAttachment{attachment("http", "moved.example.com")},
			rule("a", "/*", moved(nothing), redirected("/b"))),
		attachedRoute(mesh.KindHTTPRoute, "wild", []*configv1.ListenerAttachment{attachment("http", "*.wild.example.com")},
			rule("a", "/*", moved(func(r *networking.HTTPRedirect) { r.Scheme = "https" }))),
		attachedRoute(mesh.KindGRPCRoute, "half", []*configv1.ListenerAttachment{attachment("http", "grpc.example.com")},
			rule("a", "/half*", toHost(host, contract.UnresolvedBackend)), rule("a", "/broken*", broken)),
	)
	gateway := gatewayOf(t, []*configv1.GatewayListener{
		{Name: "http", Port: port, Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP},
	}, resources...)
	startProxy(t, "gateway", buildIncomplete(t, gateway, "http.8080", "HTTPRoute default/paths"), testkit.PKI(t).NewSVID("gateways", "shop"))
	a := asker{port: port}
	for _, tc := range []struct {
		path   string
		status int
		text   string
	}{
		{"/echo", 200, "/echo"}, {"/echo/", 200, "/echo/"}, {"/echo/x?q=1", 200, "/echo/x?q=1"}, {"/echoes", 404, ""}, {"/ech", 404, ""},
		{"/echo/first", 418, ""}, {"/echo/second", 200, "/echo/second"}, {"/", 404, ""},
		{"/foo/bar?q=1", 200, "/xyz/bar?q=1"}, {"/foo", 200, "/xyz"}, {"/foo/", 200, "/xyz/"}, {"/foo?q", 200, "/xyz?q"},
		{"/foo2/bar", 200, "/xyz/bar"}, {"/foo2", 200, "/xyz"}, {"/foo3/bar", 200, "/xyz/bar"}, {"/foo3", 200, "/xyz"},
		{"/foo4/bar", 200, "/bar"}, {"/foo4/", 200, "/"}, {"/foo4", 200, "/"}, {"/foo5/", 200, "/"}, {"/foo5", 200, "/"},
		{"/foo5/bar/baz?q=/foo5", 200, "/bar/baz?q=/foo5"}, {"/dot.s/x", 200, "/x"}, {"/dotxs/x", 404, ""},
		{"/full/x/y?q=1", 200, "/full?q=1"}, {"/set", 200, "/set%100%"},
		{"/r1/x?q=1", 302, "http://a.example.com:8080/new/x?q=1"}, {"/r1", 302, "http://a.example.com:8080/new"},
		{"/r2/x", 302, "http://a.example.com:8080/x"}, {"/r2", 302, "http://a.example.com:8080/"},
		{"/r3/x", 302, "http://a.example.com:8080/whole"}, {"/r4/x", 302, "https://a.example.com/r4/x"},
		{"/r5", 302, "http://other.example.com:8080/r5"}, {"/r6", 308, "http://other.example.com/r6"},
		{"/r7", 302, "http://a.example.com:9/r7"},
		{"/none", 503, ""}, {"/gone", 500, ""}, {"/unresolved", 500, ""}, {"/broken", 500, ""},
	} {
		a.expect(t, "a.example.com", tc.path, tc.status, tc.text)
	}
	a.expect(t, "a.example.com:8080", "/echo", 200, "/echo")
	a.expect(t, "A.example.com", "/echo", 200, "/echo")
	a.expect(t, "root.example.com", "/x", 200, "/b/x")
	a.expect(t, "root.example.com", "/", 200, "/b/")
	a.expect(t, "same.example.com", "/x", 200, "/x")
	a.expect(t, "moved.example.com", "/x", 302, "http://moved.example.com:8080/b/x")
	a.expect(t, "b.example.com", "/echo", 404, "")
	// The port in the request's host, which may be that of a node or a tunnel, is not that of the redirect.
	a.expect(t, "a.example.com:31234", "/r1", 302, "http://a.example.com:8080/new")
	a.expect(t, "a.example.com:31234", "/r4/x", 302, "https://a.example.com/r4/x")
	a.expect(t, "x.wild.example.com", "/", 302, "https://x.wild.example.com/")
	a.expect(t, "x.wild.example.com:31234", "/", 302, "https://x.wild.example.com:443/")
	a.expect(t, "grpc.example.com", "/broken", 503, "")
	for host, want := range map[string]int{"a.example.com": 500, "grpc.example.com": 503} {
		seen := map[int]bool{}
		for range 64 {
			if response, _, err := a.ask(host, "/half"); err == nil {
				seen[response.StatusCode] = true
			}
		}
		if len(seen) != 2 || !seen[200] || !seen[want] {
			t.Errorf("half of the backends of %s cannot be resolved: got the statuses %v", host, seen)
		}
	}
}

// A real Envoy serves a host from the most specific listener alone, by HTTP and by HTTPS, and tells clients which have
// come by another listener's connection.
func TestGatewayAPIIsolationByEnvoy(t *testing.T) {
	pki := testkit.PKI(t)
	certificate := &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE,
		CredentialNames: []string{"kubernetes-gateway://gateways/server", "kubernetes-gateway://other/missing"}}
	client, err := pki.NewSVID("default", "client").Current()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := testkit.NewCA(t, "elsewhere", time.Now()).NewSVID("default", "client").Current()
	if err != nil {
		t.Fatal(err)
	}
	secure := func(name, hostname string, change ...func(*configv1.GatewayListener)) *configv1.GatewayListener {
		l := &configv1.GatewayListener{Name: name, Port: 8443, Hostname: hostname,
			Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS, Tls: meshtest.Any(certificate)}
		for _, f := range change {
			f(l)
		}
		return l
	}
	plaintext := func(name, hostname string) *configv1.GatewayListener {
		return &configv1.GatewayListener{Name: name, Port: 8081, Hostname: hostname, Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP}
	}
	listeners := []*configv1.GatewayListener{
		plaintext("any", ""), plaintext("wild", "*.example.com"), plaintext("foo", "*.foo.example.com"), plaintext("abc", "abc.foo.example.com"),
		plaintext("bare", "bare.example.org"),
		secure("https", ""), secure("second", "second.org"), secure("wildcard", "*.wild.org"), secure("fourth", "fourth.wild.org"),
		secure("mutual", "mutual.net", func(l *configv1.GatewayListener) { l.ClientAuthorities = string(client.RootsPEM) }),
		secure("lax", "lax.net", func(l *configv1.GatewayListener) {
			l.ClientAuthorities, l.InsecureFallback = string(client.RootsPEM), true
		}),
	}
	all := []string{"bar.com", "*.example.com", "*.foo.example.com", "abc.foo.example.com", "a.bare.example.org"}
	routed := func(listener string, status uint32, domains ...string) *configv1.Resource {
		return attachedRoute(mesh.KindHTTPRoute, listener, []*configv1.ListenerAttachment{attachment(listener, domains...)},
			rule("a", "/*", answer(status)))
	}
	gateway := gatewayOf(t, listeners,
		routed("any", 211, all...), routed("wild", 212, all[1:4]...), routed("foo", 213, all[2:4]...), routed("abc", 214, all[3]),
		routed("https", 221, "example.org"), routed("second", 222, "second.org"), routed("wildcard", 223, "*.wild.org"),
		routed("fourth", 224, "fourth.wild.org"), routed("mutual", 225, "mutual.net"), routed("lax", 226, "lax.net"))
	chain, key := pki.NewServer("example.org", "second.org", "*.wild.org", "mutual.net", "lax.net")
	startProxy(t, "gateway", buildAll(t, gateway), pki.NewSVID("gateways", "shop"),
		tlsSecret("kubernetes-gateway://gateways/server", chain, key))
	a := asker{port: 8081}
	for host, status := range map[string]int{"bar.com": 211, "x.example.com": 212, "a.b.example.com": 212, "x.foo.example.com": 213,
		"foo.example.com": 212, "abc.foo.example.com": 214, "example.com": 404, "bare.example.org": 404, "a.bare.example.org": 211} {
		a.expect(t, host, "/", status, "")
	}
	pair := func(m []byte, k []byte) []tls.Certificate {
		c, err := tls.X509KeyPair(m, k)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{c}
	}
	for _, tc := range []struct {
		sni, host string
		status    int // 0: the connection fails
		client    []tls.Certificate
	}{
		{"example.org", "example.org", 221, nil}, {"example.org", "second.org", 421, nil}, {"example.org", "unknown.org", 404, nil},
		{"second.org", "second.org", 222, nil}, {"second.org", "example.org", 421, nil}, {"second.org", "unknown.org", 421, nil},
		{"third.wild.org", "third.wild.org", 223, nil}, {"third.wild.org", "fifth.wild.org", 223, nil},
		{"third.wild.org", "fourth.wild.org", 421, nil}, {"third.wild.org", "second.org", 421, nil},
		{"fourth.wild.org", "fourth.wild.org", 224, nil}, {"fourth.wild.org", "fifth.wild.org", 421, nil},
		{"unknown.org", "example.org", 221, nil}, {"unknown.org", "unknown.org", 404, nil},
		{"mutual.net", "mutual.net", 0, nil}, {"mutual.net", "mutual.net", 225, pair(client.CertPEM, client.KeyPEM)},
		{"mutual.net", "mutual.net", 0, pair(stranger.CertPEM, stranger.KeyPEM)},
		{"lax.net", "lax.net", 226, nil}, {"lax.net", "lax.net", 226, pair(client.CertPEM, client.KeyPEM)},
		{"lax.net", "lax.net", 226, pair(stranger.CertPEM, stranger.KeyPEM)},
	} {
		a := asker{port: 8443, tls: &tls.Config{ServerName: tc.sni, InsecureSkipVerify: true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if len(tc.client) > 0 {
					return &tc.client[0], nil
				}
				return &tls.Certificate{}, nil
			}}}
		if tc.status != 0 {
			a.expect(t, tc.host, "/", tc.status, "")
		} else if response, _, err := a.ask(tc.host, "/"); err == nil {
			t.Errorf("%s: a client without the right certificate got %d", tc.sni, response.StatusCode)
		}
	}
}

// A real Envoy connects to services by TLS as BackendTLSPolicies say, and shows the gateway's certificate.
func TestBackendTLSByEnvoy(t *testing.T) {
	pki := testkit.PKI(t)
	client, err := pki.NewSVID("gateways", "shop").Current()
	if err != nil {
		t.Fatal(err)
	}
	chain, key := pki.NewServer("good.example.com")
	certificate, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(client.RootsPEM)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.TLS.ServerName) })}
	listener := tls.NewListener(testkit.LoopbackListener(t), &tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
	})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	port := listener.Addr().(*net.TCPAddr).Port

	policies := map[string]*configv1.BackendTLS{
		"good":     {Hostname: "good.example.com", Authorities: string(client.RootsPEM)},
		"san":      {Hostname: "other.example.com", SubjectAltNames: []string{"x", "good.example.com"}, Authorities: string(client.RootsPEM)},
		"wrong":    {Hostname: "wrong.example.com", Authorities: string(client.RootsPEM)},
		"unusable": {Hostname: "good.example.com", Unusable: true},
		"plain":    nil,
	}
	var resources []*configv1.Resource
	var rules []*configv1.AttachedRule
	for name, policy := range policies {
		host := name + ".default.svc.cluster.local"
		resources = append(resources, backend(host, port, configv1.Protocol_PROTOCOL_HTTP)...)
		rules = append(rules, rule("a", "/"+name+"*", toHost(host)))
		if policy != nil {
			policy.Targets = []*configv1.BackendTLSTarget{{Hostname: host}}
			resources = append(resources, meshtest.GatewayAPI(mesh.KindBackendTLSPolicy, "default", name, policy))
		}
	}
	resources = append(resources,
		attachedRoute(mesh.KindHTTPRoute, "all", []*configv1.ListenerAttachment{attachment("http", "")}, rules...),
		meshtest.GatewayAPI(mesh.KindListenerSet, "gateways", "credential", &configv1.GatewayListeners{
			BackendCredential: "kubernetes-gateway://gateways/client", Selections: []*configv1.WorkloadSelection{
				{Namespace: "gateways", Labels: map[string]string{contract.GatewayNameLabel: "shop"}}},
		}))
	gateway := gatewayOf(t, []*configv1.GatewayListener{
		{Name: "http", Port: 8083, Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP},
	}, resources...)
	b := accepted(gateway)
	b.routes = buildAllRoutes(t, gateway, "http.8083")
	startProxy(t, "gateway", b, pki.NewSVID("gateways", "shop"),
		tlsSecret("kubernetes-gateway://gateways/client", client.CertPEM, client.KeyPEM))
	a := asker{port: 8083}
	a.expect(t, "x", "/good", 200, "good.example.com")
	a.expect(t, "x", "/san", 200, "other.example.com")
	a.expect(t, "x", "/wrong", 503, "")
	a.expect(t, "x", "/unusable", 503, "")
	a.expect(t, "x", "/plain", 400, "") // the server's answer to a client that speaks no TLS
}

// A real Envoy passes TLS on, terminates it and serves HTTPS on one port, closes what no route is for, and forwards TCP
// and UDP by weights.
func TestLayer4ListenersByEnvoy(t *testing.T) {
	pki := testkit.PKI(t)
	settings := func(mode networking.ServerTLSSettings_TLSmode) *networking.ServerTLSSettings {
		return &networking.ServerTLSSettings{Mode: mode, CredentialNames: []string{"kubernetes-gateway://gateways/server"}}
	}
	const simple, passthrough = networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_PASSTHROUGH
	l := func(name string, port uint32, protocol configv1.ListenerProtocol, hostname string) *configv1.GatewayListener {
		return &configv1.GatewayListener{Name: name, Port: port, Protocol: protocol, Hostname: hostname}
	}
	secure := func(l *configv1.GatewayListener, mode networking.ServerTLSSettings_TLSmode) *configv1.GatewayListener {
		l.Tls = meshtest.Any(settings(mode))
		return l
	}
	const asTLS, asTCP, asUDP = configv1.ListenerProtocol_LISTENER_PROTOCOL_TLS, configv1.ListenerProtocol_LISTENER_PROTOCOL_TCP,
		configv1.ListenerProtocol_LISTENER_PROTOCOL_UDP
	destination := func(name string, weight uint32) *configv1.AttachedDestination {
		return &configv1.AttachedDestination{Hostname: name + ".default.svc.cluster.local", Port: 80, Weight: weight}
	}
	refused := &configv1.AttachedDestination{Hostname: contract.UnresolvedBackend, Weight: 1}
	to := func(kind, name string, listener *configv1.ListenerAttachment, d ...*configv1.AttachedDestination) *configv1.Resource {
		return attachedRoute(kind, name, []*configv1.ListenerAttachment{listener}, &configv1.AttachedRule{Destinations: d})
	}
	chain, key := pki.NewServer("https.org", "tls.org")
	behind, behindKey := pki.NewServer("pass.org")
	var resources []*configv1.Resource
	for name, port := range map[string]int{
		"one": greeter(t, "one", nil), "two": greeter(t, "two", nil), "secret": greeter(t, "secret", serverConfig(t, behind, behindKey)),
	} {
		resources = append(resources, backend(name+".default.svc.cluster.local", port, configv1.Protocol_PROTOCOL_TCP)...)
	}
	for _, name := range []string{"udp-one", "udp-two"} {
		resources = append(resources, backend(name+".default.svc.cluster.local", udpGreeter(t, name), configv1.Protocol_PROTOCOL_UDP)...)
	}
	resources = append(resources,
		attachedRoute(mesh.KindHTTPRoute, "https", []*configv1.ListenerAttachment{attachment("https", "https.org")},
			rule("a", "/*", answer(204))),
		to(mesh.KindTLSRoute, "pass", attachment("pass", "pass.org"), destination("secret", 1)),
		to(mesh.KindTLSRoute, "tls", attachment("tls", "tls.org"), destination("one", 1)),
		to(mesh.KindTLSRoute, "younger", attachment("tls", "tls.org"), destination("two", 1)),
		to(mesh.KindTCPRoute, "a", attachment("tcp"), destination("one", 3), destination("two", 1), refused),
		to(mesh.KindTCPRoute, "b", attachment("tcp"), destination("secret", 1)),
		to(mesh.KindUDPRoute, "udp", attachment("udp"), destination("udp-one", 7), destination("udp-two", 3)),
		to(mesh.KindUDPRoute, "udp-lost", attachment("udp-lost"), refused))
	gateway := gatewayOf(t, []*configv1.GatewayListener{
		secure(l("https", 8444, configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS, "https.org"), simple),
		secure(l("pass", 8444, asTLS, "*.org"), passthrough), secure(l("tls", 8444, asTLS, "tls.org"), simple),
		secure(l("any", 8444, asTLS, ""), passthrough),
		l("tcp", 8445, asTCP, ""), l("udp", 8445, asUDP, ""), l("udp-lost", 8446, asUDP, ""), l("empty", 8447, asTCP, ""),
		l("empty-udp", 8448, asUDP, ""),
	}, resources...)
	startProxy(t, "gateway", buildAll(t, gateway), pki.NewSVID("gateways", "shop"),
		tlsSecret("kubernetes-gateway://gateways/server", chain, key))

	over := func(sni string) (string, error) {
		conn, err := tls.Dial("tcp", gatewayAddress+":8444", &tls.Config{ServerName: sni, InsecureSkipVerify: true})
		if err != nil {
			return "", err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		text, err := bufio.NewReader(conn).ReadString('\n')
		return conn.ConnectionState().PeerCertificates[0].DNSNames[0] + " " + strings.TrimSpace(text), err
	}
	for sni, want := range map[string]string{"pass.org": "pass.org secret", "tls.org": "https.org one"} {
		if got, err := over(sni); got != want || err != nil {
			t.Errorf("%s: got %q (%v), want %q", sni, got, err, want)
		}
	}
	for _, sni := range []string{"unrouted.org", "elsewhere.net"} {
		if got, err := over(sni); err == nil {
			t.Errorf("%s: got %q", sni, got)
		}
	}
	asker{port: 8444, tls: &tls.Config{ServerName: "https.org", InsecureSkipVerify: true}}.expect(t, "https.org", "/", 204, "")

	counts := func(n int, dial func() (net.Conn, error)) map[string]int {
		seen := map[string]int{}
		for range n {
			conn, err := dial()
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			_, _ = conn.Write([]byte("x"))
			text, _ := bufio.NewReader(conn).ReadString('\n')
			seen[strings.TrimSpace(text)]++
			conn.Close()
		}
		return seen
	}
	if got := counts(250, func() (net.Conn, error) { return net.Dial("tcp", gatewayAddress+":8445") }); len(got) != 3 ||
		got["one"] < 2*got["two"] || got[""] == 0 || got["two"] == 0 {
		t.Errorf("TCP by the weights 3, 1 and 1 for what cannot be resolved: %v", got)
	}
	if got := counts(500, func() (net.Conn, error) { return net.Dial("udp", gatewayAddress+":8445") }); len(got) != 2 ||
		got["udp-one"] < 300 || got["udp-one"] > 400 {
		t.Errorf("UDP by the weights 7 and 3: %v", got)
	}
	conn, err := net.Dial("udp", gatewayAddress+":8446")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("x"))
	_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 10)); err == nil {
		t.Errorf("a destination that cannot be resolved answers %d bytes", n)
	}
	if conn, err := net.Dial("tcp", gatewayAddress+":8447"); err == nil {
		conn.Close()
		t.Error("a TCP listener without a route accepts connections")
	}
}
