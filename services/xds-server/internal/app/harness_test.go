package app_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/rpc/rpctest"
	"fairlead.dev/pkg/service/servicetest"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/xds-server/internal/app"
)

const patience = testkit.Patience

// watcherFake is a config-watcher with real TLS that keeps a set of resources: a new subscriber gets all of it, an old
// one the difference.
type watcherFake struct {
	configv1.UnimplementedConfigServiceServer
	address string
	stop    func()
	secrets secretsFake

	mu        sync.Mutex
	resources map[string]*configv1.Resource
	sequence  uint64
	trace     string
	changed   chan struct{}
	reports   []*configv1.ReportRequest
	held      []int // how many resources each subscriber held when it came
}

func startWatcher(t *testing.T, pki *testkit.CA, resources ...*configv1.Resource) *watcherFake {
	t.Helper()
	f := &watcherFake{resources: map[string]*configv1.Resource{}, changed: make(chan struct{}), sequence: 1}
	for _, r := range resources {
		f.resources[r.GetKey().String()] = r
	}
	f.serve(t, pki, testkit.Listen(t, testkit.FreeAddress(t))) // a test may end it and begin another there
	return f
}

// serve runs the fake on a listener until stop.
func (f *watcherFake) serve(t *testing.T, pki *testkit.CA, lis net.Listener) {
	t.Helper()
	own := auth.IDs(pki.ID(contract.SystemNamespace, contract.XDSServerAccount).String())
	f.address = lis.Addr().String()
	f.stop = rpctest.Serve(t, lis, rpc.ServerConfig{
		Service: "config", Authenticator: auth.MTLS(), TLS: tlsconf.Server(pki.NewSVID(contract.SystemNamespace, contract.ConfigWatcherAccount),
			tls.RequireAndVerifyClientCert),
		Policy: auth.Policy{"/fairlead.config.v1.ConfigService/*": own, "/fairlead.secret.v1.SecretService/*": own},
	}, func(g *grpc.Server) {
		configv1.RegisterConfigServiceServer(g, f)
		secretv1.RegisterSecretServiceServer(g, &f.secrets)
	})
}

// edit changes the mesh.
func (f *watcherFake) edit(resources ...*configv1.Resource) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range resources {
		f.resources[r.GetKey().String()] = r
	}
	f.sequence++
	close(f.changed)
	f.changed = make(chan struct{})
	return f.sequence
}

func (f *watcherFake) Watch(stream configv1.ConfigService_WatchServer) error {
	held := map[string]string{}
	count := 0
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if m.GetHello() != nil {
			break
		}
		count += len(m.GetHeld().GetKeys())
		for i, k := range m.GetHeld().GetKeys() {
			held[m.GetHeld().GetKind()+"/"+k] = string(m.GetHeld().GetHashes()[16*i : 16*i+16])
		}
	}
	f.mu.Lock()
	f.held = append(f.held, count)
	f.mu.Unlock()
	for {
		f.mu.Lock()
		m := &configv1.WatchResponse{
			Revision: &configv1.Revision{Epoch: "fake", Sequence: f.sequence, TraceParent: f.trace}, Commit: true,
		}
		present := map[string]bool{}
		for _, r := range f.resources {
			k := r.GetKey().GetKind() + "/" + r.GetKey().GetNamespace() + "/" + r.GetKey().GetName()
			present[k] = true
			if held[k] != string(r.GetHash()) {
				held[k] = string(r.GetHash())
				m.Upserts = append(m.Upserts, r)
			}
		}
		for k := range held {
			if !present[k] {
				delete(held, k)
				parts := strings.SplitN(k, "/", 3)
				m.Removed = append(m.Removed, &configv1.ResourceKey{Kind: parts[0], Namespace: parts[1], Name: parts[2]})
			}
		}
		changed := f.changed
		f.mu.Unlock()
		if err := stream.Send(m); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

func (f *watcherFake) Report(stream configv1.ConfigService_ReportServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.reports = append(f.reports, m)
		f.mu.Unlock()
		if err := stream.Send(&configv1.ReportResponse{}); err != nil {
			return err
		}
	}
}

// acked waits until a proxy was reported to have acknowledged a revision.
func (f *watcherFake) acked(t *testing.T, workload string, sequence uint64) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		var last *configv1.ProxyStatus
		for _, m := range f.reports {
			for _, p := range m.GetProxies() {
				if p.GetWorkload() == workload {
					last = p
				}
			}
		}
		if last.GetAcked().GetSequence() < sequence {
			return fmt.Errorf("want revision %d, reported: %v", sequence, last)
		}
		return nil
	})
}

// errNotYet is why a condition does not hold.
var errNotYet = errors.New("not yet")

// statuses are the newest by node id and identity, of what has not left.
func (f *watcherFake) statuses() map[string]*configv1.ProxyStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := map[string]*configv1.ProxyStatus{}
	for _, m := range f.reports {
		for _, gone := range m.GetDisconnected() {
			maps.DeleteFunc(last, func(_ string, p *configv1.ProxyStatus) bool { return p.GetNodeId() == gone })
		}
		for _, p := range m.GetProxies() {
			last[p.GetNodeId()+" "+p.GetIdentity()] = p
		}
	}
	return last
}

// instance is a running xds-server.
type instance struct {
	*servicetest.Running
	secure, plaintext string
}

// startServer runs a whole xds-server against a config-watcher. Its certificate is the one that it kept from before:
// there is no ca here.
func startServer(t *testing.T, pki *testkit.CA, watcher string, tracer trace.TracerProvider, change ...func(*app.Options)) *instance {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	own, err := pki.NewSVID(contract.SystemNamespace, contract.XDSServerAccount).Current()
	if err != nil {
		t.Fatal(err)
	}
	mkdir(t, dir)
	testkit.WriteFile(t, filepath.Join(dir, "svid.pem"), append(append([]byte{}, own.KeyPEM...), own.CertPEM...))
	var o app.Options
	o.AddFlags(pflag.NewFlagSet("xds-server", pflag.ContinueOnError)) // for the defaults
	o.SecureAddress, o.OpsAddress, o.ConfigWatcherAddress, o.CAAddress = "127.0.0.1:0", "127.0.0.1:0", watcher, "127.0.0.1:1"
	o.RootCertFile, o.StateDir, o.Instance, o.MaxConnectionAge = pki.WriteRoot(t.TempDir()), dir, "xds-server-0", time.Hour
	for _, f := range change {
		f(&o)
	}
	deps := servicetest.Deps(t)
	deps.Tracer = tracer
	_, running := servicetest.Start(t, app.Open, &o, deps)
	i := &instance{Running: running, secure: running.Address("secure-address")}
	if o.PlaintextAddress != "" {
		i.plaintext = running.Address("plaintext-address")
	}
	return i
}

// get asks the port for operators.
func (i *instance) get(t *testing.T, path, token string) (code int, body string) {
	t.Helper()
	code, body, err := i.Get(path, token)
	if err != nil {
		t.Fatal(err)
	}
	return code, body
}

// remove takes resources out of the mesh.
func (f *watcherFake) remove(resources ...*configv1.Resource) uint64 {
	f.mu.Lock()
	for _, r := range resources {
		delete(f.resources, r.GetKey().String())
	}
	f.mu.Unlock()
	return f.edit()
}

func (f *watcherFake) current() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sequence
}
