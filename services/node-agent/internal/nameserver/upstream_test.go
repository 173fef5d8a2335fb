package nameserver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"fairlead.dev/pkg/testkit"
)

// forger is a name server whose UDP side sends the answers that a test makes, and whose TCP side sends the true one,
// 192.0.2.7.
type forger struct {
	address string
	packets *net.UDPConn
	other   *net.UDPConn // of another port

	mu    sync.Mutex
	asked []*dns.Msg
	ports map[int]bool
}

// startForger starts a forger. forge is called with the true answer to every question by UDP and returns the answers
// sent.
func startForger(t *testing.T, forge func(truth *dns.Msg) []*dns.Msg) *forger {
	t.Helper()
	l := &forger{ports: map[int]bool{}}
	packets, stream, err := listen(testkit.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	other, err := net.ListenUDP(networkUDP, &net.UDPAddr{IP: packets.LocalAddr().(*net.UDPAddr).IP})
	if err != nil {
		t.Fatal(err)
	}
	l.packets, l.other, l.address = packets, other, packets.LocalAddr().String()
	tcp := &dns.Server{Listener: stream, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(truth(q)) })}
	var done sync.WaitGroup
	started := make(chan struct{})
	tcp.NotifyStartedFunc = func() { close(started) }
	done.Go(func() { _ = tcp.ActivateAndServe() })
	<-started
	done.Go(func() { l.serve(forge) })
	t.Cleanup(func() {
		_, _, _ = tcp.Shutdown(), packets.Close(), other.Close()
		done.Wait()
	})
	return l
}

func truth(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.Answer = []dns.RR{a(q.Question[0].Name, "192.0.2.7", 60)}
	return m
}

func a(name, ip string, ttl uint32) dns.RR {
	return &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}, A: net.ParseIP(ip)}
}

func cname(name, target string) dns.RR {
	return &dns.CNAME{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: 60}, Target: target}
}

func (l *forger) serve(forge func(*dns.Msg) []*dns.Msg) {
	buffer := make([]byte, dns.MaxMsgSize)
	for {
		n, from, err := l.packets.ReadFromUDP(buffer)
		if err != nil {
			return
		}
		q := new(dns.Msg)
		if q.Unpack(buffer[:n]) != nil {
			continue
		}
		l.mu.Lock()
		l.asked = append(l.asked, q)
		l.ports[from.Port] = true
		l.mu.Unlock()
		for _, m := range forge(truth(q)) {
			raw, err := m.Pack()
			if err != nil {
				panic(err)
			}
			if strings.HasPrefix(strings.ToLower(q.Question[0].Name), "port") && m.Answer[0].(*dns.A).A.String() != "192.0.2.7" {
				_, _ = l.other.WriteToUDP(raw, from)
				continue
			}
			_, _ = l.packets.WriteToUDP(raw, from)
		}
	}
}

// forged is the true answer with another address and further changes.
func forged(truth *dns.Msg, change func(*dns.Msg)) *dns.Msg {
	m := truth.Copy()
	m.Answer = []dns.RR{a(truth.Question[0].Name, "203.0.113.66", 60)}
	change(m)
	return m
}

// A client gets the true answer, and the cache has no forged record.
func TestForgedAnswersAreIgnored(t *testing.T) {
	other := "other.example."
	for name, tc := range map[string]struct {
		host  string
		forge func(truth *dns.Msg) []*dns.Msg
		want  string // the result of fixture.ask
	}{
		"another id": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			return []*dns.Msg{forged(m, func(e *dns.Msg) { e.Id++ }), m}
		}, "NOERROR 192.0.2.7/60"},
		"another question": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			return []*dns.Msg{forged(m, func(e *dns.Msg) { e.Question[0].Name = other }), m}
		}, "NOERROR 192.0.2.7/60"},
		"another type": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			return []*dns.Msg{forged(m, func(e *dns.Msg) { e.Question[0].Qtype = dns.TypeAAAA }), m}
		}, "NOERROR 192.0.2.7/60"},
		"another class": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			return []*dns.Msg{forged(m, func(e *dns.Msg) { e.Question[0].Qclass = dns.ClassCHAOS }), m}
		}, "NOERROR 192.0.2.7/60"},
		"other letters: asked by TCP": {"a-name-of-many-letters.example.", func(m *dns.Msg) []*dns.Msg {
			return []*dns.Msg{forged(m, func(e *dns.Msg) { e.Question[0].Name = strings.ToLower(e.Question[0].Name) })}
		}, "NOERROR 192.0.2.7/60"},
		"no question: asked by TCP": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			return []*dns.Msg{forged(m, func(e *dns.Msg) { e.Question = nil })}
		}, "NOERROR 192.0.2.7/60"},
		"a question": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			return []*dns.Msg{forged(m, func(e *dns.Msg) { e.Response = false }), m}
		}, "NOERROR 192.0.2.7/60"},
		"another port": {"port.example.", func(m *dns.Msg) []*dns.Msg {
			return []*dns.Msg{forged(m, func(*dns.Msg) {}), m}
		}, "NOERROR 192.0.2.7/60"},
		"many guesses: asked by TCP": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			var out []*dns.Msg
			for i := range maxStray + 1 {
				out = append(out, forged(m, func(e *dns.Msg) { e.Id += uint16(i) + 1 }))
			}
			return out
		}, "NOERROR 192.0.2.7/60"},
		"a datagram that is too large": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			large := forged(m, func(e *dns.Msg) {
				for range 1000 {
					e.Answer = append(e.Answer, a(e.Question[0].Name, "203.0.113.66", 60))
				}
			})
			return []*dns.Msg{large, m}
		}, "NOERROR 192.0.2.7/60"},
		"records of other names": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			m.Answer = append(m.Answer, a(other, "203.0.113.66", 60), cname(other, "evil."))
			m.Ns = append(m.Ns, &dns.NS{Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeNS, Class: dns.ClassINET, Ttl: 60}, Ns: "evil."})
			m.Extra = append(m.Extra, a(other, "203.0.113.66", 60))
			return []*dns.Msg{m}
		}, "NOERROR 192.0.2.7/60"},
		"an alias, and another's": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			m.Answer = []dns.RR{cname(m.Question[0].Name, other), a(other, "192.0.2.8", 60), a("third.example.", "203.0.113.66", 60)}
			return []*dns.Msg{m}
		}, "NOERROR other.example. 192.0.2.8/60"},
		"aliases in a circle": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			m.Answer = []dns.RR{cname(m.Question[0].Name, other), cname(other, m.Question[0].Name)}
			return []*dns.Msg{m}
		}, "NOERROR other.example. www.example."},
		"records of a name that does not exist": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			return []*dns.Msg{forged(m, func(e *dns.Msg) { e.Rcode = dns.RcodeNameError })}
		}, "NXDOMAIN"},
		"for ever": {"www.example.", func(m *dns.Msg) []*dns.Msg {
			m.Answer = []dns.RR{a(m.Question[0].Name, "192.0.2.7", 1<<31-1)}
			return []*dns.Msg{m}
		}, "NOERROR 192.0.2.7/300"},
	} {
		t.Run(name, func(t *testing.T) {
			l := startForger(t, tc.forge)
			f := start(t, true, l.address)
			for _, again := range []string{"", ", again"} {
				if got := strings.ToLower(f.ask(networkUDP, tc.host, dns.TypeA)); got != strings.ToLower(tc.want) {
					t.Errorf("%s%s: %q, want %q", tc.host, again, got, tc.want)
				}
			}
			kept := f.upstream.cache
			kept.mu.Lock()
			defer kept.mu.Unlock()
			for k, e := range kept.entries {
				if all := e.answer.String(); strings.Contains(all, "203.0.113") || strings.Contains(all, "evil") {
					t.Errorf("kept for %v: %s", k, all)
				}
			}
		})
	}
}

func TestPortIdAndLettersDifferForEveryQuestion(t *testing.T) {
	l := startForger(t, func(m *dns.Msg) []*dns.Msg { return []*dns.Msg{m} })
	f := start(t, true, l.address)
	const questions = 16
	for i := range questions {
		f.ask(networkUDP, fmt.Sprintf("name-%d.a-long-domain.example.", i), dns.TypeA)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ids, spellings := map[uint16]bool{}, map[string]bool{}
	for _, q := range l.asked {
		ids[q.Id] = true
		_, domain, _ := strings.Cut(q.Question[0].Name, ".")
		spellings[domain] = true
	}
	if len(ids) < questions-1 || len(l.ports) < questions-2 || len(spellings) < questions-1 {
		t.Errorf("%d ids, %d ports, %d spellings of %d questions", len(ids), len(l.ports), len(spellings), questions)
	}
}

// The number of queries that wait is bounded. The answer spells the name as the query does.
func TestEqualQueriesShareOneUpstreamQuestion(t *testing.T) {
	o := startUpstream(t, make(chan struct{}))
	f := start(t, true, o.address)
	conn, err := net.Dial(networkUDP, f.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := range maxWaiting + 1000 {
		m := new(dns.Msg).SetQuestion("www.example.", dns.TypeA)
		if i%2 == 0 {
			m.Question[0].Name = "WWW.Example."
		}
		raw, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(raw); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if o.asked.Load() == 0 || len(f.upstream.waiting) < 2 {
			return errors.New("no query waits yet")
		}
		return nil
	})
	testkit.Eventually(t, testkit.Patience, func() error { // a query beyond the bound has a goroutine until it is refused
		if n := testkit.Goroutines("nameserver.(*upstream)"); n > maxWaiting+maxAsking {
			return fmt.Errorf("%d goroutines", n)
		}
		return nil
	})
	close(o.hold)
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := len(f.upstream.waiting); n > 0 {
			return fmt.Errorf("%d queries wait", n)
		}
		return nil
	})
	if n := o.asked.Load(); n != 1 {
		t.Errorf("upstream was asked %d times", n)
	}
	testkit.Eventually(t, testkit.Patience, func() error { // the socket drops datagrams while it is full of the others
		m, err := f.exchange(networkUDP, "wWw.eXample.", dns.TypeA)
		if err == nil && (m.Question[0].Name != "wWw.eXample." || m.Answer[0].Header().Name != "wWw.eXample.") {
			t.Errorf("the answer does not spell the name as the query: %v", m)
		}
		return err
	})
}

func TestCacheMemoryIsBounded(t *testing.T) {
	c := newCache(testkit.NewClock(time.Now()))
	large := func(name string, records int) (key, *dns.Msg) {
		m := new(dns.Msg).SetQuestion(name, dns.TypeA)
		for range records {
			m.Answer = append(m.Answer, a(name, "192.0.2.7", 60))
		}
		return keyOf(m), m
	}
	for i := range 500 {
		c.put(large(fmt.Sprintf("n%d.example.", i), 300))
	}
	if c.bytes > maxCachedBytes || len(c.entries) < 10 {
		t.Errorf("%d bytes in %d entries", c.bytes, len(c.entries))
	}
	k, m := large("largest.example.", 1500)
	if c.put(k, m); c.get(k) != nil {
		t.Error("an answer that is too large is kept")
	}
	for k := range c.entries {
		c.drop(k)
	}
	if c.bytes != 0 {
		t.Errorf("%d bytes in an empty cache", c.bytes)
	}
}

func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	f := start(t, true)
	var silent []net.Conn
	defer func() {
		for _, c := range silent {
			_ = c.Close()
		}
	}()
	for range maxConnections + 20 {
		c, err := net.Dial(networkTCP, f.address)
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	if got := f.ask(networkTCP, "server.", dns.TypeA); got != "NOERROR 10.0.0.1/30" {
		t.Errorf("got %q", got)
	}
	if err := silent[0].SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest is not closed: %v", err)
	}
}
