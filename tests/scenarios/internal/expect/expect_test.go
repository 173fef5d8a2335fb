package expect_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/echo"
	"fairlead.dev/tests/scenarios/internal/echo/echotest"
	"fairlead.dev/tests/scenarios/internal/expect"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/wire"
)

const spiffe = "spiffe://cluster.local/ns/apps/sa/"

// run starts an application until the test ends.
func run(t *testing.T, c echo.Config, in func(func() error) error) *expect.Server {
	t.Helper()
	return &expect.Server{Identity: spiffe + c.Workload, Journal: echotest.Run(t, c, in)}
}

// expectation reads one as scenarios write it.
func expectation(t *testing.T, text string) format.Expect {
	t.Helper()
	var e format.Expect
	if err := yaml.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// judge compares an error with words that it must have; none if there must be no error.
func judge(t *testing.T, err error, words string) {
	t.Helper()
	switch {
	case words == "" && err != nil:
		t.Error(err)
	case words != "" && (err == nil || !strings.Contains(err.Error(), words)):
		t.Errorf("want %q, got %v", words, err)
	}
}

func certificates(t *testing.T) map[string]*format.Material {
	t.Helper()
	made, err := format.Issue(map[string]format.Certificate{
		"root":   {CA: true},
		"server": {Issuer: "root", DNSNames: []string{"server", "127.0.0.1"}, URIs: []string{spiffe + "server"}},
		"client": {Issuer: "root", URIs: []string{spiffe + "client"}},
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestCheck(t *testing.T) {
	certs := certificates(t)
	ports := map[string]int{}
	for _, name := range []string{"one", "two", "tls", "tcp", "closed"} {
		ports[name] = echotest.Port()
	}
	servers := map[string]*expect.Server{}
	servers["one"] = run(t, echo.Config{Workload: "one", Ports: []echo.Port{
		{Name: "http", Port: ports["one"], App: format.AppHTTP},
		{Name: "tcp", Port: ports["tcp"], App: format.AppTCP},
		{Name: "tls", Port: ports["tls"], App: format.AppHTTPS, CertFile: echotest.File(t, certs["server"].ChainPEM),
			KeyFile: echotest.File(t, certs["server"].KeyPEM)},
	}}, nil)
	servers["two"] = run(t, echo.Config{Workload: "two", Ports: []echo.Port{{Name: "http", Port: ports["two"], App: format.AppHTTP}}}, nil)
	// Half of the calls to "both" go to each.
	front := proxy(t, ports["one"], ports["two"])
	ports["both"] = front
	for _, test := range []struct {
		name, call, expect string
		// wrong is a part of what must be said; empty if the expectation holds.
		wrong string
	}{
		{"status", "{url: http://HOME:ONE/}", "status: 200", ""},
		{"another status", "{url: http://HOME:ONE/}", "status: 404", "status: want 404, got 200"},
		{"one of several", "{url: 'http://HOME:ONE/?codes=503'}", "status: [500, 503]", ""},
		{"shares of statuses", "{url: 'http://HOME:ONE/?codes=503:50,200:50', count: 200}", "{status: {200: 50, 503: 50}}", ""},
		{"other shares of statuses", "{url: 'http://HOME:ONE/?codes=503:50,200:50', count: 200}", "{status: {200: 90, 503: 10}}",
			"status: want 200 for 90 %"},
		{"never", "{url: 'http://HOME:ONE/?codes=503:50,200:50', count: 100}", "{status: {404: 0, 200: 50}}", ""},
		{"once is not never", "{url: 'http://HOME:ONE/?codes=503:3,200:97', count: 200}", "{status: {503: 0}}", "503 for 0 %"},
		{"an answer instead of an error", "{url: http://HOME:ONE/}", "error: any", "there was an answer, status 200"},
		{"an error instead of an answer", "{url: http://HOME:CLOSED/}", "status: 200", "got an error, refused"},
		{"refused", "{url: http://HOME:CLOSED/}", "error: refused", ""},
		{"another error", "{url: http://HOME:CLOSED/}", "error: timeout", "want timeout, got refused"},
		{"nothing but a server", "{url: http://HOME:CLOSED/}", "{from: {one: 100}}", "want an answer"},
		{"from", "{url: http://HOME:BOTH/, count: 100}", "{from: {one: 50, two: 50}, tolerance: 1}", ""},
		{"from one only", "{url: http://HOME:BOTH/, count: 100}", "{from: {one: 100, two: 0}}", "want one for 100 %"},
		{"from nobody else", "{url: http://HOME:BOTH/, count: 4}", "{from: {two: 0}}", "want two for 0 %"},
		{"from without room in the answer", "{url: 'http://HOME:BOTH/?codes=204', method: HEAD, count: 10}",
			"{from: {one: 50, two: 50}, tolerance: 1}", ""},
		{"sticky", "{url: http://HOME:ONE/, count: 10}", "sticky: true", ""},
		{"not sticky", "{url: http://HOME:BOTH/, count: 10}", "sticky: true", "one, two"},
		{"by intent", "{url: http://HOME:BOTH/, count: 10}", "sticky: false", ""},
		{
			"request", "{url: 'http://HOME:ONE/a%2Fb?x=1', method: PUT, body: hello, headers: {x-a: b, host: shop}}",
			"request: {path: '/a%2Fb?x=1', method: PUT, host: shop, version: '1.1', body: /^hel/, localPort: PORT, sourceIP: 127.0.0.1, headers: " +
				"{x-a: b, X-A: /./, x-b: null}}", "",
		},
		{"another path", "{url: http://HOME:ONE/a}", "request: {path: /b}", `request.path: want "/b", got "/a"`},
		{"a header that must not be", "{url: http://HOME:ONE/a, headers: {x-a: b}}", "request: {headers: {x-a: null}}",
			`x-a: want none, got "b"`},
		{"a header that is not there", "{url: http://HOME:ONE/a}", "request: {headers: {x-a: b}}", "it is not there"},
		{"a request without an answer", "{url: 'http://HOME:ONE/a?close=true'}", "{error: reset, request: {path: '/a?close=true'}}", ""},
		{"no request", "{url: http://HOME:CLOSED/}", "{error: any, request: {path: /}}", "it reached no server"},
		{"own TLS", "{url: https://HOME:TLS/, tls: {ca: root, sni: server}}", "{request: {tls: {sni: server, alpn: http/1.1, version: '1.3'}}}",
			""},
		{"other TLS", "{url: https://HOME:TLS/, tls: {ca: root, sni: server}}", "{request: {tls: {version: '1.2'}}}", "request.tls.version"},
		{"no TLS", "{url: http://HOME:ONE/}", "{request: {tls: {version: '1.2'}}}", "saw no TLS"},
		{
			"response", "{url: 'http://HOME:ONE/?codes=302&headers=location:/x,x-a:1'}",
			"{status: 302, response: {location: /x, version: '1.1', body: '/\"workload\":\"one\"/', headers: {x-a: '1', x-b: null}}}", "",
		},
		{"another location", "{url: 'http://HOME:ONE/?codes=302&headers=location:/x'}", "{response: {location: /y}}",
			`response.location: want "/y", got "/x"`},
		{"duration", "{url: 'http://HOME:ONE/?delay=60ms'}", "duration: {min: 50ms, max: 5s}", ""},
		{"too short", "{url: 'http://HOME:ONE/'}", "duration: {min: 10s}", "want at least 10s"},
		{"too long", "{url: 'http://HOME:ONE/?delay=60ms'}", "duration: {max: 50ms}", "want at most 50ms"},
		{"attempts", "{url: 'http://HOME:ONE/', count: 3}", "attempts: 1", ""},
		{"more attempts", "{url: 'http://HOME:ONE/', count: 3}", "attempts: {min: 2}", "attempts: want at least 2, and 1 requests"},
		{"not mirrored", "{url: 'http://HOME:ONE/'}", "{mirrored: {two: 0}}", ""},
		{"certificate", "{url: https://HOME:TLS/, tls: {ca: root, sni: server}}",
			"certificate: {dnsNames: [127.0.0.1, server], issuer: root, uri: SPIFFEserver}", ""},
		{"another certificate", "{url: https://HOME:TLS/, tls: {ca: root, sni: server}}", "certificate: {dnsNames: [server]}", "dnsNames"},
		{"no certificate", "{url: http://HOME:ONE/}", "certificate: {dnsNames: [server]}", "none was shown"},
		{"connections", "{url: http://HOME:ONE/, count: 5}", "newConnections: 5", ""},
		{"the same connection", "{url: http://HOME:ONE/, count: 5, sameConnection: true}", "newConnections: {max: 1}", ""},
		{"too many connections", "{url: http://HOME:ONE/, count: 5}", "newConnections: {max: 1}", "want at most 1, got 5"},
		{"gRPC", "{url: grpc://HOME:ONE}", "{grpcStatus: OK, from: {one: 100}}", ""},
		{"gRPC by number", "{url: 'grpc://HOME:ONE?codes=UNAVAILABLE'}", "{grpcStatus: 14, from: {one: 100}}", ""},
		{"gRPC of nobody", "{url: grpc://HOME:CLOSED}", "grpcStatus: unavailable", ""},
		{"gRPC of a kind", "{url: grpc://HOME:ONE}", "grpcStatus: NOT_FOUND", "want NotFound, got OK"},
		{"WebSocket", "{url: ws://HOME:ONE/ws, body: hi}", "{status: 101, from: {one: 100}, request: {body: hi, path: /ws}}", ""},
		{"no WebSocket", "{url: ws://HOME:ONE/}", "{status: 101}", "want 101, got 200"},
		{"TCP", "{url: tcp://HOME:TCP, body: hi}", "{from: {one: 100}, request: {body: hi, sourceIP: 127.0.0.1}}", ""},
		{"addresses", "{url: dns://127.0.0.1}", "addresses: [127.0.0.1]", ""},
		{"other addresses", "{url: dns://127.0.0.1}", "addresses: [127.0.0.2]", "addresses"},
	} {
		t.Run(test.name, func(t *testing.T) {
			replace := strings.NewReplacer(
				"ONE", fmt.Sprint(ports["one"]), "BOTH", fmt.Sprint(ports["both"]), "TLS", fmt.Sprint(ports["tls"]), "TCP", fmt.Sprint(ports["tcp"]),
				"HOME", echotest.Home().String(), "CLOSED", fmt.Sprint(ports["closed"]), "PORT", fmt.Sprint(ports["one"]), "SPIFFE", spiffe,
			)
			var call format.Call
			if err := yaml.Unmarshal([]byte(replace.Replace(test.call)), &call); err != nil {
				t.Fatal(err)
			}
			call.Count, call.Timeout, call.Expect = max(call.Count, 1), format.Duration(30*time.Second), expectation(t, replace.Replace(test.expect))
			scene := &expect.Scene{Call: &call, Servers: servers}
			scene.Begin()
			of := &caller.Caller{From: caller.Machine{Host: echotest.Machine{}}, Certificates: certs}
			err := scene.Check(t.Context(), of.Run(t.Context(), &call))
			judge(t, err, test.wrong)
			if err != nil && !strings.Contains(err.Error(), "seen:\n") {
				t.Errorf("it does not say what was seen: %v", err)
			}
		})
	}
}

// proxy passes connections on to each port in turn.
func proxy(t *testing.T, to ...int) int {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", echotest.Home().String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lis.Close() })
	go func() {
		for i := 0; ; i++ {
			near, err := lis.Accept()
			if err != nil {
				return
			}
			far, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("%s:%d", echotest.Home(), to[i%len(to)]))
			if err != nil {
				near.Close()
				continue
			}
			go func() {
				defer near.Close()
				defer far.Close()
				_, _ = near.(*net.TCPConn).ReadFrom(far)
			}()
			go func() { _, _ = far.(*net.TCPConn).ReadFrom(near) }()
		}
	}()
	return lis.Addr().(*net.TCPAddr).Port
}

// TestMirrored sends copies as a proxy does, late, and to a host whose name says so or not.
func TestMirrored(t *testing.T) {
	servers := map[string]*expect.Server{}
	ports := map[string]int{}
	for _, name := range []string{"one", "two"} {
		ports[name] = echotest.Port()
		servers[name] = run(t, echo.Config{Workload: name, Ports: []echo.Port{{Name: "http", Port: ports[name], App: format.AppHTTP}}}, nil)
	}
	for _, host := range []string{"server-shadow:80", "server"} {
		call := format.Call{
			URL: fmt.Sprintf("http://%s:%d/", echotest.Home(), ports["one"]), Count: 4, Timeout: format.Duration(30 * time.Second),
			Expect: expectation(t, "{mirrored: {two: 50}, tolerance: 0, attempts: 1, from: {one: 100}}"),
		}
		scene := &expect.Scene{Call: &call, Servers: servers}
		scene.Begin()
		of := &caller.Caller{From: caller.Machine{Host: echotest.Machine{}}}
		results := of.Run(t.Context(), &call)
		copied := make(chan struct{})
		go func() {
			defer close(copied)
			timer := time.NewTimer(200 * time.Millisecond)
			defer timer.Stop()
			<-timer.C
			for _, r := range results[:2] {
				again := format.Call{URL: fmt.Sprintf("http://%s:%d/", echotest.Home(), ports["two"]), Count: 1, Timeout: call.Timeout,
					Headers: map[string]format.Fields{"x-scenario-call": {r.ID}, "host": {host}}}
				of.Run(t.Context(), &again)
			}
		}()
		judge(t, scene.Check(t.Context(), results), "")
		<-copied
		call.Expect = expectation(t, "{mirrored: {two: 0}}")
		judge(t, scene.Check(t.Context(), results), "want two for 0 %")
	}
}

// TestMain makes the user root of namespaces of its own.
func TestMain(m *testing.M) { userns.Main(m) }

// TestFacts looks at the wire between two machines.
func TestFacts(t *testing.T) {
	userns.Need(t, netns.Programs...)
	network, err := netns.NewNetwork("expect", false)
	if err != nil {
		t.Fatal(err)
	}
	machines := map[string]*netns.Host{}
	for _, name := range []string{"client", "server"} {
		if machines[name], err = netns.New("expect-" + name); err != nil {
			t.Fatal(err)
		}
	}
	if err := network.Plug(machines["client"], machines["server"]); err != nil {
		t.Fatal(err)
	}
	certs := certificates(t)
	cert, key, ca := echotest.File(t, certs["server"].ChainPEM), echotest.File(t, certs["server"].KeyPEM),
		echotest.File(t, certs["root"].CertPEM)
	server := run(t, echo.Config{Workload: "server", Ports: []echo.Port{
		{Name: "http", Port: 80, App: format.AppHTTP}, {Name: "tcp", Port: 9090, App: format.AppTCP},
		{Name: "https", Port: 443, App: format.AppHTTPS, CertFile: cert, KeyFile: key},
		{Name: "mutual", Port: 444, App: format.AppHTTPS, CertFile: cert, KeyFile: key, ClientCAFile: ca},
	}}, machines["server"].In)
	if server.Sniffer, err = wire.Open(machines["server"].In, "eth0"); err != nil {
		t.Fatal(err)
	}
	defer server.Sniffer.Close()
	server.IPs = append(server.IPs, machines["server"].IP)
	log := echotest.File(t, nil)
	ip, from := machines["server"].IP.String(), machines["client"].IP.String()
	forged := map[string]string{"x-forwarded-client-cert": "By=" + spiffe + "server;URI=" + spiffe + "forged"}
	for _, test := range []struct {
		name, url, expect string
		proxy             bool
		headers           map[string]string
		// logged is what the proxy's log gets to say.
		logged, wrong string
	}{
		{"plaintext", "http://IP/", "{wire: plaintext, identity: null}", false, nil, "", ""},
		{"plaintext is not TLS", "http://IP/", "{wire: mtls}", false, nil, "", "wire: want mtls, got plaintext"},
		{"plaintext line", "tcp://IP:9090", "{wire: plaintext, identity: null}", false, nil, "", ""},
		{"TLS", "https://IP/", "{wire: tls, identity: null}", false, nil, "", ""},
		{"mutual TLS", "https://IP:444/", "{wire: mtls, identity: " + spiffe + "client}", false, nil, "", ""},
		{"somebody else", "https://IP:444/", "{identity: " + spiffe + "other}", false, nil, "", "identity: want " + spiffe + "other, got " +
			spiffe + "client"},
		{"a header forged in plaintext", "http://IP/", "{wire: plaintext, identity: null}", true, forged, "", ""},
		{"a proxy's header", "https://IP/", "{wire: mtls, identity: " + spiffe + "forged}", true, forged, "", ""},
		{
			"another proxy's header", "https://IP/", "{wire: tls, identity: null}", true,
			map[string]string{"x-forwarded-client-cert": "By=" + spiffe + "other;URI=" + spiffe + "forged"},
			`{"remote":"FROM:1","local":"IP:443","peer":"-"}`, "",
		},
		{"a proxy's log", "https://IP/", "{wire: mtls, identity: " + spiffe + "client}", true, nil, `{"remote":"FLOW","local":"IP:443","peer":"` +
			spiffe + `client"}`, ""},
		{
			"the late line of a connection that was refused before", "https://IP/", "{wire: mtls, identity: " + spiffe + "client}", true, nil,
			`{"remote":"FROM:1","local":"IP:443","peer":"-"}` + "\n" + `{"remote":"FLOW","local":"IP:443","peer":"` + spiffe + `client"}`, "",
		},
		{"no log", "https://IP/", "{wire: mtls}", true, nil, "", "the proxy logged nothing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			replace := strings.NewReplacer("IP", ip, "FROM", from)
			call := format.Call{
				URL: replace.Replace(test.url), Count: 2, Timeout: format.Duration(30 * time.Second),
				TLS:     &format.CallTLS{CA: "root", SNI: "server", Cert: "client"},
				Headers: map[string]format.Fields{}, Expect: expectation(t, test.expect),
			}
			for name, value := range test.headers {
				call.Headers[name] = format.Fields{value}
			}
			server.HasProxy, server.Log.Path = test.proxy, log
			scene := &expect.Scene{Call: &call, From: append(server.IPs[:0:0], machines["client"].IP),
				Servers: map[string]*expect.Server{"server": server}}
			began := time.Now()
			scene.Begin()
			of := &caller.Caller{From: caller.Machine{Host: machines["client"]}, Certificates: certs}
			results := of.Run(t.Context(), &call)
			if test.logged != "" {
				f, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				for _, flow := range server.Sniffer.Flows(began) {
					fmt.Fprintln(f, strings.ReplaceAll(replace.Replace(test.logged), "FLOW", flow.Client.String()))
				}
				f.Close()
			}
			judge(t, scene.Check(t.Context(), results), test.wrong)
		})
	}
}

// TestRefusedByAProxy: of a request that a server's proxy answered itself, the proxy's log says who called, and how;
// the line of the caller's own proxy says nothing of it.
func TestRefusedByAProxy(t *testing.T) {
	here := func(do func() error) error { return do() }
	server, client := run(t, echo.Config{Workload: "server"}, here), run(t, echo.Config{Workload: "client"}, here)
	server.HasProxy, client.HasProxy = true, true
	server.Log.Path, client.Log.Path = echotest.File(t, nil), echotest.File(t, nil)
	client.IPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for _, test := range []struct{ name, line, expect, wrong string }{
		{"mutual TLS", `"tls":"TLSv1.3","peer":"` + spiffe + `client"`, "{status: 403, wire: mtls, identity: " + spiffe + "client}", ""},
		{"TLS", `"tls":"TLSv1.3","peer":"-"`, "{status: 403, wire: tls, identity: null}", ""},
		{"plain text", `"tls":"-","peer":"-"`, "{status: 403, wire: plaintext, identity: null}", ""},
		{"not mutual TLS", `"tls":"-","peer":"-"`, "{status: 403, wire: mtls}", "wire: want mtls, got plaintext at server"},
		{"another", `"tls":"TLSv1.3","peer":"` + spiffe + `other"`, "{identity: " + spiffe + "client}", "identity: want " + spiffe + "client"},
		{"no line", "", "{wire: mtls}", "no server was reached"},
	} {
		t.Run(test.name, func(t *testing.T) {
			call := format.Call{URL: "http://server/", Count: 1, Expect: expectation(t, test.expect)}
			scene := &expect.Scene{Call: &call, Servers: map[string]*expect.Server{"server": server, "client": client}}
			write := func(to *expect.Server, rest string) {
				line := fmt.Sprintf(`{"call":"c1","remote":"192.0.2.1:7",%s}`+"\n", rest)
				if err := os.WriteFile(to.Log.Path, []byte(line), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, to := range []*expect.Server{server, client} {
				if err := os.Truncate(to.Log.Path, 0); err != nil {
					t.Fatal(err)
				}
			}
			scene.Begin()
			write(client, `"tls":"-","peer":"`+spiffe+`nobody"`)
			if test.line != "" {
				write(server, test.line)
			}
			judge(t, scene.Check(t.Context(), []*caller.Result{{ID: "c1", Status: 403}}), test.wrong)
		})
	}
}
