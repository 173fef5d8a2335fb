package clustercheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Ranges of random lengths are compared with every pair.
func TestOverlapsAreFound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func() (out ranges) {
		for range random.IntN(6) {
			out.add(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(random.IntN(4)), byte(random.IntN(4) * 64), 0}), 12+random.IntN(21)).String())
		}
		if random.IntN(4) == 0 {
			out.add("fd00::1")
		}
		return out
	}
	yes := 0
	for range 20000 {
		a, b := some(), some()
		want := false
		for _, x := range a {
			for _, y := range b {
				want = want || x.Overlaps(y)
			}
		}
		x, y, got := a.overlap(b)
		if got != want || got && !x.Overlaps(y) {
			t.Fatalf("%v and %v: %v, %v, %t; want %t", a, b, x, y, got, want)
		}
		if got {
			yes++
		}
	}
	if yes < 1000 || yes > 19000 {
		t.Errorf("%d of 20000 overlap", yes)
	}
}

// A balancer with a name is a gateway if the name leads somewhere.
func TestBalancersHaveNames(t *testing.T) {
	answers := map[string][]netip.Addr{"lb.example.com": {netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("::ffff:203.0.113.8")},
		"self.example.com": {netip.MustParseAddr("127.0.0.1")}, "meta.example.com": {netip.MustParseAddr("169.254.169.254")}}
	for host, want := range map[string]struct {
		verdict Verdict
		part    string
	}{
		"lb.example.com":   {OK, "at lb.example.com (203.0.113.7, 203.0.113.8) port 15443"},
		"self.example.com": {Failed, "resolves to 127.0.0.1"}, "meta.example.com": {Failed, "resolves to 169.254.169.254"},
		"gone.example.com": {Warning, "cannot be resolved from here: no such host"},
	} {
		f := &Facts{network: "n1", gateways: []gateway{{name: "istio-system/eastwest", hosts: []string{host}, port: "15443", open: true}}}
		f.lookUp(t.Context(), func(_ context.Context, host string) ([]netip.Addr, error) {
			if found, ok := answers[host]; ok {
				return found, nil
			}
			return nil, errors.New("no such host")
		})
		r := &report{}
		r.entrance(f)
		if len(r.rows) != 1 || r.rows[0].Verdict != want.verdict || !strings.Contains(r.rows[0].Finding, want.part) {
			t.Errorf("%s: %+v, want %s %q", host, r.rows, want.verdict, want.part)
		}
	}
}

// What a Pod's last words say of an answer.
func TestAnswersAreFound(t *testing.T) {
	for said, want := range map[string]string{
		"warn Not ready yet: HTTP status code 404\nError: timeout waiting for Envoy proxy to become ready": "404",
		"node-agent: the proxy is not ready: 403 Forbidden: RBAC: access denied":                           "403",
		"node-agent: the proxy is not ready: 503 Service Unavailable: no healthy upstream":                 "",
		"timeout waiting: HTTP status code 503":                                                            "", "dial tcp 10.0.0.1:404: connect: connection refused": "",
	} {
		got := ""
		if m := answered.FindStringSubmatch(said); m != nil {
			got = m[1]
		}
		if got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}

func TestClocksApart(t *testing.T) {
	for apart, want := range map[time.Duration]Verdict{0: OK, 4 * time.Second: OK, -10 * time.Second: Warning, time.Minute: Failed,
		-time.Hour: Failed} {
		r := &report{}
		r.clocks(&Facts{skew: time.Hour + apart}, &Facts{skew: time.Hour})
		if len(r.rows) != 1 || r.rows[0].Verdict != want {
			t.Errorf("%s apart: %+v, want %s", apart, r.rows, want)
		}
	}
}

// The most specific host of serviceSettings counts, else Istio's default.
func TestWhichServicesAreLocal(t *testing.T) {
	f := &Facts{Cluster: Cluster{Namespace: "istio-system"}, local: map[string]bool{
		"*.shop.svc.cluster.local": true, "cart.shop.svc.cluster.local": false, "*.kube-system.svc.cluster.local": false,
	}}
	for name, want := range map[string]bool{"shop/web": true, "shop/cart": false, "kube-system/dns": false, "default/kubernetes": true,
		"istio-system/istiod": true, "default/web": false} {
		if got := f.isLocal(name); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}

// What differs in two Services of one name.
func TestServicesOfOneNameAreCompared(t *testing.T) {
	http, grpc := port{80, "http"}, port{80, "grpc"}
	with := func(name string, p port) service { return service{ports: map[string]port{name: p}} }
	for name, c := range map[string]struct {
		a, b    service
		verdict Verdict
		part    string
	}{
		"the same":         {with("http", http), with("http", http), OK, ""},
		"another number":   {with("http", http), with("http", port{81, "http"}), Warning, "80 in west and 81 in east"},
		"another protocol": {with("x", http), with("x", grpc), Failed, "http in west and grpc in east"},
		"no such port":     {with("x", http), service{}, Failed, "is not in east"},
		"one more":         {service{}, with("x", http), Failed, "is not in west"},
		"headless":         {service{headless: true}, service{}, Failed, "headless in west and not in east"},
		"headless there":   {service{}, service{headless: true}, Failed, "headless in east and not in west"},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, what := c.a.differs(c.b, "west", "east")
			if verdict != c.verdict || !strings.Contains(what, c.part) {
				t.Errorf("%s %q, want %s %q", verdict, what, c.verdict, c.part)
			}
		})
	}
	// However many differ, the rows are bounded, and say how many are not named.
	a, b := &Facts{services: map[string]service{}}, &Facts{services: map[string]service{}}
	for i := range 100 {
		name := fmt.Sprintf("shop/s%d", i)
		a.services[name], b.services[name] = service{headless: true}, service{}
	}
	r := &report{}
	r.compareServices(a, b)
	if n := len(r.rows); n != maxDiffering+1 || !strings.Contains(r.rows[n-1].Finding, "80 more") {
		t.Errorf("%d rows", n)
	}
}
