package app_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"fairlead.dev/pkg/testkit"
)

// appPort is where the proxies of these tests take requests for the
// application.
const appPort = 9080

// application serves h as the application behind a proxy.
func application(t *testing.T, h http.Handler) netip.AddrPort {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return netip.MustParseAddrPort(s.Listener.Addr().String())
}

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

// inbound makes a snapshot with one listener in front of the application.
func (m *mesh) inbound(version string, p netip.Addr, to netip.AddrPort, mtls bool) {
	m.set(version,
		[]types.Resource{clusterTo("app", to)},
		[]types.Resource{httpListener(m.t, "inbound", netip.AddrPortFrom(p, appPort), "app", mtls)})
}

// In both protocol variants Envoy becomes ready with what the xds-server has,
// and serves it.
func TestProxyBecomesReady(t *testing.T) {
	for _, tc := range []struct{ name, env string }{
		{"delta", "ISTIO_DELTA_XDS=true"},
		{"state of the world", "ISTIO_DELTA_XDS=false"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMesh(t)
			ca, _ := m.ca("", time.Hour)
			xds, seen, _ := m.xds("")
			p := m.start(ca, xds, tc.env)
			m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), false)
			p.wantReady()
			if status, body, err := get(p.url(appPort, "/")); err != nil || status != http.StatusOK || body != "hello" {
				t.Errorf("application through the proxy: %d %q %v", status, body, err)
			}
			if _, _, nacks := seen.get(); len(nacks) > 0 {
				t.Errorf("Envoy rejected configuration: %v", nacks)
			}
			for _, port := range []int{15020, 15090} {
				status, body, err := get(p.url(port, "/stats/prometheus"))
				if err != nil || status != http.StatusOK || !strings.Contains(body, "envoy_cluster_manager_cds_update_success") {
					t.Errorf("metrics on %d: %d %v, %d bytes", port, status, err, len(body))
				}
				if agents := strings.Contains(body, "fairlead_node_agent_relay_streams 1"); agents != (port == 15020) {
					t.Errorf("metrics on %d: the agent's among them: %v", port, agents)
				}
			}
			p.stop()
			if err := p.wait(); err != nil {
				t.Errorf("agent ended with %v", err)
			}
		})
	}
}

// A request that is in flight when the agent is told to stop is finished. A
// connection that only waits for another request does not keep the proxy.
func TestDrainFinishesRequests(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(ca, xds)
	arrived, release := make(chan struct{}), make(chan struct{})
	m.inbound("1", p.ip, application(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(arrived)
			<-release
		}
		hello(w, r)
	})), false)
	p.wantReady()
	pool := &http.Client{Transport: &http.Transport{}}
	defer pool.CloseIdleConnections()
	resp, err := pool.Get(p.url(appPort, "/"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	type answer struct {
		status int
		body   string
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		status, body, err := get(p.url(appPort, "/slow"))
		answered <- answer{status, body, err}
	}()
	<-arrived
	p.stop()
	testkit.Eventually(t, testkit.Patience, func() error {
		status, _, err := get(p.url(15020, "/healthz/ready"))
		if err == nil && status != http.StatusServiceUnavailable {
			err = fmt.Errorf("still ready: %d", status)
		}
		return err
	})
	p.wantLog("waiting for connections to end", 2) // the drain sees it
	close(release)
	if a := <-answered; a.err != nil || a.status != http.StatusOK || a.body != "hello" {
		t.Errorf("request in flight: %d %q %v", a.status, a.body, a.err)
	}
	if err := p.wait(); err != nil {
		t.Errorf("agent ended with %v", err)
	}
	if err := p.admin.Post(context.Background(), "/ready"); err == nil {
		t.Error("Envoy is still there")
	}
}
