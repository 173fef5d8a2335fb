package ondemand

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/tests/e2e/internal/hostmesh"
)

// TestControlPlaneAway moves the proxy's stream to another xds-server, and then takes all of them away. What is known
// goes on working; what is not known is answered within a bound, and works once somebody is there to ask.
func TestControlPlaneAway(t *testing.T) {
	f := newFixture(t, options{xdsServers: 2, mesh: policy("ALLOW_ANY", "defaultConfig: {onDemand: true}")})
	defer f.check()
	number := func(i int) request { return request{address: numberedVIP(i) + ":80", authority: numberedName(i)} }
	f.ok(t, number(0))
	f.talk(t, numberedVIP(0)+":9090", "hello", "v1: hello", "v2: hello")
	if held := f.client.Held(); len(held.VirtualHosts) != 1 {
		t.Errorf("the mesh's default does not make it a proxy on demand: it holds virtual hosts %q", held.VirtualHosts)
	}

	load := f.load(number(0))
	victim := f.serverOf(t, f.client)
	f.KillXDS(victim)
	t.Run("the stream moves: a new host in between", func(t *testing.T) {
		r := number(1)
		start := time.Now()
		f.eventually(t, r, from("v1", "v2"))
		t.Logf("answered after %v", time.Since(start))
	})
	other := 1 - victim
	t.Run("the stream has moved", func(t *testing.T) {
		testkit.Eventually(t, takesEffect, func() error {
			n, err := f.XDSMetric(other, "fairlead_xds_server_streams")
			if err == nil && n < 3 {
				err = fmt.Errorf("%v streams", n)
			}
			return err
		})
		f.ok(t, number(2))
		f.talk(t, numberedVIP(2)+":9090", "hello", "v1: hello", "v2: hello")
		f.WriteConfig(later, laterService())
		f.eventually(t, request{address: laterVIP + ":80", authority: "later"}, from("v1", "v2"))
		f.RemoveConfig(later)
		f.eventually(t, request{address: laterVIP + ":80", authority: "later"}, from("outside"))
	})
	t.Run("what was called before is followed by the other server", func(t *testing.T) {
		f.eventually(t, request{address: routedVIP + ":80", authority: "routed"}, from("v1", "v2"))
		f.StartXDS(victim)
		f.WaitXDS(victim)
		f.KillXDS(other)
		f.WriteConfig("routes.yaml", routes(0, 100, "second"))
		f.eventually(t, request{address: routedVIP + ":80", authority: "routed"}, func(a answer) error {
			if got := a.header.Get("X-Route"); got != "second" {
				return fmt.Errorf("route %q", got)
			}
			return from("v2")(a)
		})
	})

	f.KillXDS(victim)
	t.Run("nobody serves: what is known works", func(t *testing.T) {
		for i := range 3 {
			f.ok(t, number(i))
		}
		f.talk(t, numberedVIP(0)+":9090", "hello", "v1: hello", "v2: hello")
	})
	t.Run("nobody serves: what is not known is answered", func(t *testing.T) {
		start := time.Now()
		a, err := call(f.client.Host, number(3))
		t.Logf("HTTP: status %d, %v after %v", a.status, err, time.Since(start))
		if err != nil || a.status != http.StatusRequestTimeout && a.status != http.StatusGatewayTimeout {
			t.Errorf("HTTP: status %d, %v", a.status, err)
		}
		start = time.Now()
		got, err := f.client.Host.Say(numberedVIP(3)+":9090", "hello")
		t.Logf("TCP: %q, %v after %v", got, err, time.Since(start))
		if err := closed(got, err); err != nil {
			t.Errorf("TCP: %v", err)
		}
		f.ok(t, number(0))
	})
	load.stop(t)
	f.StartXDS(0)
	f.StartXDS(1)
	t.Run("somebody serves again", func(t *testing.T) {
		f.eventually(t, number(3), from("v1", "v2"))
		testkit.Eventually(t, takesEffect, func() error {
			return said("v1: hello", "v2: hello")(f.client.Host.Say(numberedVIP(3)+":9090", "hello"))
		})
		f.eventually(t, number(4), from("v1", "v2"))
	})
	t.Run("a restarted proxy is given what it has called by the server that has served it", func(t *testing.T) {
		f.WaitXDS(0)
		f.WaitXDS(1)
		// This one was asked for little by the proxy, and was told the rest when it took the stream over.
		before, taught := f.client.Held(), f.serverOf(t, f.client)
		for range 20 {
			f.client.Restart()
			hostmesh.WaitReady(t, f.client)
			held, at := f.client.Held(), f.serverOf(t, f.client)
			f.ok(t, number(0))
			if at != taught {
				continue
			}
			if lost := missing(before.VirtualHosts, held.VirtualHosts); len(lost) > 0 {
				t.Errorf("virtual hosts %q were forgotten", lost)
			}
			if lost := missing(before.Clusters, held.Clusters); len(lost) > 0 {
				t.Errorf("clusters %q were forgotten", lost)
			}
			return
		}
		t.Errorf("xds-server %d is never chosen again", taught)
	})
}

// serverOf finds the xds-server that a proxy is connected to.
func (f *fixture) serverOf(t *testing.T, p *hostmesh.Proxy) int {
	t.Helper()
	server, err := f.ServerOf(p)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// load sends requests one after another until it is stopped.
type load struct {
	end  chan struct{}
	all  sync.WaitGroup
	sent int
	errs []error
}

func (f *fixture) load(r request) *load {
	l := &load{end: make(chan struct{})}
	l.all.Go(func() {
		for {
			select {
			case <-l.end:
				return
			default:
			}
			a, err := call(f.client.Host, r)
			if err == nil && a.status != http.StatusOK {
				err = fmt.Errorf("status %d", a.status)
			}
			l.sent++
			if err != nil {
				l.errs = append(l.errs, err)
			}
		}
	})
	return l
}

// stop ends the load, no request of which may have failed.
func (l *load) stop(t *testing.T) {
	t.Helper()
	close(l.end)
	l.all.Wait()
	if len(l.errs) > 0 {
		t.Errorf("%d of %d requests failed, the first with %v", len(l.errs), l.sent, l.errs[0])
	}
}
