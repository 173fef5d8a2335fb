package app_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
)

// The test of this file has a row in docs/runbooks/node-agent.md.

// liar is an xds-server that answers the first request of each stream with lies.
type liar struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	told atomic.Int64
}

// lies are responses by what is wrong with them, in groups of one stream.
func lies() [][]*discoveryv3.DeltaDiscoveryResponse {
	raw := func(b string) *discoveryv3.DeltaDiscoveryResponse {
		m := &discoveryv3.DeltaDiscoveryResponse{}
		m.ProtoReflect().SetUnknown([]byte(b)) // is sent as it is
		return m
	}
	one := func(url, nonce, name string, body *anypb.Any) *discoveryv3.DeltaDiscoveryResponse {
		return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: url, Nonce: nonce,
			Resources: []*discoveryv3.Resource{{Name: name, Version: "1", Resource: body}}}
	}
	garbage := &anypb.Any{TypeUrl: resource.ClusterType, Value: []byte("\xff\xff\xffgarbage")}
	return [][]*discoveryv3.DeltaDiscoveryResponse{
		{
			one("type.googleapis.com/nobody.asked", "1", "x", nil),
			one(resource.ListenerType, "1", "x", garbage),
			one(resource.ClusterType, "1", "x", garbage),
			one(resource.ClusterType, "1", "", &anypb.Any{TypeUrl: resource.ListenerType}),
			one(resource.ClusterType, "", "y", garbage),
			{TypeUrl: resource.ClusterType, Nonce: "2", RemovedResources: []string{"app", "app", "", "none"},
				Resources: []*discoveryv3.Resource{{Name: "app"}}},
			{},
		},
		{raw("\xff\xff\xff\xff\xff\xff")},
		{raw("\x0a\xff\xff\xff\xff\x0f")}, // a text that is longer than the message
		{raw("\x22\x04\xc3\x28\xa0\xa1")}, // a type that is no UTF-8
		{one(resource.ClusterType, "1", "x", &anypb.Any{TypeUrl: resource.ClusterType, Value: make([]byte, 65<<20)})},
	}
}

func (l *liar) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	all := lies()
	n := l.told.Load()
	for _, lie := range all[int(n)%len(all)] {
		if err := stream.Send(lie); err != nil {
			return err
		}
	}
	// It has been told when Envoy answers, or its end of the stream comes.
	_, err := stream.Recv()
	l.told.Add(1)
	return err
}

// An xds-server that sends garbage costs its own stream. Envoy keeps what it has, and the agent what it keeps.
func TestLyingControlPlane(t *testing.T) {
	m := newMesh(t)
	m.keeping()
	ca, _ := m.ca("", time.Hour)
	xds, _, stop := m.xds("")
	p := m.start(ca, xds)
	to := application(t, http.HandlerFunc(hello))
	m.inbound("1", p.ip, to, false)
	p.wantReady()
	stop()
	_, end := p.load()
	l := &liar{}
	_, stop = m.serve("xds-server", xds, "envoy.service.discovery.v3.AggregatedDiscoveryService", func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, l)
	})
	testkit.Eventually(t, 3*testkit.Patience, func() error {
		if n := l.told.Load(); n < int64(len(lies())) {
			return fmt.Errorf("%d lies told", n)
		}
		return nil
	})
	stop()
	end()
	p.wantReady()
	p.stop()
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	// What was kept is what Envoy accepted from the true one.
	p = m.again(p, ca, xds)
	p.wantReady()
	if status, body, err := get(p.url(appPort, "/")); err != nil || status != http.StatusOK || body != "hello" {
		t.Errorf("%d %q %v", status, body, err)
	}
	m.two("2", p.ip, to, 9081)
	m.xds(xds)
	p.serves(9081)
}
