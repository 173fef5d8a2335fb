package app_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// The tests of this file have a row each in docs/runbooks/node-agent.md.

// load sends requests through the proxy without a pause until stop, and fails the test if one fails.
func (p *proxy) load() (sent func() int64, stop func()) {
	p.t.Helper()
	var count, failed atomic.Int64
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
			}
			count.Add(1)
			if status, body, err := get(p.url(appPort, "/")); err != nil || status != http.StatusOK {
				failed.Add(1)
				p.t.Logf("request %d: %d %q %v", count.Load(), status, body, err)
			}
		}
	}()
	return count.Load, func() {
		p.t.Helper()
		close(end)
		<-ended
		if failed.Load() > 0 || count.Load() == 0 {
			p.t.Errorf("%d of %d requests failed", failed.Load(), count.Load())
		}
	}
}

// serves waits until the proxy answers on another port, which the next snapshot brings.
func (p *proxy) serves(port uint16) {
	p.t.Helper()
	testkit.Eventually(p.t, testkit.Patience, func() error {
		status, _, err := get(p.url(int(port), "/"))
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
}

// two makes a snapshot with a second listener, on port.
func (m *mesh) two(version string, p netip.Addr, to netip.AddrPort, port uint16) {
	m.set(version, []types.Resource{clusterTo("app", to)}, []types.Resource{
		httpListener(m.t, "inbound", netip.AddrPortFrom(p, appPort), "app", false),
		httpListener(m.t, "other", netip.AddrPortFrom(p, port), "app", false),
	})
}

// keeping makes agents keep key and configuration; those after the first have the first one's addresses.
func (m *mesh) keeping() {
	var first *config.Config
	m.configure = func(c *config.Config) {
		c.CacheCertificate, c.Secrets.KeepBundle, c.LastGood.After = true, true, 500*time.Millisecond
		if first == nil {
			first = c
			return
		}
		c.InstanceIPs, c.StatusAddress, c.ReadyAddress, c.StatsAddress = first.InstanceIPs, first.StatusAddress, first.ReadyAddress,
			first.StatsAddress
	}
}

// again starts the agent of a Pod that has ended once more.
func (m *mesh) again(p *proxy, ca, xds string, env ...string) *proxy {
	m.t.Helper()
	next := m.startIn(p.config.StateDir, ca, xds, env...)
	next.ip = p.ip
	return next
}

// With neither ca nor xds-server, agent and Envoy start again, become ready, and serve with mutual TLS. When the
// xds-server is back, Envoy gets the change that it has missed, on a stream that says what Envoy holds.
func TestRestartWithoutControlPlane(t *testing.T) {
	for _, tc := range []struct{ name, env string }{
		{"delta", "ISTIO_DELTA_XDS=true"},
		{"state of the world", "ISTIO_DELTA_XDS=false"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMesh(t)
			m.keeping()
			ca, stopCA := m.ca("", time.Hour)
			xds, _, stopXDS := m.xds("")
			p := m.start(ca, xds, tc.env)
			to := application(t, http.HandlerFunc(hello))
			m.inbound("1", p.ip, to, true)
			p.wantReady()
			p.stop()
			if err := p.wait(); err != nil {
				t.Fatal(err)
			}
			file, err := os.ReadFile(filepath.Join(p.config.StateDir, statedir.LastGood))
			if err != nil || bytes.Contains(file, []byte("inbound")) {
				t.Fatalf("sealed configuration: %d bytes that show what they hold, %v", len(file), err)
			}
			stopCA()
			stopXDS()

			p = m.again(p, ca, xds, tc.env)
			p.wantReady()
			client := &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{
				TLSClientConfig: tlsconf.Client(m.PKI.NewSVID("shop", "client"), m.PKI.ID("shop", "web")),
			}}
			resp, err := client.Get("https://" + netip.AddrPortFrom(p.ip, appPort).String())
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("status %d", resp.StatusCode)
			}

			m.set("2", []types.Resource{clusterTo("app", to)}, []types.Resource{
				httpListener(t, "inbound", netip.AddrPortFrom(p.ip, appPort), "app", true),
				httpListener(t, "other", netip.AddrPortFrom(p.ip, 9081), "app", false),
			})
			_, seen, _ := m.xds(xds)
			p.serves(9081)
			if _, held, nacks := seen.get(); tc.name == "delta" && held != 2 || len(nacks) > 0 {
				t.Errorf("the xds-server is told of %d resources, want 2; rejections %v", held, nacks)
			}
			for _, name := range []string{"cluster_manager.cds.update_rejected", "listener_manager.lds.update_rejected"} {
				if n := p.stat(name); n != 0 {
					t.Errorf("%s is %d", name, n)
				}
			}
		})
	}
}

// Roots that the control plane has pushed are as good as configuration: the file can be opened without them, and has
// them.
func TestRestartWithPushedRoots(t *testing.T) {
	m := newMesh(t)
	m.keeping()
	foreign := testkit.NewCA(t, "other.example", time.Now())
	ca, stopCA := m.ca("", time.Hour)
	xds, _, stopXDS := m.xds("")
	if err := m.pushed.UpdateResource("ca-certificates",
		&meshv1alpha1.ProxyConfig{CaCertificatesPem: []string{string(foreign.RootPEM)}}); err != nil {
		t.Fatal(err)
	}
	p := m.start(ca, xds, "PROXY_CONFIG_XDS_AGENT=true")
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	guest := *material(t, foreign.NewSVID("shop", "client"))
	guest.Roots = material(t, m.PKI.RootsOnly()).Roots
	served := func() error { _, err := caller{p, testkit.NewStatic(&guest), m.PKI}.call(); return err }
	testkit.Eventually(t, testkit.Patience, served)
	p.stop()
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	stopCA()
	stopXDS()

	p = m.again(p, ca, xds, "PROXY_CONFIG_XDS_AGENT=true")
	p.wantReady()
	testkit.Eventually(t, testkit.Patience, served)
}

// A file that is damaged costs what it would have given, nothing else.
func TestRestartWithADamagedFile(t *testing.T) {
	m := newMesh(t)
	m.keeping()
	ca, _ := m.ca("", time.Hour)
	xds, _, stopXDS := m.xds("")
	p := m.start(ca, xds)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), false)
	p.wantReady()
	p.stop()
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(p.config.StateDir, statedir.LastGood)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file[len(file)-1] ^= 1
	testkit.WriteFile(t, path, file)
	stopXDS()
	p = m.again(p, ca, xds)
	p.wantLog("sealed configuration is not used", 1)
	m.xds(xds)
	p.wantReady()
}

// A control plane that comes and goes costs no request, and the last change arrives.
func TestFlappingControlPlane(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, stop := m.xds("")
	p := m.start(ca, xds)
	to := application(t, http.HandlerFunc(hello))
	m.inbound("1", p.ip, to, false)
	p.wantReady()
	sent, end := p.load()
	for range 5 {
		stop()
		before := sent()
		testkit.Eventually(t, testkit.Patience, func() error {
			if sent() < before+20 {
				return errors.New("no requests while it is away")
			}
			return nil
		})
		_, _, stop = m.xds(xds)
	}
	m.two("2", p.ip, to, 9081)
	p.serves(9081)
	end()
}

// stalling is a TCP proxy that drops everything once it is told to, and until then holds a part of all packets up for
// as long as a retransmission takes.
type stalling struct {
	address string
	dropped atomic.Bool
	loss    float64
}

func startStalling(t *testing.T, to string, loss float64) *stalling {
	lis := testkit.LoopbackListener(t)
	s := &stalling{address: lis.Addr().String(), loss: loss}
	copied := func(to io.Writer, from io.Reader) {
		packet := make([]byte, 1400)
		for {
			n, err := from.Read(packet)
			if err != nil {
				return
			}
			if s.dropped.Load() {
				continue
			}
			if rand.Float64() < s.loss {
				time.Sleep(200 * time.Millisecond)
			}
			if _, err := to.Write(packet[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			if s.dropped.Load() {
				t.Cleanup(func() { in.Close() })
				continue
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			t.Cleanup(func() { in.Close(); out.Close() })
			go copied(in, out)
			go copied(out, in)
		}
	}()
	return s
}

// An xds-server whose packets go nowhere is left within a minute for another one, and no request notices.
func TestBlackHoledControlPlane(t *testing.T) {
	t.Parallel() // takes as long as the agent's keepalive, 40 s
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	first, _, _ := m.xds("")
	hole := startStalling(t, first, 0)
	second := testkit.FreeAddress(t).String()
	p := m.start(ca, hole.address+","+second)
	to := application(t, http.HandlerFunc(hello))
	m.inbound("1", p.ip, to, false)
	p.wantReady()
	_, seen, _ := m.xds(second)
	began := time.Now()
	hole.dropped.Store(true)
	testkit.Eventually(t, 60*time.Second, func() error {
		if opened, _, _ := seen.get(); opened == 0 {
			return errors.New("not connected to the other xds-server")
		}
		return nil
	})
	t.Logf("left after %s", time.Since(began).Round(time.Second))
	m.two("2", p.ip, to, 9081)
	p.serves(9081)
	if status, _, err := get(p.url(appPort, "/")); err != nil || status != http.StatusOK {
		t.Errorf("%d, %v", status, err)
	}
}

func TestTenPercentOfPacketsLost(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(startStalling(t, ca, 0.1).address, startStalling(t, xds, 0.1).address)
	to := application(t, http.HandlerFunc(hello))
	m.inbound("1", p.ip, to, false)
	p.wantReady()
	_, end := p.load()
	for i := range uint16(5) {
		m.two(fmt.Sprint(i+2), p.ip, to, 9081+i)
		p.serves(9081 + i)
	}
	end()
	if n := p.log.count("xds-server lost"); n > 0 {
		t.Errorf("the xds-server was lost %d times", n)
	}
}

// A renewed certificate and a rotated token are no reason to open another stream.
func TestRotationMakesNoReconnect(t *testing.T) {
	m := newMesh(t)
	ca, _ := m.ca("", time.Hour)
	xds, seen, _ := m.xds("")
	p := m.start(ca, xds)
	to := application(t, http.HandlerFunc(hello))
	m.inbound("1", p.ip, to, true)
	p.wantReady()
	serial := func() (string, error) {
		conn, err := tls.Dial("tcp", netip.AddrPortFrom(p.ip, appPort).String(),
			tlsconf.Client(m.PKI.NewSVID("shop", "client"), m.PKI.ID("shop", "web")))
		if err != nil {
			return "", err
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
	}
	before, err := serial()
	if err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(m.Issuer.TokenFile("shop", "web", contract.TokenAudience))
	if err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, p.config.TokenFile, token)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		now, err := serial()
		if err == nil && now == before {
			err = errors.New("the old certificate is in use")
		}
		return err
	})
	m.two("2", p.ip, to, 9081)
	p.serves(9081)
	if opened, _, _ := seen.get(); opened != 1 {
		t.Errorf("Envoy has opened %d streams, want 1", opened)
	}
}

// While the ca is away the certificate stays in use, and the agent says that it cannot renew it.
func TestCAAway(t *testing.T) {
	m := newMesh(t)
	ca, stop := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(ca, xds)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), false)
	p.wantReady()
	stop()
	_, end := p.load()
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	p.wantLog("certificate could not be obtained, will retry", 2)
	p.wantReady()
	end()
	m.ca(ca, time.Hour)
	p.wantLog("certificate obtained", 2)
}

// On a full disk neither certificate nor configuration can be kept for the next start; all else goes on.
func TestStateDirectoryIsFull(t *testing.T) {
	if userns.Again(t) {
		return
	}
	m := newMesh(t)
	m.keeping()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.startIn(filepath.Join(dir, "state"), ca, xds)
	to := application(t, http.HandlerFunc(hello))
	p.wantLog("certificate obtained", 1)
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	if _, err := io.Copy(filler, io.LimitReader(zeros{}, 2<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	m.inbound("1", p.ip, to, false)
	p.wantReady()
	p.wantLog("configuration is not kept for the next start, will retry", 1)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	p.wantLog("certificate cannot be cached for the next start", 1)
	m.two("2", p.ip, to, 9081)
	p.serves(9081)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
