package consul

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/consultest"
)

// answers answers everything with a status, a body and an index.
func answers(status int, body, index string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Consul-Index", index)
		w.Header().Set("X-Consul-KnownLeader", "true")
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // the client may not want all of it
	}
}

// Whatever an address answers in the place of Consul, requests go on, `fairlead sources` says what is wrong, and what
// Consul has is followed again as soon as it answers.
func TestNothingIsBelievedThatConsulDoesNotSay(t *testing.T) {
	fake := consultest.StartFake(nil)
	t.Cleanup(fake.Stop)
	fake.Set("web", runs(t, "web-0").registration("web", "passing"), runs(t, "web-1").registration("web", "passing"))
	probed := []application{runs(t, "a"), runs(t, "b")}
	rules := "  - {services: ['*'], namespace: shop, port: 80, protocol: http}"
	r := start(t, map[string]string{"east": ofFake(fake, rules)})
	r.reaches("http://web.service.consul/", "web-0")
	stream := r.load("web.service.consul", 100)
	turn := 0
	follows := func(t *testing.T) {
		t.Helper()
		turn++
		fake.Set("probed", probed[turn%2].registration("probed", "passing"), probed[(turn+1)%2].registration("probed", "critical"))
		r.reaches("http://probed.service.consul/", probed[turn%2].name)
		r.says("east", "SYNCED")
	}
	follows(t)
	for _, tc := range []struct {
		name string
		lie  http.HandlerFunc
		says string
	}{
		{"no leader", answers(500, "No cluster leader", "0"), "No cluster leader"},
		{"too many connections", answers(429, "Your IP is issuing too many concurrent connections", "0"), "429"},
		{"a token that is revoked", answers(403, "ACL not found", "0"), "ACL not found"},
		{"a server that fails", answers(500, "rpc error", "0"), "rpc error"},
		{"a page of somebody else", answers(200, "<html>", "1", "Content-Type: text/html"), "text/html"},
		{"an empty catalog", answers(200, "{}", "99999"), "no service at all"},
		{"an empty catalog with index 0", answers(200, "{}", "0"), "X-Consul-Index 0"},
		{"a catalog that ends in the middle", answers(200, `{"consul": [], "we`, "99999"), "unexpected EOF"},
		{"two catalogs in one answer", answers(200, `{"consul": []}{"consul": []}`, "99999"), "follows the JSON value"},
		{"a catalog without end", func(w http.ResponseWriter, _ *http.Request) {
			answers(200, `{"consul": ["`, "99999")(w, nil)
			for some := []byte(strings.Repeat("x", 1<<16)); ; {
				if _, err := w.Write(some); err != nil {
					return
				}
			}
		}, "larger than"},
		{"servers without a leader", answers(200, `{"consul": []}`, "99999", "X-Consul-KnownLeader: false"), "no leader"},
	} {
		stream.Holds(t, tc.name, 0, func(t *testing.T) {
			fake.Lie(tc.lie)
			fake.Disconnect() // what waits, too
			r.says("east", tc.says)
			fake.Lie(nil)
			follows(t)
		})
	}
	stream.Holds(t, "a CA that does not verify it", 0, func(t *testing.T) {
		r.declare("east", declaration(fake.URL, "example.com", testkit.CertPEM(testkit.PKI(t).Cert), rules))
		r.says("east", "certificate")
		r.declare("east", ofFake(fake, rules))
		follows(t)
	})
	// A filtered answer says less than there is; what it lacks stays.
	stream.Holds(t, "an answer that is filtered", 5*time.Second, func(t *testing.T) {
		fake.Lie(answers(200, `{"consul": []}`, "99999", "X-Consul-Results-Filtered-By-ACLs: true"))
		fake.Disconnect()
		r.says("east", "service:read")
		fake.Lie(nil)
		follows(t)
	})
}

// A service that changes 10,000 times a second takes nothing from the others: a change of theirs is in Envoy as soon as
// before.
func TestOneServiceThatAlwaysChangesHindersNoOther(t *testing.T) {
	fake := consultest.StartFake(nil)
	t.Cleanup(fake.Stop)
	probed := []application{runs(t, "a"), runs(t, "b")}
	r := start(t, map[string]string{"east": ofFake(fake, "  - {services: ['*'], namespace: shop, port: 80, protocol: http}")})
	turn := 0
	median := func() time.Duration {
		took := make([]time.Duration, 9)
		for i := range took {
			turn++
			began := time.Now()
			fake.Set("probed", probed[turn%2].registration("probed", "passing"), probed[(turn+1)%2].registration("probed", "critical"))
			r.reaches("http://probed.service.consul/", probed[turn%2].name)
			took[i] = time.Since(began)
		}
		return middle(took)
	}
	median() // the first ones make the cluster
	quiet := median()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed := make(chan int, 1)
	noisy := make([]consultest.Registration, 20)
	for i := range noisy {
		noisy[i] = consultest.Instance(fmt.Sprint("n", i), "noisy", fmt.Sprint("noisy-", i), "passing")
	}
	fake.Set("noisy", noisy...)
	began := time.Now()
	go func() {
		n := 0
		for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
			for ; n < int(time.Since(began).Seconds()*10_000); n++ {
				fake.Change(consultest.Instance(fmt.Sprint("n", n%20), "noisy", fmt.Sprint("noisy-", n%20), []string{"passing", "warning"}[n/20%2]))
			}
		}
		changed <- n
	}()
	beside := median()
	took := time.Since(began)
	cancel()
	n := <-changed
	t.Logf("%s without, %s beside %.0f changes a second of another service", quiet, beside, float64(n)/took.Seconds())
	if beside > 2*quiet+200*time.Millisecond {
		t.Errorf("a change takes %s, and %s without the other service", beside, quiet)
	}
}

// middle is the median.
func middle(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
