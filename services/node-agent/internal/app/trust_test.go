package app_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/trust"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// silence is what an xds-server has for a type that it does not know: nothing, ever.
type silence struct{ cache.Cache }

func (silence) CreateWatch(*cache.Request, cache.Subscription, chan cache.Response) (func(), error) {
	return func() {}, nil
}

func (silence) CreateDeltaWatch(*cache.DeltaRequest, cache.Subscription, chan cache.DeltaResponse) (func(), error) {
	return func() {}, nil
}

// bundle is a bundle of the mesh with the roots of authorities.
func bundle(generation uint64, roots ...*testkit.CA) *cav1.TrustBundle {
	b := &cav1.TrustBundle{TrustDomain: testkit.TrustDomain, Epoch: 1, Generation: generation}
	for _, r := range roots {
		b.RootCertificates = append(b.RootCertificates, r.Cert.Raw)
	}
	return b
}

// signed signs a bundle as an account of istio-system whose certificate is by an authority.
func signed(t *testing.T, by *testkit.CA, account string, b *cav1.TrustBundle) *cav1.SignedBundle {
	t.Helper()
	own := material(t, by.NewSVID(contract.SystemNamespace, account))
	return testkit.Must(trust.Sign(b, own.Certificate))(t)
}

// give has xds-servers send a bundle.
func (m *mesh) give(s *cav1.SignedBundle) {
	m.t.Helper()
	testkit.NoError(m.t, m.bundles.UpdateResource("trust-bundle", s))
}

// wantAcks waits until the xds-server has got this many acknowledgements of bundles.
func (s *streams) wantAcks(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if _, acked := s.ofType(contract.SignedBundleType); acked < n {
			_, _, nacks := s.get()
			return fmt.Errorf("%d acknowledgements, want %d; rejections %v", acked, n, nacks)
		}
		return nil
	})
}

// from is a client of the proxy whose certificate is by an authority. It trusts the proxy's certificate of another.
func (p *proxy) from(by, proxys *testkit.CA) caller {
	m := *material(p.t, by.NewSVID("shop", "client"))
	m.Roots = material(p.t, proxys.RootsOnly()).Roots
	return caller{p, testkit.NewStatic(&m), proxys}
}

// served waits until a caller is served, or is not.
func (c caller) served(want bool) {
	c.p.t.Helper()
	testkit.Eventually(c.p.t, testkit.Patience, func() error {
		if _, err := c.call(); (err == nil) != want {
			return fmt.Errorf("served: %v, want %v: %w", err == nil, want, err)
		}
		return nil
	})
}

// A root rotation reaches Envoy by the ADS stream, while the root file stays as it was: a new root is trusted as soon
// as it is acknowledged, and a retired one is not trusted any more. The certificate is renewed below the new one, and
// the next xds-server has one of it.
func TestRootRotationByTheADSStream(t *testing.T) {
	for name, env := range map[string][]string{"delta": nil, "state of the world": {"ISTIO_DELTA_XDS=false"}} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			old, next := m.PKI, testkit.PKI(t)
			caAddress, stopCA := m.ca("", time.Hour)
			xds, seen, stopXDS := m.xds("")
			m.give(signed(t, old, "ca", bundle(1, old)))
			p := m.start(caAddress, xds, env...)
			m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
			p.wantReady()
			seen.wantAcks(t, 1)
			guest := p.from(next, old)
			p.from(old, old).served(true)
			guest.served(false)

			began := time.Now()
			both := bundle(2, old, next)
			both.TaintedKeyIds = [][]byte{old.Cert.SubjectKeyId}
			m.give(signed(t, old, "ca", both))
			seen.wantAcks(t, 2)
			acked := time.Now()
			guest.served(true)
			t.Logf("acknowledged after %s, served %s later", acked.Sub(began).Round(time.Millisecond),
				time.Since(acked).Round(time.Millisecond))
			p.from(old, old).served(true)
			p.wantMetric("fairlead_node_agent_mesh_bundle_generation 2")
			p.wantLog("the authority of the own certificate is tainted: it is renewed", 1) // within half a minute

			// The ca has its certificate from the new root, and issues below it.
			stopCA()
			m.PKI = next
			m.ca(caAddress, time.Hour)
			m.give(signed(t, next, "ca", bundle(3, next)))
			p.from(next, next).served(true)
			p.from(old, next).served(false)
			p.wantMetric("fairlead_node_agent_mesh_bundle_generation 3")
			p.wantMetric("fairlead_node_agent_mesh_bundle_failures_total 0")
			if _, _, nacks := seen.get(); len(nacks) > 0 {
				t.Errorf("rejections %v", nacks)
			}
			stopXDS()
			_, again, _ := m.xds(xds) // with a certificate of the new root
			m.give(signed(t, next, "ca", bundle(4, next)))
			again.wantAcks(t, 1)
			if n := p.stat("listener_manager.lds.update_rejected"); n != 0 {
				t.Errorf("%d updates rejected", n)
			}
		})
	}
}

// A bundle is not acknowledged before Envoy has its roots: not by an Envoy that stands still, until it goes on or is
// gone.
func TestBundleIsAcknowledgedWhenEnvoyHasIt(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"goes on": syscall.SIGCONT, "is killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			own, next := m.PKI, testkit.PKI(t)
			ca, _ := m.ca("", time.Hour)
			xds, seen, _ := m.xds("")
			m.give(signed(t, own, "ca", bundle(1, own)))
			c := m.spawn("", ca, xds)
			m.inbound("1", c.ip, application(t, http.HandlerFunc(hello)), true)
			c.wantReady()
			seen.wantAcks(t, 1)
			c.from(own, own).served(true)
			pid := c.envoyPID()
			testkit.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			m.give(signed(t, own, "ca", bundle(2, own, next)))
			testkit.Eventually(t, testkit.Patience, func() error {
				if !strings.Contains(c.output.String(), `"generation":2`) {
					return errors.New("not adopted")
				}
				return nil
			})
			time.Sleep(time.Second)
			if _, acked := seen.ofType(contract.SignedBundleType); acked != 1 {
				t.Errorf("%d acknowledgements while Envoy stands still", acked)
			}
			testkit.NoError(t, syscall.Kill(pid, signal))
			seen.wantAcks(t, 2)
			if signal == syscall.SIGCONT {
				c.from(next, own).served(true)
			}
		})
	}
}

// An xds-server in the wrong hands adds no root and takes none away, and is told why. The good bundle after it counts.
func TestForgedBundlesAreRefused(t *testing.T) {
	m := newMesh(t)
	own, evil, next := m.PKI, testkit.PKI(t), testkit.PKI(t)
	ca, _ := m.ca("", time.Hour)
	xds, seen, _ := m.xds("")
	m.give(signed(t, own, "ca", bundle(5, own)))
	p := m.start(ca, xds)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	seen.wantAcks(t, 1)
	good := signed(t, own, "ca", bundle(6, own, evil))
	foreign := bundle(9, evil)
	foreign.TrustDomain = "evil.example"
	for says, s := range map[string]*cav1.SignedBundle{
		"0 certificates":                     {Bundle: good.GetBundle()},
		"nobody whom this workload trusts":   signed(t, evil, "ca", bundle(6, own, evil)),
		"xds-server, which is not the ca":    signed(t, own, "xds-server", bundle(6, own, evil)),
		"generation 4 of epoch 1 is older":   signed(t, own, "ca", bundle(4, own, evil)),
		"0 roots":                            signed(t, own, "ca", bundle(6)),
		"more than 1048576":                  {Bundle: good.GetBundle(), Signature: make([]byte, 3<<20), CertificateChain: good.GetCertificateChain()},
		"signature is not that of the ca's":  {Bundle: good.GetBundle(), Signature: []byte{1}, CertificateChain: good.GetCertificateChain()},
		`of trust domain "evil.example", no`: signed(t, own, "ca", foreign),
	} {
		m.give(s)
		testkit.Eventually(t, testkit.Patience, func() error {
			_, _, nacks := seen.get()
			if !strings.Contains(strings.Join(nacks, "\n"), says) {
				return fmt.Errorf("rejections %q, want %q", nacks, says)
			}
			return nil
		})
		if _, err := p.from(evil, own).call(); err == nil {
			t.Errorf("%s: a client of the forger is served", says)
		}
		if _, err := p.from(own, own).call(); err != nil {
			t.Errorf("%s: a client of the mesh is not served: %v", says, err)
		}
	}
	p.wantMetric("fairlead_node_agent_mesh_bundle_generation 5")
	m.give(signed(t, own, "ca", bundle(6, own, next)))
	p.from(next, own).served(true)
	p.wantMetric("fairlead_node_agent_mesh_bundle_generation 6")
}

// Roots that an xds-server pushes verify peers where the agent was told to take them, but no bundle.
func TestPushedRootsVerifyNoBundle(t *testing.T) {
	m := newMesh(t)
	evil, more := testkit.PKI(t), testkit.PKI(t)
	ca, _ := m.ca("", time.Hour)
	xds, seen, _ := m.xds("")
	testkit.NoError(t, m.pushed.UpdateResource("ca-certificates",
		&meshv1alpha1.ProxyConfig{CaCertificatesPem: []string{string(evil.RootPEM)}}))
	p := m.start(ca, xds, "PROXY_CONFIG_XDS_AGENT=true")
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.from(evil, m.PKI).served(true)
	m.give(signed(t, evil, "ca", bundle(9, evil, more)))
	testkit.Eventually(t, testkit.Patience, func() error {
		if _, _, nacks := seen.get(); !strings.Contains(strings.Join(nacks, "\n"), "nobody whom this workload trusts") {
			return fmt.Errorf("rejections %q", nacks)
		}
		return nil
	})
	if _, err := p.from(more, m.PKI).call(); err == nil {
		t.Error("a root of the forged bundle is trusted")
	}
	m.give(signed(t, m.PKI, "ca", bundle(9, m.PKI, more)))
	p.from(more, m.PKI).served(true)
	p.from(evil, m.PKI).served(true) // the pushed ones count as before
}

// With a cache the adopted bundle outlives a restart: the root file has a retired root, and neither ca nor xds-server
// answers. Without a cache the root file is the start again.
func TestAdoptedBundleServesARestart(t *testing.T) {
	m := newMesh(t)
	m.keeping()
	own, next := m.PKI, testkit.PKI(t)
	ca, stopCA := m.ca("", time.Hour)
	xds, seen, stopXDS := m.xds("")
	m.give(signed(t, own, "ca", bundle(1, own)))
	p := m.start(ca, xds)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	seen.wantAcks(t, 1)
	m.give(signed(t, own, "ca", bundle(2, own, next)))
	seen.wantAcks(t, 2)
	p.from(next, own).served(true)
	info, err := os.Stat(filepath.Join(p.config.StateDir, statedir.Trust))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	p.stop()
	testkit.NoError(t, p.wait())
	stopCA()
	stopXDS()
	p = m.again(p, ca, xds)
	p.wantReady()
	p.from(next, own).served(true)
	p.wantMetric("fairlead_node_agent_mesh_bundle_generation 2")
}

// An xds-server of an earlier version answers nothing, and an agent that is told so does not ask: both serve with the
// root file, as before.
func TestWithoutBundlesTheRootFileCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		env  []string
		old  bool
		asks bool
	}{
		"a server that does not know the type": {nil, true, true},
		"so, state of the world":               {[]string{"ISTIO_DELTA_XDS=false"}, true, true},
		"a server that has no bundle yet":      {nil, false, true},
		"an agent that does not ask":           {[]string{"FAIRLEAD_TRUST_BY_XDS=false"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			m.old = tc.old
			next := testkit.PKI(t)
			ca, _ := m.ca("", time.Hour)
			xds, seen, _ := m.xds("")
			if !tc.asks {
				m.give(signed(t, m.PKI, "ca", bundle(2, m.PKI, next)))
			}
			p := m.start(ca, xds, tc.env...)
			m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
			p.wantReady()
			p.from(m.PKI, m.PKI).served(true)
			if asked, _ := seen.ofType(contract.SignedBundleType); (asked > 0) != tc.asks {
				t.Errorf("asked %d times", asked)
			}
			if _, err := p.from(next, m.PKI).call(); err == nil {
				t.Error("a root of no file is trusted")
			}
			testkit.WriteFile(t, p.config.RootCertFile, bytes.Join([][]byte{m.PKI.RootPEM, next.RootPEM}, nil))
			p.from(next, m.PKI).served(true)
			if opened, _, nacks := seen.get(); opened != 1 || len(nacks) > 0 {
				t.Errorf("%d streams, rejections %v", opened, nacks)
			}
		})
	}
}

// Where roots come with mounted files, nobody verifies with a bundle. The agent does not ask for it, so that it
// acknowledges none.
func TestABundleThatNobodyVerifiesWithIsNotAcknowledged(t *testing.T) {
	m := newMesh(t)
	next := testkit.PKI(t)
	xds, seen, _ := m.xds("")
	dir := t.TempDir()
	set := inDir(dir, "chain.pem", "key.pem", "roots.pem")
	writeSet(t, set, material(t, m.PKI.NewSVID("shop", "web")))
	m.configure = func(c *config.Config) { c.Secrets.Mounted = []config.FileSet{set} }
	m.give(signed(t, m.PKI, "ca", bundle(2, m.PKI, next)))
	p := m.start("127.0.0.1:1", xds, "PROXY_CONFIG_XDS_AGENT=true")
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	p.from(m.PKI, m.PKI).served(true)
	// What the agent asks for itself it asks for at once, behind the first request of Envoy.
	testkit.Eventually(t, testkit.Patience, func() error {
		if asked, _ := seen.ofType(contract.ProxyConfigType); asked == 0 {
			return errors.New("the agent has asked for nothing yet")
		}
		return nil
	})
	if _, err := p.from(next, m.PKI).call(); err == nil {
		t.Error("a root of the bundle is trusted")
	}
	if asked, acked := seen.ofType(contract.SignedBundleType); asked > 0 {
		t.Errorf("the agent has asked for the bundle: %d requests, %d acknowledgements", asked, acked)
	}
}

// Proxyless gRPC programs find the roots in their file when the bundle is acknowledged on one of their streams.
func TestProgramsGetTheAdoptedRoots(t *testing.T) {
	m := newMesh(t)
	m.set("1", nil, nil)
	next := testkit.PKI(t)
	ca, _ := m.ca("", time.Hour)
	xds, seen, _ := m.xds("")
	m.give(signed(t, m.PKI, "ca", bundle(1, m.PKI)))
	p := m.start(ca, xds, "ISTIO_META_GENERATOR=grpc")
	p.wantLog("the workload's certificate files are written", 1)
	conn := testkit.Must(grpc.NewClient("unix://"+filepath.Join(p.config.StateDir, statedir.XDS),
		grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	stream := testkit.Must(discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx))(t)
	testkit.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "program"}, TypeUrl: resource.ClusterType}))
	testkit.Must(stream.Recv())(t)
	go func() {
		for {
			if r, err := stream.Recv(); err != nil || r.GetTypeUrl() == contract.SignedBundleType {
				if err == nil {
					t.Error("the program is sent the agent's resource")
				}
				return
			}
		}
	}()
	seen.wantAcks(t, 1)
	m.give(signed(t, m.PKI, "ca", bundle(2, m.PKI, next)))
	seen.wantAcks(t, 2)
	text := testkit.Must(os.ReadFile(filepath.Join(p.config.CertificateDir, "root-cert.pem")))(t)
	if roots := testkit.Must(tlsconf.ParseAuthorities(text))(t); len(roots) != 2 {
		t.Error(errors.New("acknowledged before the file has the roots"))
	}
}
