package caller_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/echo"
	"fairlead.dev/tests/scenarios/internal/echo/echotest"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/resolver"
)

// stage is an application with all kinds of ports, and a name server.
type stage struct {
	from    caller.Machine
	ports   map[string]int
	certs   map[string]*format.Material
	journal *echo.Journal
}

func start(t *testing.T) *stage {
	t.Helper()
	certs, err := format.Issue(map[string]format.Certificate{
		"root": {CA: true}, "other": {CA: true},
		"server": {Issuer: "root", DNSNames: []string{"server", "server.apps.svc.cluster.local"}},
		"client": {Issuer: "root", URIs: []string{"spiffe://cluster.local/ns/apps/sa/client"}},
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{ports: map[string]int{}, certs: certs}
	s.from = caller.Machine{Host: echotest.Machine{}, Search: resolver.Search("apps", "cluster.local"), Resolver: nameServer(t)}
	config := echo.Config{Workload: "server-v1", Shared: t.TempDir(), Resolver: s.from.Resolver, Search: s.from.Search}
	cert, key, ca := echotest.File(t, certs["server"].ChainPEM), echotest.File(t, certs["server"].KeyPEM),
		echotest.File(t, certs["root"].CertPEM)
	for name, app := range map[string]string{
		"http": format.AppHTTP, "http2": format.AppHTTP2, "grpc": format.AppGRPC, "https": format.AppHTTPS, "mutual": format.AppHTTPS,
		"tls": format.AppTLS,
		"tcp": format.AppTCP, "first": format.AppServerFirst, "connect": format.AppConnect,
	} {
		p := echo.Port{Name: name, Port: echotest.Port(), App: app, CertFile: cert, KeyFile: key}
		if name == "mutual" {
			p.ClientCAFile = ca
		}
		s.ports[name] = p.Port
		config.Ports = append(config.Ports, p)
	}
	s.journal = echotest.Run(t, config, nil)
	return s
}

// patience is how long a call may take that must be answered.
const patience = 30 * time.Second

func nameServer(t *testing.T) string {
	t.Helper()
	address := netip.AddrPortFrom(echotest.Home(), uint16(echotest.Port())).String() //nolint:gosec // a port
	packets, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", address)
	if err != nil {
		t.Fatal(err)
	}
	streams, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	home := []netip.Addr{echotest.Home()}
	server := resolver.NewServer(func(_ netip.Addr, name string) resolver.Answer {
		switch name {
		case "server.apps.svc.cluster.local", "www.example.com":
			return resolver.Answer{Exists: true, IPs: home}
		case "alias.apps.svc.cluster.local":
			return resolver.Answer{Name: "www.example.com"}
		case "many.apps.svc.cluster.local":
			var all []netip.Addr
			for i := range 200 {
				all = append(all, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
			}
			return resolver.Answer{Exists: true, IPs: append(all, netip.MustParseAddr("fd00::1"))}
		}
		return resolver.Answer{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, packets, streams) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return packets.LocalAddr().String()
}

// url fills in ports written as {name}.
func (s *stage) url(text string) string {
	for name, port := range s.ports {
		text = strings.ReplaceAll(text, "{"+name+"}", fmt.Sprint(port))
	}
	return text
}

func (s *stage) call(t *testing.T, c format.Call) []*caller.Result {
	t.Helper()
	c.URL = s.url(c.URL)
	c.Count = max(c.Count, 1)
	if c.Timeout == 0 {
		c.Timeout = format.Duration(patience)
	}
	of := caller.Caller{From: s.from, Roots: s.certs["root"].Pool(), Certificates: s.certs}
	results := of.Run(t.Context(), &c)
	if len(results) != c.Count {
		t.Fatalf("%d results of %d", len(results), c.Count)
	}
	return results
}

// TestSchemes makes a call of every scheme and looks at what the application saw.
func TestSchemes(t *testing.T) {
	s := start(t)
	ok := codes.OK
	for _, test := range []struct {
		name, method, version, path string
		status                      int
		grpc                        *codes.Code
		alpn                        string
		call                        format.Call
	}{
		{"http", "GET", "1.1", "/a%2Fb//c/../d?x=1;y=%zz", 200, nil, "", format.Call{URL: "http://server:{http}/a%2Fb//c/../d?x=1;y=%zz"}},
		{"two slashes", "GET", "1.1", "//a//b", 200, nil, "", format.Call{URL: "http://server:{http}//a//b"}},
		{"http 1.0", "GET", "1.0", "/", 200, nil, "", format.Call{URL: "http://server:{http}", Version: "1.0"}},
		{"post", "POST", "1.1", "/", 200, nil, "", format.Call{URL: "http://server:{http}/", Body: "hello"}},
		{"put", "PUT", "1.1", "/", 200, nil, "", format.Call{URL: "http://server:{http}/", Method: "PUT"}},
		{"h2c", "GET", "2", "/a%2Fb//c/../d?x=1", 200, nil, "", format.Call{URL: "h2c://server:{http2}/a%2Fb//c/../d?x=1"}},
		{"h2c two slashes", "GET", "2", "//a%2Fb?", 200, nil, "", format.Call{URL: "h2c://server:{http2}//a%2Fb?"}},
		{"https", "GET", "1.1", "/x", 200, nil, "http/1.1", format.Call{URL: "https://server:{https}/x"}},
		{"h2", "GET", "2", "/x", 200, nil, "h2", format.Call{URL: "h2://server:{https}/x"}},
		{"unknown alpn", "GET", "1.1", "/x", 200, nil, "istio",
			format.Call{URL: "https://server:{https}/x", TLS: &format.CallTLS{ALPN: []string{"istio"}}}},
		{"mutual", "GET", "1.1", "/x", 200, nil, "http/1.1", format.Call{URL: "https://server:{mutual}/x", TLS: &format.CallTLS{Cert: "client"}}},
		{"tls 1.2", "GET", "1.1", "/x", 200, nil, "http/1.1", format.Call{URL: "https://server:{https}/x", TLS: &format.CallTLS{Max: "1.2"}}},
		{"grpc", "POST", "2", echo.GRPCMethod, 200, &ok, "", format.Call{URL: "grpc://server:{grpc}", Body: "hello"}},
		{"grpc method", "POST", "2", "/a.B/C?delay=1ms", 200, &ok, "", format.Call{URL: "grpc://server:{grpc}/a.B/C?delay=1ms"}},
		{"grpcs", "POST", "2", echo.GRPCMethod, 200, &ok, "h2", format.Call{URL: "grpcs://server:{https}"}},
		{"ws", "GET", "1.1", "/ws?x=1", 101, nil, "", format.Call{URL: "ws://server:{http}/ws?x=1", Body: "hello"}},
		{"wss", "GET", "1.1", "/ws", 101, nil, "http/1.1", format.Call{URL: "wss://server:{https}/ws"}},
		{"tcp", "", "", "/", 200, nil, "", format.Call{URL: "tcp://server:{tcp}", Body: "hello"}},
		{"tls", "", "", "/?delay=1ms", 200, nil, "", format.Call{URL: "tls://server:{tls}?delay=1ms"}},
		{"server first", "", "", "/", 200, nil, "", format.Call{URL: "tcp://server:{first}", ServerFirst: true}},
		{"server first, unheeded", "", "", "/", 200, nil, "", format.Call{URL: "tcp://server:{first}"}},
		{"connect", "GET", "1.1", "/", 200, nil, "",
			format.Call{URL: "http://server:{connect}", Method: "CONNECT", Headers: map[string]format.Fields{"host": {"server:{tcp}"}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for name, value := range test.call.Headers {
				test.call.Headers[name] = format.Fields{s.url(value[0])}
			}
			before := time.Now()
			for _, same := range []bool{false, true} {
				test.call.SameConnection, test.call.Count = same, 2
				for _, r := range s.call(t, test.call) {
					if r.Err != nil {
						t.Fatal(r.Err)
					}
					if r.Status != test.status || r.Seen == nil {
						t.Fatalf("status %d, body %s", r.Status, r.Body)
					}
					if r.Seen.Workload != "server-v1" || r.Seen.Method != test.method || r.Seen.Version != test.version || r.Seen.Path != test.path ||
						r.Seen.Call != r.ID {
						t.Errorf("seen %+v", r.Seen)
					}
					if test.call.Method != http.MethodConnect && r.Seen.Body != test.call.Body {
						t.Errorf("body %q", r.Seen.Body)
					}
					if (test.grpc == nil) != (r.GRPC == nil) || test.grpc != nil && *test.grpc != *r.GRPC {
						t.Errorf("gRPC status %v", r.GRPC)
					}
					if test.alpn != "" && r.Seen.TLS.ALPN != test.alpn {
						t.Errorf("ALPN %q", r.Seen.TLS.ALPN)
					}
					if test.name == "mutual" && r.Seen.TLS.PeerURI != "spiffe://cluster.local/ns/apps/sa/client" {
						t.Errorf("TLS %+v", r.Seen.TLS)
					}
					if test.name == "tls 1.2" && r.Seen.TLS.Version != "1.2" {
						t.Errorf("TLS %+v", r.Seen.TLS)
					}
				}
			}
			seen, err := s.journal.Since(t.Context(), before)
			if err != nil {
				t.Fatal(err)
			}
			connections := map[int]int{}
			for _, one := range seen {
				if one.Method != http.MethodConnect {
					connections[one.Connection]++
				}
			}
			want := 3
			if test.version == "1.0" || test.call.Method == http.MethodConnect || test.status == 101 {
				want = 4 // cannot be used again
			}
			if len(connections) != want {
				t.Errorf("%d connections served %v, want %d", len(connections), connections, want)
			}
		})
	}
}

// TestErrors sorts failures.
func TestErrors(t *testing.T) {
	s := start(t)
	closed := echotest.Port()
	for _, test := range []struct {
		name, url string
		tls       *format.CallTLS
		want      []string
	}{
		{"refused", fmt.Sprintf("http://server:%d/", closed), nil, []string{caller.Refused}},
		{"no such name", "http://nobody/", nil, []string{caller.DNS}},
		{"cut", "http://server:{http}/?close=true", nil, []string{caller.Reset}},
		{"cut line", "tcp://server:{tcp}?close=true", nil, []string{caller.Reset}},
		{"cut h2", "h2c://server:{http2}/?close=true", nil, []string{caller.Reset}},
		{"late", "http://server:{http}/?delay=10s", nil, []string{caller.Timeout}},
		{"late h2", "h2c://server:{http2}/?delay=10s", nil, []string{caller.Timeout}},
		{"untrusted", "https://server:{https}/", &format.CallTLS{CA: "other"}, []string{caller.TLS}},
		{"wrong name", "https://www.example.com:{https}/", nil, []string{caller.TLS}},
		{"no certificate", "https://server:{mutual}/", nil, []string{caller.TLS}},
		{"no certificate with TLS 1.2", "https://server:{mutual}/", &format.CallTLS{Max: "1.2"}, []string{caller.TLS}},
		{"TLS to plaintext", "https://server:{http}/", nil, []string{caller.TLS}},
		{"line to TLS", "tcp://server:{https}", nil, []string{caller.Reset}},
	} {
		t.Run(test.name, func(t *testing.T) {
			limit := patience
			if strings.Contains(test.url, "delay") {
				limit = 300 * time.Millisecond
			}
			r := s.call(t, format.Call{URL: test.url, TLS: test.tls, Timeout: format.Duration(limit)})[0]
			if r.Err == nil || !slices.Equal(r.Classes, test.want) {
				t.Errorf("%v: %v, want %v", r.Err, r.Classes, test.want)
			}
		})
	}
	r := s.call(t, format.Call{URL: "grpc://server:{grpc}?codes=503"})[0]
	if r.Err != nil || *r.GRPC != codes.Unavailable {
		t.Errorf("gRPC: %v, %v", r.Err, r.GRPC)
	}
	r = s.call(t, format.Call{URL: "grpc://server:{grpc}?delay=10s", Timeout: format.Duration(100 * time.Millisecond)})[0]
	if *r.GRPC != codes.DeadlineExceeded || !r.Failed(caller.Timeout) {
		t.Errorf("gRPC: %v, %v", r.Err, *r.GRPC)
	}
	r = s.call(t, format.Call{URL: "https://server:{https}/", TLS: &format.CallTLS{CA: "other"}})[0]
	if len(r.Certificates) == 0 {
		t.Error("an untrusted server's certificate is not told")
	}
}

// TestBehaviour asks the application for each of its ways.
func TestBehaviour(t *testing.T) {
	s := start(t)
	id := map[string]format.Fields{"x-request-id": {"one"}}
	for i, want := range []int{503, 503, 200, 200} {
		if r := s.call(t, format.Call{URL: "http://server:{http}/?codes=503,503,200", Headers: id})[0]; r.Status != want ||
			r.Seen.Attempt != i+1 {
			t.Errorf("attempt %d: status %d, attempt %d", i+1, r.Status, r.Seen.Attempt)
		}
	}
	count := map[int]int{}
	for _, r := range s.call(t, format.Call{URL: "http://server:{http}/?codes=503:50,200:50", Count: 300}) {
		count[r.Status]++
	}
	if count[503] < 100 || count[200] < 100 {
		t.Errorf("statuses %v", count)
	}
	lines := []int{}
	for _, r := range s.call(t, format.Call{URL: "tcp://server:{tcp}?codes=503,200", Count: 2, SameConnection: true}) {
		lines = append(lines, r.Status)
	}
	if !slices.Equal(lines, []int{503, 200}) {
		t.Errorf("lines %v", lines)
	}
	r := s.call(t, format.Call{URL: "http://server:{http}/?size=10000&headers=x-a:1,x-b:2&delay=50ms"})[0]
	if r.BodyLength != 10000 || r.Header.Get("X-A") != "1" || r.Header.Get("X-B") != "2" || r.Duration < 50*time.Millisecond || r.Seen == nil {
		t.Errorf("length %d, headers %v, %s", r.BodyLength, r.Header, r.Duration)
	}
	for proxy, want := range map[string]int{"http://server:{http}/": 405, "http://server:{connect}/": 502} {
		if r := s.call(t, format.Call{URL: proxy, Method: "CONNECT",
			Headers: map[string]format.Fields{"host": {"nobody:80"}}})[0]; r.Status != want {
			t.Errorf("CONNECT to nobody: status %d, want %d", r.Status, want)
		}
	}
	if r := s.call(t, format.Call{URL: "http://server:{http}/", Method: "HEAD"})[0]; r.Status != 200 || r.BodyLength != 0 {
		t.Errorf("HEAD: %+v", r)
	}
}

func TestCaller(t *testing.T) {
	s := start(t)
	t.Run("headers", func(t *testing.T) {
		r := s.call(t, format.Call{URL: "http://server:{http}/",
			Headers: map[string]format.Fields{"host": {"shop.example.com"}, "X-One": {"1"}, "x-scenario-call": nil}})[0]
		if r.Seen.Host != "shop.example.com" || r.Seen.Headers.Get("X-One") != "1" || r.Seen.Call != "" || len(r.Seen.Headers) != 1 {
			t.Errorf("seen %+v", r.Seen)
		}
	})
	t.Run("header lists", func(t *testing.T) {
		for _, url := range []string{"http://server:{http}/", "h2c://server:{http}/"} {
			r := s.call(t, format.Call{URL: url, Headers: map[string]format.Fields{"X-One": {"1", "", "2"}, "x-two": {"3"}}})[0]
			if r.Err != nil || !slices.Equal(r.Seen.Headers["X-One"], []string{"1", "", "2"}) || r.Seen.Headers.Get("X-Two") != "3" {
				t.Errorf("%s: %v, seen %+v", url, r.Err, r.Seen)
			}
		}
	})
	t.Run("targets", func(t *testing.T) {
		for _, test := range []struct{ url, target, want string }{
			{"http://server:{http}/x", "/a#b", "/a#b"}, {"http://server:{http}/x", `/a\..\b`, `/a\..\b`}, {"http://server:{http}/x", "*", "*"},
			{"http://server:{http}/x", "http://other.example.com/y?z=1", "http://other.example.com/y?z=1"},
			{"h2c://server:{http}/x", "/a#b", "/a#b"}, {"h2c://server:{http}/x", "//a//b?c", "//a//b?c"}, {"http://server:{http}/x", "", "/x"},
		} {
			r := s.call(t, format.Call{URL: test.url, Target: test.target})[0]
			if r.Err != nil || r.Seen == nil || r.Seen.Path != test.want {
				t.Errorf("%s with target %q: %v, status %d, %s", test.url, test.target, r.Err, r.Status, r.Body)
			}
		}
		if r := s.call(t, format.Call{URL: "h2c://server:{http}/x", Target: "http://a/"})[0]; r.Err == nil || !strings.Contains(r.Err.Error(), "HTTP/2") {
			t.Errorf("an absolute target over HTTP/2: %v, status %d", r.Err, r.Status)
		}
	})
	t.Run("redirects", func(t *testing.T) {
		to := s.url("http://server:{http}/there")
		call := format.Call{URL: "http://server:{http}/?codes=302&headers=location:" + strings.ReplaceAll(to, ":", "%3A")}
		if r := s.call(t, call)[0]; r.Status != 302 || r.Header.Get("Location") != to {
			t.Errorf("status %d, %v", r.Status, r.Header)
		}
		call.FollowRedirects = true
		if r := s.call(t, call)[0]; r.Status != 200 || r.Seen.Path != "/there" {
			t.Errorf("status %d, %+v", r.Status, r.Seen)
		}
	})
	t.Run("cookies", func(t *testing.T) {
		call := format.Call{URL: "http://server:{http}/?headers=set-cookie:a%3Db", Cookies: true, Count: 2}
		if rs := s.call(t, call); rs[1].Seen.Headers.Get("Cookie") != "a=b" {
			t.Errorf("seen %+v", rs[1].Seen)
		}
	})
	t.Run("source", func(t *testing.T) {
		if r := s.call(t, format.Call{URL: "http://server:{http}/", SourceIP: "127.0.0.9"})[0]; r.Seen.SourceIP != "127.0.0.9" {
			t.Errorf("seen %+v", r.Seen)
		}
	})
	t.Run("dns", func(t *testing.T) {
		for name, want := range map[string]int{"many": 201, "alias": 1, "www.example.com.": 1, "server.apps.svc.cluster.local": 1} {
			if r := s.call(t, format.Call{URL: "dns://" + name})[0]; r.Err != nil || len(r.Addresses) != want {
				t.Errorf("%s: %v, %v", name, r.Err, r.Addresses)
			}
		}
		if r := s.call(t, format.Call{URL: "dns://nobody"})[0]; !r.Failed(caller.DNS) {
			t.Errorf("%+v", r)
		}
	})
	t.Run("via", func(t *testing.T) {
		of := caller.Caller{From: caller.Machine{Host: echotest.Machine{}}, Via: &caller.Via{
			IPs: []netip.Addr{echotest.Home()}, Ports: map[int]int{80: s.ports["http"]},
		}}
		call := format.Call{URL: "http://shop.example.com/", Count: 1, Timeout: format.Duration(patience)}
		if r := of.Run(t.Context(), &call)[0]; r.Err != nil || r.Seen.Host != "shop.example.com" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("many", func(t *testing.T) {
		testkit.Quick(t, 3*time.Second, func() time.Duration {
			began := time.Now()
			s.call(t, format.Call{URL: "http://server.apps.svc.cluster.local:{http}/", Count: 300})
			s.call(t, format.Call{URL: "h2c://server:{http}/", Count: 300, Parallel: 10, SameConnection: true})
			return time.Since(began)
		})
	})
	t.Run("background", func(t *testing.T) {
		of := caller.Caller{From: s.from}
		b := of.Begin(t.Context(), &format.Call{URL: s.url("http://server:{http}/"), Rate: 1000, Timeout: format.Duration(patience)})
		deadline := time.Now().Add(patience)
		for {
			seen, err := s.journal.Since(t.Context(), time.Now().Add(-time.Minute))
			if err != nil || time.Now().After(deadline) {
				t.Fatal("nothing comes", err)
			}
			if len(seen) > 50 {
				break
			}
		}
		for _, r := range b.End() {
			if r.Err != nil {
				t.Error(r.Err)
			}
		}
	})
}
