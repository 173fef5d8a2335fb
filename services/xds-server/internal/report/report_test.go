package report_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/report"
)

// fleetFake is a fleet that a test edits.
type fleetFake struct {
	tlsconf.Notifier
	mu       sync.Mutex
	statuses []*configv1.ProxyStatus
	served   *configv1.Revision
}

func (f *fleetFake) Statuses() []*configv1.ProxyStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.statuses
}

func (f *fleetFake) Served() *configv1.Revision {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.served
}

func (f *fleetFake) set(served *configv1.Revision, statuses ...*configv1.ProxyStatus) {
	f.mu.Lock()
	f.statuses, f.served = statuses, served
	f.mu.Unlock()
	f.Notify()
}

// sinkFake is a config-watcher that hands received reports to the test.
type sinkFake struct {
	configv1.UnimplementedConfigServiceServer
	got chan *configv1.ReportRequest
	end chan error
}

func (f *sinkFake) Report(stream configv1.ConfigService_ReportServer) error {
	broken := make(chan error, 1)
	go func() {
		for n := uint64(1); ; n++ {
			m, err := stream.Recv()
			if err == nil {
				f.got <- m
				err = stream.Send(&configv1.ReportResponse{Received: n})
			}
			if err != nil {
				broken <- err
				return
			}
		}
	}()
	select {
	case err := <-f.end:
		return err
	case err := <-broken:
		return err
	}
}

func proxy(id string, acked *configv1.Revision) *configv1.ProxyStatus {
	return &configv1.ProxyStatus{NodeId: id, Acked: acked, Types: []*configv1.ProxyTypeStatus{{TypeUrl: "t", Sent: acked, Acked: acked}}}
}

func TestReport(t *testing.T) {
	sink := &sinkFake{got: make(chan *configv1.ReportRequest, 100), end: make(chan error)}
	lis, dialer := testkit.Bufconn(t)
	g := grpc.NewServer()
	configv1.RegisterConfigServiceServer(g, sink)
	go func() { _ = g.Serve(lis) }() // ends with Stop
	defer g.Stop()
	conn, err := grpc.NewClient("passthrough:///test", dialer, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the test is over
	fleet := &fleetFake{}
	self := &configv1.Subscriber{Instance: "test"}
	r, err := report.New(report.Config{Sink: configv1.NewConfigServiceClient(conn), Fleet: fleet, Subscriber: self, Log: testkit.Logger(t), Rand: func() float64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	one, two := &configv1.Revision{Epoch: "e", Sequence: 1}, &configv1.Revision{Epoch: "e", Sequence: 2}
	a, b := proxy("a", one), proxy("b", one)
	fleet.set(one, a, b)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	defer func() { stop(); wg.Wait() }()

	expect := func(what string, want *configv1.ReportRequest) {
		t.Helper()
		select {
		case got := <-sink.got:
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Errorf("%s (-want +got):\n%s", what, d)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: nothing came", what)
		}
	}
	expect("first message is complete", &configv1.ReportRequest{Subscriber: self, Revision: one, Proxies: []*configv1.ProxyStatus{a, b}})
	fleet.Notify()
	a2 := proxy("a", two)
	fleet.set(two, a2, b)
	expect("then differences", &configv1.ReportRequest{Revision: two, Proxies: []*configv1.ProxyStatus{a2}})
	rejected := proxy("b", one)
	rejected.Types[0].Rejection = &configv1.Rejection{Message: "no"}
	fleet.set(two, a2, rejected)
	expect("a rejection", &configv1.ReportRequest{Revision: two, Proxies: []*configv1.ProxyStatus{rejected}})
	fleet.set(two, rejected)
	expect("a proxy that left", &configv1.ReportRequest{Revision: two, Disconnected: []string{"a"}})
	sink.end <- status.Error(codes.Unavailable, "restarting")
	expect("complete again after an outage", &configv1.ReportRequest{Subscriber: self, Revision: two, Proxies: []*configv1.ProxyStatus{rejected}})
}
