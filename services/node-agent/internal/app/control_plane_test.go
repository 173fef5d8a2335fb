package app_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// Neither a ca nor an xds-server has to be there when a proxy starts. Until
// they are, the proxy is alive, not ready, and says why.
func TestStartsBeforeControlPlane(t *testing.T) {
	m := newMesh(t)
	caAddress, xdsAddress := testkit.FreeAddress(t).String(), testkit.FreeAddress(t).String()
	p := m.start(caAddress, xdsAddress)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), false)
	notReady := func(why string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			status, body, err := get(p.url(15020, "/healthz/ready"))
			if err == nil && (status != http.StatusServiceUnavailable || !strings.Contains(body, why)) {
				err = fmt.Errorf("%d %q, want 503 and %q", status, body, why)
			}
			return err
		})
	}
	notReady("no certificate yet")
	if status, _, err := get(p.url(15020, "/livez")); err != nil || status != http.StatusOK {
		t.Errorf("alive: %d %v", status, err)
	}
	m.ca(caAddress, time.Hour)
	notReady("envoy has not received its clusters")
	m.xds(xdsAddress)
	p.wantReady()
}

// When an xds-server dies the proxy is connected to the other one, tells it
// which versions it holds, and takes the next change from there.
func TestFailover(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	type server struct {
		seen *streams
		stop func()
	}
	var servers [2]server
	var addresses [2]string
	for i := range servers {
		addresses[i], servers[i].seen, servers[i].stop = m.xds("")
	}
	p := m.start(ca, strings.Join(addresses[:], ","))
	to := application(t, http.HandlerFunc(hello))
	m.inbound("1", p.ip, to, false)
	p.wantReady()

	first, second := servers[0], servers[1]
	if opened, _, _ := first.seen.get(); opened == 0 {
		first, second = second, first
	}
	died := time.Now()
	first.stop()
	testkit.Eventually(t, testkit.Patience, func() error {
		if opened, held, _ := second.seen.get(); opened != 1 || held != 2 {
			return fmt.Errorf("%d streams, first requests name %d resources as held, want 1 and 2", opened, held)
		}
		return nil
	})
	t.Logf("connected to the other xds-server after %s", time.Since(died).Round(time.Millisecond))

	other := netip.AddrPortFrom(p.ip, 9081)
	m.set("2",
		[]types.Resource{clusterTo("app", to)},
		[]types.Resource{httpListener(t, "other", other, "app", false)})
	testkit.Eventually(t, testkit.Patience, func() error {
		status, _, err := get("http://" + other.String())
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	for _, name := range []string{"cluster_manager.cds.update_rejected", "listener_manager.lds.update_rejected"} {
		if n := p.stat(name); n != 0 {
			t.Errorf("%s is %d", name, n)
		}
	}
}

// A renewed certificate reaches Envoy by SDS; no request notices.
func TestRenewalUnderTraffic(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(ca, xds)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()

	client := m.PKI.NewSVID("shop", "client")
	request := func() (serial string, err error) {
		c := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   tlsconf.Client(client, m.PKI.ID("shop", "web")),
		}}
		resp, err := c.Get("https://" + netip.AddrPortFrom(p.ip, appPort).String())
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && (resp.StatusCode != http.StatusOK || string(body) != "hello") {
			err = fmt.Errorf("%s: %s", resp.Status, body)
		}
		return serialOf(resp.TLS), err
	}
	before, err := request()
	if err != nil {
		t.Fatal(err)
	}
	var sent, failed atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			sent.Add(1)
			if _, err := request(); err != nil {
				failed.Add(1)
				t.Log(err)
			}
		}
	}()
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		now, err := request()
		if err == nil && now == before {
			err = fmt.Errorf("still the certificate %s", before)
		}
		return err
	})
	close(stop)
	<-stopped
	if failed.Load() > 0 || sent.Load() == 0 {
		t.Errorf("%d of %d requests failed during the renewal", failed.Load(), sent.Load())
	}
}

func serialOf(s *tls.ConnectionState) string {
	return s.PeerCertificates[0].SerialNumber.String()
}

// A state directory whose sockets have paths too long for the kernel works.
func TestLongStateDirectory(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	p := m.startIn(long, ca, xds)
	m.set("1", nil, nil)
	p.wantReady()
	for _, name := range []string{statedir.XDS, statedir.SDS, statedir.Admin, statedir.Bootstrap} {
		info, err := os.Stat(filepath.Join(long, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", name, info, err)
		}
	}
	p.stop()
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(long, "?DS")); err != nil || len(left) > 0 {
		t.Errorf("sockets left: %v %v", left, err)
	}
}
