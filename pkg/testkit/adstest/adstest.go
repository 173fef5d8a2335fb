// Package adstest is the client of an ADS stream for tests: Delta and Sotw are streams that a test drives request by
// request, in the place of a proxy. The first request of a stream has the node, as Envoy's has.
package adstest

import (
	"context"
	"fmt"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"
)

// Node is what a proxy with an id says of itself. metadata holds texts, numbers, lists and maps, and may be nil.
func Node(id string, metadata map[string]any) *core.Node {
	n := &core.Node{Id: id}
	if metadata != nil {
		var err error
		if n.Metadata, err = structpb.NewStruct(metadata); err != nil {
			panic(err) // metadata that cannot be encoded is a broken test
		}
	}
	return n
}

// Sidecar is the id of the proxy of a Pod.
func Sidecar(ip, pod, namespace string) string {
	return fmt.Sprintf("sidecar~%s~%s.%s~%[3]s.svc.cluster.local", ip, pod, namespace)
}

// Delta is a stream of the delta protocol. One goroutine may send while another receives.
type Delta struct {
	discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	// Node is sent with the first request.
	Node *core.Node
}

// OpenDelta opens a stream that lasts as long as ctx. It waits for the connection, unless options say otherwise.
func OpenDelta(ctx context.Context, conn *grpc.ClientConn, node *core.Node, options ...grpc.CallOption) (*Delta, error) {
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, waiting(options)...)
	return &Delta{stream, node}, err
}

// Send sends a request. Its error is io.EOF if the stream has ended; Drain returns the reason.
func (d *Delta) Send(m *discovery.DeltaDiscoveryRequest) error {
	m.Node, d.Node = d.Node, nil
	return d.AggregatedDiscoveryService_DeltaAggregatedResourcesClient.Send(m)
}

// Subscribe asks for resources; "*" is all there are.
func (d *Delta) Subscribe(url string, names ...string) error {
	return d.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: url, ResourceNamesSubscribe: names})
}

// Answer acknowledges a response, or rejects it with the text of an error.
func (d *Delta) Answer(m *discovery.DeltaDiscoveryResponse, failure error) error {
	return d.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce(), ErrorDetail: detail(failure)})
}

// Next receives a response, which must be of a type.
func (d *Delta) Next(url string) (*discovery.DeltaDiscoveryResponse, error) {
	m, err := d.Recv()
	if err == nil && m.GetTypeUrl() != url {
		err = fmt.Errorf("received %s, want %s", m.GetTypeUrl(), url)
	}
	return m, err
}

// Follow hands all further responses to see, and answers each with what see returns. It returns why the stream ended.
func (d *Delta) Follow(see func(*discovery.DeltaDiscoveryResponse) error) error {
	for {
		m, err := d.Recv()
		if err != nil {
			return err
		}
		if d.Answer(m, see(m)) != nil {
			return d.Drain()
		}
	}
}

// Drain receives what comes, without an answer, and returns why the stream ended.
func (d *Delta) Drain() error {
	for {
		if _, err := d.Recv(); err != nil {
			return err
		}
	}
}

// Sotw is a stream of the state-of-the-world protocol. One goroutine may send while another receives.
type Sotw struct {
	discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	// Node is sent with the first request.
	Node *core.Node
}

// OpenSotw is as OpenDelta.
func OpenSotw(ctx context.Context, conn *grpc.ClientConn, node *core.Node, options ...grpc.CallOption) (*Sotw, error) {
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, waiting(options)...)
	return &Sotw{stream, node}, err
}

// Send is as that of Delta.
func (s *Sotw) Send(m *discovery.DiscoveryRequest) error {
	m.Node, s.Node = s.Node, nil
	return s.AggregatedDiscoveryService_StreamAggregatedResourcesClient.Send(m)
}

// Answer acknowledges a response, or rejects it with the text of an error; the client holds version then.
func (s *Sotw) Answer(m *discovery.DiscoveryResponse, version string, failure error) error {
	return s.Send(&discovery.DiscoveryRequest{TypeUrl: m.GetTypeUrl(), VersionInfo: version, ResponseNonce: m.GetNonce(),
		ErrorDetail: detail(failure)})
}

// Drain is as that of Delta.
func (s *Sotw) Drain() error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

func waiting(options []grpc.CallOption) []grpc.CallOption {
	return append([]grpc.CallOption{grpc.WaitForReady(true)}, options...)
}

func detail(failure error) *rpcstatus.Status {
	if failure == nil {
		return nil
	}
	return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: failure.Error()}
}
