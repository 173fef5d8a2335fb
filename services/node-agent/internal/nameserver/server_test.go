package nameserver

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/pkg/testkit"
)

// upstreamServer is a name server that knows the names ending in "example.", and fails those beginning with "fail".
type upstreamServer struct {
	address string
	asked   atomic.Int64
	hold    chan struct{} // queries wait until it is closed, if there is one
}

func startUpstream(t *testing.T, hold chan struct{}) *upstreamServer {
	t.Helper()
	o := &upstreamServer{hold: hold}
	packets, stream, err := listen(testkit.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	o.address = packets.LocalAddr().String()
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: o}, {Listener: stream, Handler: o}} {
		started, ended := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(ended)
			_ = s.ActivateAndServe()
		}()
		<-started
		t.Cleanup(func() { _ = s.Shutdown(); <-ended })
	}
	return o
}

func (o *upstreamServer) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	o.asked.Add(1)
	if o.hold != nil {
		<-o.hold
	}
	m, asked := new(dns.Msg).SetReply(query), query.Question[0].Name
	name := strings.ToLower(asked)
	switch {
	case strings.HasPrefix(name, "fail"):
		m.Rcode = dns.RcodeServerFailure
	case strings.HasPrefix(name, "big") && w.LocalAddr().Network() == networkUDP:
		m.Truncated = true
	case strings.HasSuffix(name, "example."):
		rr, err := dns.NewRR(asked + " 60 IN A 192.0.2.7")
		if err != nil {
			panic(err)
		}
		m.Answer = []dns.RR{rr}
	default:
		m.Rcode = dns.RcodeNameError
		soa, err := dns.NewRR(". 60 IN SOA a. b. 1 2 3 4 30")
		if err != nil {
			panic(err)
		}
		m.Ns = []dns.RR{soa}
	}
	_ = w.WriteMsg(m)
}

type fixture struct {
	*Server
	t       *testing.T
	address string
	clock   *testkit.Clock
}

// start runs a Server with the given upstream servers until the test ends, and checks that it leaves no goroutine.
func start(t *testing.T, table bool, upstream ...string) *fixture {
	t.Helper()
	before := serving()
	conf := &dns.ClientConfig{Port: "53", Search: []string{"apps.svc.cluster.local"}}
	f := &fixture{t: t, clock: testkit.NewClock(time.Now())}
	var err error
	f.Server, err = New(Config{
		Addresses: []netip.AddrPort{testkit.FreeAddress(t)}, Namespace: "apps", Resolv: conf,
		Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Clock: f.clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	f.upstream.servers = upstream
	f.address = f.Addresses()[0].String()
	if table {
		f.take()
	}
	t.Cleanup(func() { // after the end of Run
		testkit.Eventually(t, testkit.Patience, func() error {
			if n := serving(); n > before {
				return fmt.Errorf("%d goroutines, %d before", n, before)
			}
			return nil
		})
	})
	testkit.Background(t, f.Run)
	return f
}

// serving counts the goroutines of Servers, and those that answer queries by UDP or TCP, for upstream servers too.
func serving() int { return testkit.Goroutines("nameserver.(*Server)", "miekg/dns.(*Server)") }

func (f *fixture) take() {
	f.t.Helper()
	packed, err := anypb.New(names())
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.Take(packed); err != nil {
		f.t.Fatal(err)
	}
}

// ask sends a query and returns the answer as text: the code, then aliases and addresses with TTL.
func (f *fixture) ask(network, name string, kind uint16) string {
	f.t.Helper()
	m, err := f.exchange(network, name, kind)
	if err != nil {
		f.t.Fatal(err)
	}
	words := []string{dns.RcodeToString[m.Rcode]}
	if m.Truncated {
		words = append(words, "truncated")
	}
	for _, r := range m.Answer {
		switch r := r.(type) {
		case *dns.A:
			words = append(words, fmt.Sprintf("%s/%d", r.A, r.Hdr.Ttl))
		case *dns.CNAME:
			words = append(words, r.Target)
		}
	}
	return strings.Join(words, " ")
}

func (f *fixture) exchange(network, name string, kind uint16) (*dns.Msg, error) {
	m, _, err := (&dns.Client{Net: network, Timeout: 10 * time.Second}).Exchange(new(dns.Msg).SetQuestion(name, kind), f.address)
	return m, err
}

// Whoever forges the address of a query has the victim sent a small multiple of it, whatever the query asks for.
func TestAnswersByUDPAreBounded(t *testing.T) {
	f := start(t, true)
	table := names()
	large := table.GetTable()["server.apps.svc.cluster.local"]
	for i := range 1999 {
		large.Ips = append(large.Ips, fmt.Sprintf("10.1.%d.%d", i/250, i%250))
	}
	packed, err := anypb.New(table)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Take(packed); err != nil {
		t.Fatal(err)
	}
	query := new(dns.Msg).SetQuestion("server.apps.svc.cluster.local.", dns.TypeA).SetEdns0(65535, false)
	m, _, err := (&dns.Client{Net: networkUDP, UDPSize: 65535, Timeout: 10 * time.Second}).Exchange(query, f.address)
	if err != nil {
		t.Fatal(err)
	}
	m.Compress = true // as it was on the wire
	if size := m.Len(); size > maxDatagramToLoopback || !m.Truncated || len(m.Answer) == 0 {
		t.Errorf("%d bytes, truncated: %t, %d records", size, m.Truncated, len(m.Answer))
	}
	m, err = f.exchange(networkTCP, "server.apps.svc.cluster.local.", dns.TypeA)
	if err != nil || len(m.Answer) != 2000 {
		t.Errorf("by TCP %d records, %v", len(m.Answer), err)
	}
	other := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 53}
	if got := maxDatagram(query, other); got != maxDatagramToOthers {
		t.Errorf("to another machine %d bytes", got)
	}
	if got := maxDatagram(new(dns.Msg), other); got != dns.MinMsgSize {
		t.Errorf("without EDNS %d bytes", got)
	}
}

func TestAnswersFromTableAndUpstream(t *testing.T) {
	o := startUpstream(t, nil)
	f := start(t, true, o.address)
	for _, network := range []string{networkUDP, networkTCP} {
		for name, want := range map[string]string{
			"server.": "NOERROR 10.0.0.1/30", "www.example.com.apps.svc.cluster.local.": "NOERROR www.example.com. 240.240.0.1/30",
			"WWW.example.": "NOERROR 192.0.2.7/60", "nobody.": "NXDOMAIN", "fail.": "SERVFAIL",
		} {
			if got := f.ask(network, name, dns.TypeA); got != want {
				t.Errorf("%s %s: %q, want %q", network, name, got, want)
			}
		}
	}
	if got := f.ask(networkUDP, "server.", dns.TypeAAAA); got != "NOERROR" {
		t.Errorf("no address of the family: %q", got)
	}
	if got := f.ask(networkUDP, "server.", dns.TypeTXT); got != "NXDOMAIN" {
		t.Errorf("another type goes upstream: %q", got)
	}
	if got := f.ask(networkUDP, "big.example.", dns.TypeA); got != "NOERROR 192.0.2.7/60" {
		t.Errorf("an answer that is truncated by UDP: %q", got)
	}
	if n := testutil.ToFloat64(f.metrics.requests.WithLabelValues(networkUDP, fromTable)); n != 3 {
		t.Errorf("%v answers from the table", n)
	}
}

func TestWithoutATableQueriesFail(t *testing.T) {
	o := startUpstream(t, nil)
	f := start(t, false, o.address)
	if got := f.ask(networkUDP, "www.example.", dns.TypeA); got != "SERVFAIL" {
		t.Errorf("before the table: %q", got)
	}
	f.take()
	if got := f.ask(networkUDP, "www.example.", dns.TypeA); got != "NOERROR 192.0.2.7/60" {
		t.Errorf("after it: %q", got)
	}
	many := &anypb.Any{TypeUrl: "type.googleapis.com/istio.networking.nds.v1.NameTable", Value: bytes.Repeat([]byte{0x0a, 0}, maxNames+1)}
	if err := f.Take(many); err == nil || !strings.Contains(err.Error(), "200001 names") {
		t.Errorf("a table of many names: %v", err)
	}
	if got := f.ask(networkUDP, "server.", dns.TypeA); got != "NOERROR 10.0.0.1/30" {
		t.Errorf("the last table: %q", got)
	}
	wrong, err := anypb.New(wrapperspb.String("x"))
	if err != nil {
		t.Fatal(err)
	}
	if f.Take(wrong) == nil {
		t.Error("another message was accepted as a table")
	}
}

func TestNextServerIsAskedAfterAFailure(t *testing.T) {
	o := startUpstream(t, nil)
	f := start(t, true, testkit.FreeAddress(t).String(), o.address)
	if got := f.ask(networkUDP, "www.example.", dns.TypeA); got != "NOERROR 192.0.2.7/60" {
		t.Errorf("got %q", got)
	}
	alone := start(t, true)
	if got := alone.ask(networkUDP, "other.example.", dns.TypeA); got != "SERVFAIL" {
		t.Errorf("without a server: %q", got)
	}
	if n := testutil.ToFloat64(alone.metrics.failures); n != 1 {
		t.Errorf("%v failures", n)
	}
}

func TestAnswersAreCachedForTheirTTL(t *testing.T) {
	o := startUpstream(t, nil)
	f := start(t, true, o.address)
	expect := func(name, want string, asked int64) {
		t.Helper()
		if got := f.ask(networkUDP, name, dns.TypeA); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if n := o.asked.Load(); n != asked {
			t.Errorf("%s: upstream was asked %d times, want %d", name, n, asked)
		}
	}
	expect("www.example.", "NOERROR 192.0.2.7/60", 1)
	f.clock.Advance(20 * time.Second)
	expect("WWW.example.", "NOERROR 192.0.2.7/40", 1)
	f.clock.Advance(40 * time.Second)
	expect("www.example.", "NOERROR 192.0.2.7/60", 2)
	expect("nobody.", "NXDOMAIN", 3)
	f.clock.Advance(29 * time.Second)
	expect("nobody.", "NXDOMAIN", 3)
	f.clock.Advance(time.Second)
	expect("nobody.", "NXDOMAIN", 4)
	expect("fail.", "SERVFAIL", 5)
	expect("fail.", "SERVFAIL", 6)
	for i := range 2 * maxCached {
		name := fmt.Sprintf("n%d.example.", i)
		m := new(dns.Msg).SetQuestion(name, dns.TypeA)
		rr, err := dns.NewRR(name + " 60 IN A 192.0.2.7")
		if err != nil {
			t.Fatal(err)
		}
		k := keyOf(m)
		m.Answer = []dns.RR{rr}
		f.upstream.cache.put(k, m)
	}
	if n := len(f.upstream.cache.entries); n != maxCached {
		t.Errorf("%d answers are kept", n)
	}
}

// While upstream servers are silent, queries beyond maxAsking fail at once, and names of the mesh are answered.
func TestUpstreamQuestionsAreBounded(t *testing.T) {
	o := startUpstream(t, make(chan struct{}))
	f := start(t, true, o.address)
	var waiting sync.WaitGroup
	for i := range maxAsking {
		waiting.Go(func() { _, _ = f.exchange(networkUDP, fmt.Sprintf("n%d.example.", i), dns.TypeA) })
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := len(f.upstream.asking); n != maxAsking {
			return fmt.Errorf("%d queries wait", n)
		}
		return nil
	})
	if got := f.ask(networkUDP, "more.example.", dns.TypeA); got != "SERVFAIL" {
		t.Errorf("one more: %q", got)
	}
	if got := f.ask(networkUDP, "server.", dns.TypeA); got != "NOERROR 10.0.0.1/30" {
		t.Errorf("a name of the mesh: %q", got)
	}
	close(o.hold)
	waiting.Wait()
}

func TestMalformedQueriesGetAnError(t *testing.T) {
	f := start(t, true)
	client := &dns.Client{Timeout: 5 * time.Second}
	two := new(dns.Msg).SetQuestion("server.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	update := new(dns.Msg).SetUpdate("server.")
	for name, m := range map[string]*dns.Msg{"two questions": two, "an update": update} {
		got, _, err := client.Exchange(m, f.address)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Rcode == dns.RcodeSuccess {
			t.Errorf("%s: %v", name, got)
		}
	}
	none := new(dns.Msg)
	none.Id = 7
	if got, _, err := client.Exchange(none, f.address); err != nil || got.Rcode == dns.RcodeSuccess {
		t.Errorf("no question: %v, %v", got, err)
	}
}
