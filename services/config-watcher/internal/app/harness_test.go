package app

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/service/servicetest"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/gatewayname"
	"fairlead.dev/services/config-watcher/internal/jwks"
	"fairlead.dev/services/config-watcher/internal/resource"
)

const patience = testkit.Patience

// fixture is the trust that the tests' processes share.
type fixture struct {
	t      testing.TB
	ca     *testkit.CA
	issuer *testkit.Issuer
	dir    string
	// valid changes the certificates of config-watcher and its callers.
	valid []testkit.Option
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return &fixture{t: t, ca: testkit.PKI(t), issuer: testkit.NewIssuer(t), dir: t.TempDir()}
}

func (f *fixture) options() Options {
	return Options{
		Options:     service.Options{OpsAddress: "127.0.0.1:0", ShutdownGrace: time.Second, TrustDomain: testkit.TrustDomain},
		GRPCAddress: "127.0.0.1:0", ResyncPeriod: time.Second, FileGrace: time.Second, SystemNamespace: contract.SystemNamespace,
		ClusterID: "Kubernetes", MaxNamespaceJWKS: jwks.DefaultPerNamespace, JWKSMinInterval: jwks.DefaultShortest,
		GatewayNamesEvery: gatewayname.DefaultEvery,
		DomainSuffix:      "cluster.local", CAAddress: "127.0.0.1:1", RootCertFile: filepath.Join(f.dir, "root-cert.pem"),
		StoreDir: filepath.Join(f.dir, "store"),
		JWKSFile: f.issuer.JWKSFile, Issuer: f.issuer.Name,
	}
}

// admin is a token of the administrator's.
func (f *fixture) admin() string {
	return f.issuer.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience)
}

// deps are those of a config-watcher with an identity.
func (f *fixture) deps(identity tlsconf.Source) deps {
	return deps{Deps: servicetest.Deps(f.t), Identity: identity}
}

// running is a config-watcher of the test.
type running struct {
	*Server
	*servicetest.Running
	*fixture
}

// start runs a config-watcher until the test ends or Stop is called.
func (f *fixture) start(o Options, change ...func(*deps)) *running {
	f.t.Helper()
	deps := f.deps(f.ca.NewSVID(contract.SystemNamespace, contract.ConfigWatcherAccount, f.valid...))
	for _, edit := range change {
		edit(&deps)
	}
	r := &running{fixture: f}
	r.Server, r.Running = servicetest.Start(f.t, open, &o, deps)
	return r
}

// dial connects with the identity of a service account of istio-system; empty means without a certificate.
func (r *running) dial(account string) *grpc.ClientConn {
	r.t.Helper()
	var src tlsconf.Source = r.ca.RootsOnly()
	if account != "" {
		src = r.ca.NewSVID(contract.SystemNamespace, account, r.valid...)
	}
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: r.Address("grpc-address"), TLS: tlsconf.Client(src, r.ca.ID(contract.SystemNamespace, contract.ConfigWatcherAccount)),
		MaxRecvBytes: 32 << 20,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *running) store() configv1.ConfigStoreServiceClient {
	return configv1.NewConfigStoreServiceClient(r.dial(contract.AdminAccount))
}

func (r *running) apply(docs ...string) *configv1.ApplyResponse {
	r.t.Helper()
	out, err := r.tryApply(docs...)
	if err != nil {
		r.t.Fatalf("apply: %v", err)
	}
	return out
}

func (r *running) tryApply(docs ...string) (*configv1.ApplyResponse, error) {
	req := &configv1.ApplyRequest{}
	for i, d := range docs {
		req.Documents = append(req.Documents, &configv1.Document{Name: fmt.Sprintf("doc%d.yaml", i), Content: []byte(d)})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return r.store().Apply(ctx, req)
}

// subscriber is an xds-server as far as Watch is concerned.
type subscriber struct {
	t        testing.TB
	stream   grpc.BidiStreamingClient[configv1.WatchRequest, configv1.WatchResponse]
	held     map[resource.Key]*configv1.Resource
	revision *configv1.Revision
	server   *configv1.Subscriber
	upserts  int // of the last revision
	removed  int
	chunks   int
}

func (r *running) subscribe(held map[resource.Key]*configv1.Resource, interest *configv1.Interest) *subscriber {
	r.t.Helper()
	r.WaitReady() // who subscribes long before is sent away
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	stream, err := configv1.NewConfigServiceClient(r.dial("xds-server")).Watch(ctx, grpc.WaitForReady(true))
	if err != nil {
		r.t.Fatal(err)
	}
	s := &subscriber{t: r.t, stream: stream, held: map[resource.Key]*configv1.Resource{}}
	parts := map[string]*configv1.Held{}
	for k, res := range held {
		s.held[k] = res
		p := parts[k.Kind]
		if p == nil {
			p = &configv1.Held{Kind: k.Kind}
			parts[k.Kind] = p
		}
		p.Keys = append(p.Keys, k.Namespace+"/"+k.Name)
		p.Hashes = append(p.Hashes, res.Hash...)
	}
	for _, p := range parts {
		s.request(&configv1.WatchRequest{Message: &configv1.WatchRequest_Held{Held: p}})
	}
	s.request(&configv1.WatchRequest{Message: &configv1.WatchRequest_Hello{Hello: &configv1.WatchHello{
		Subscriber: &configv1.Subscriber{Instance: "xds-server-test"}, Interest: interest,
	}}})
	return s
}

func (s *subscriber) request(m *configv1.WatchRequest) {
	s.t.Helper()
	if err := s.stream.Send(m); err != nil {
		s.t.Fatal(err)
	}
}

// next takes over one revision.
func (s *subscriber) next() *configv1.Revision {
	s.t.Helper()
	s.upserts, s.removed, s.chunks = 0, 0, 0
	touched := map[resource.Key]bool{}
	for {
		m, err := s.stream.Recv()
		if err != nil {
			s.t.Fatalf("watch: %v", err)
		}
		if m.Server != nil {
			s.server = m.Server
		}
		s.chunks++
		for _, res := range m.Upserts {
			k := resource.KeyOf(res.Key)
			if touched[k] {
				s.t.Fatalf("%v twice in one revision", k)
			}
			touched[k] = true
			s.held[k] = res
		}
		for _, k := range m.Removed {
			key := resource.KeyOf(k)
			if touched[key] {
				s.t.Fatalf("%v twice in one revision", key)
			}
			touched[key] = true
			delete(s.held, key)
		}
		s.upserts += len(m.Upserts)
		s.removed += len(m.Removed)
		if m.Commit {
			s.revision = m.Revision
			s.request(&configv1.WatchRequest{Message: &configv1.WatchRequest_Ack{Ack: &configv1.WatchAck{Sequence: m.Revision.Sequence}}})
			return m.Revision
		}
	}
}

// until takes revisions over until the sequence is reached.
func (s *subscriber) until(sequence uint64) {
	s.t.Helper()
	for s.revision.GetSequence() < sequence {
		s.next()
	}
}

func (s *subscriber) get(kind, namespace, name string) *configv1.Resource {
	s.t.Helper()
	return s.held[resource.Key{Kind: kind, Namespace: namespace, Name: name}]
}
