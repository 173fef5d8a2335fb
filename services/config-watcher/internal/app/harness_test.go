package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/resource"
)

const patience = testkit.Patience

// world is the trust that the tests' processes share.
type world struct {
	t      testing.TB
	ca     *testkit.CA
	issuer *testkit.Issuer
	dir    string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{t: t, ca: testkit.PKI(t), issuer: testkit.NewIssuer(t), dir: t.TempDir()}
}

func (w *world) options() Options {
	return Options{
		Options:     service.Options{OpsAddress: "127.0.0.1:0", ShutdownGrace: time.Second, TrustDomain: testkit.TrustDomain},
		GRPCAddress: "127.0.0.1:0", ResyncPeriod: time.Second, FileGrace: time.Second, SystemNamespace: "istio-system", ClusterID: "Kubernetes",
		DomainSuffix: "cluster.local", CAAddress: "127.0.0.1:1", RootCertFile: filepath.Join(w.dir, "root-cert.pem"), StoreDir: filepath.Join(w.dir, "store"),
		JWKSFile: w.issuer.JWKSFile, Issuer: w.issuer.Name,
	}
}

// deps are those of a config-watcher with an identity.
func (w *world) deps(identity tlsconf.Source) deps {
	return deps{Deps: service.Deps{Log: testkit.Logger(w.t), Registry: prometheus.NewRegistry()}, Identity: identity}
}

// running is a config-watcher of the test.
type running struct {
	*Server
	w    *world
	stop func()
}

// start runs a config-watcher until the test ends or stop is called.
func (w *world) start(o Options, change ...func(*deps)) *running {
	w.t.Helper()
	deps := w.deps(w.ca.NewSVID("istio-system", "config-watcher"))
	for _, f := range change {
		f(&deps)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := open(ctx, &o, deps)
	if err != nil {
		cancel()
		w.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	r := &running{Server: s, w: w}
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.t.Errorf("run: %v", err)
			}
		case <-time.After(patience):
			w.t.Error("config-watcher does not stop")
		}
	}
	w.t.Cleanup(r.stop)
	return r
}

// dial connects with the identity of a service account of istio-system; empty means without a certificate.
func (r *running) dial(account string) *grpc.ClientConn {
	r.w.t.Helper()
	var src tlsconf.Source = r.w.ca.RootsOnly()
	if account != "" {
		src = r.w.ca.NewSVID("istio-system", account)
	}
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: r.Addr("grpc-address").String(), TLS: tlsconf.Client(src, r.w.ca.ID("istio-system", "config-watcher")), MaxRecvBytes: 32 << 20,
	})
	if err != nil {
		r.w.t.Fatal(err)
	}
	r.w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *running) store() configv1.ConfigStoreServiceClient {
	return configv1.NewConfigStoreServiceClient(r.dial("fairlead-admin"))
}

func (r *running) apply(docs ...string) *configv1.ApplyResponse {
	r.w.t.Helper()
	out, err := r.tryApply(docs...)
	if err != nil {
		r.w.t.Fatalf("apply: %v", err)
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
	r.w.t.Helper()
	r.ready() // who subscribes long before is sent away
	ctx, cancel := context.WithCancel(context.Background())
	r.w.t.Cleanup(cancel)
	stream, err := configv1.NewConfigServiceClient(r.dial("xds-server")).Watch(ctx, grpc.WaitForReady(true))
	if err != nil {
		r.w.t.Fatal(err)
	}
	s := &subscriber{t: r.w.t, stream: stream, held: map[resource.Key]*configv1.Resource{}}
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

// http asks the ops server, with a token if not empty.
func (r *running) http(path, token string) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+r.Addr("ops-address").String()+path, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return http.DefaultClient.Do(req)
}

func (r *running) ready() {
	r.w.t.Helper()
	testkit.Eventually(r.w.t, patience, func() error {
		resp, err := r.http("/readyz", "")
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // test
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
}

func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
