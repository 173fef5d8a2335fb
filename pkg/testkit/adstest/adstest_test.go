package adstest_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
)

// server answers a subscription with a response of its type, and ends the stream at a NACK, or with the node of a
// request for the type "who".
type server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
}

func (server) DeltaAggregatedResources(stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	first := ""
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		first += m.GetNode().GetId()
		switch {
		case m.GetErrorDetail() != nil:
			return status.Error(codes.Aborted, m.GetErrorDetail().GetMessage())
		case m.GetTypeUrl() == "who":
			return status.Error(codes.Aborted, first)
		case m.GetResponseNonce() == "":
			err = stream.Send(&discovery.DeltaDiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n"})
		}
		if err != nil {
			return err
		}
	}
}

func (server) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if m.GetErrorDetail() != nil {
			return status.Error(codes.Aborted, m.GetErrorDetail().GetMessage()+" of "+m.GetVersionInfo())
		}
		if err := stream.Send(&discovery.DiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n"}); err != nil {
			return err
		}
	}
}

func serve(t *testing.T) *grpc.ClientConn {
	return testkit.ServeInMemory(t, func(g *grpc.Server) { discovery.RegisterAggregatedDiscoveryServiceServer(g, server{}) })
}

func TestDelta(t *testing.T) {
	conn, id := serve(t), adstest.Sidecar("10.1.0.9", "web", "shop")
	for name, tc := range map[string]struct {
		do   func(*adstest.Delta) error
		want string
	}{
		"the first request alone has the node": {func(d *adstest.Delta) error {
			return errors.Join(d.Subscribe("a", "x"), d.Subscribe("who"), d.Drain())
		}, "sidecar~10.1.0.9~web.shop~shop.svc.cluster.local"},
		"a response of another type": {func(d *adstest.Delta) error {
			if err := d.Subscribe("a"); err != nil {
				return err
			}
			_, err := d.Next("b")
			return err
		}, "received a, want b"},
		"Follow rejects with what see returns": {func(d *adstest.Delta) error {
			seen := 0
			return errors.Join(d.Subscribe("a"), d.Subscribe("b"), d.Follow(func(*discovery.DeltaDiscoveryResponse) error {
				if seen++; seen == 2 {
					return errors.New("the second")
				}
				return nil
			}))
		}, "the second"},
	} {
		t.Run(name, func(t *testing.T) {
			d := testkit.Must(adstest.OpenDelta(t.Context(), conn, adstest.Node(id, map[string]any{"LABELS": map[string]any{}})))(t)
			if err := tc.do(d); err == nil || !strings.HasSuffix(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestSotw(t *testing.T) {
	s := testkit.Must(adstest.OpenSotw(t.Context(), serve(t), adstest.Node("x", nil)))(t)
	testkit.NoError(t, s.Send(&discovery.DiscoveryRequest{TypeUrl: "a"}))
	testkit.NoError(t, s.Answer(testkit.Must(s.Recv())(t), "1", errors.New("no")))
	if err := s.Drain(); errors.Is(err, io.EOF) || status.Convert(err).Message() != "no of 1" {
		t.Errorf("ended with %v", err)
	}
}
