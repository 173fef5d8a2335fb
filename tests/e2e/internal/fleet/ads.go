package fleet

import (
	"context"
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
)

// ADS is a delta stream to an xds-server that a test drives by hand, in place of a Pod's proxy.
type ADS struct {
	t      *testing.T
	node   *corev3.Node
	stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

// ADS connects to an xds-server with the token of a Pod whose own proxy does not run.
func (m *Mesh) ADS(t *testing.T, pod, server string) *ADS {
	t.Helper()
	p := m.Pod(t, pod)
	return m.Claiming(t, pod, server, &corev3.Node{Id: fmt.Sprintf("sidecar~%s~%s~%s.svc.cluster.local", p.IP, p.ID(), p.Namespace)})
}

// Claiming connects to an xds-server with the token of a Pod, as whatever node the test says.
func (m *Mesh) Claiming(t *testing.T, pod, server string, node *corev3.Node) *ADS {
	t.Helper()
	state := m.State(t)
	p, err := state.Pod(pod)
	if err != nil {
		t.Fatal(err)
	}
	s, err := state.Service(server)
	if err != nil {
		t.Fatal(err)
	}
	id, err := spiffeid.FromString(s.Identity)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: s.GRPCAddress, TLS: tlsconf.Client(tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: state.RootCertFile}), id),
		TokenFile: p.Agent.TokenFile,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	// A response that does not come must end the test, not stop it.
	ctx, cancel := context.WithTimeout(t.Context(), Ready)
	t.Cleanup(cancel)
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return &ADS{t: t, node: node, stream: stream}
}

// Refused waits for the end of the stream, whose reason it returns.
func (a *ADS) Refused() error {
	a.t.Helper()
	m, err := a.stream.Recv()
	if err == nil {
		a.t.Fatalf("received %s", m.GetTypeUrl())
	}
	return err
}

// Subscribe asks for resources; "*" is all there are.
func (a *ADS) Subscribe(url string, names ...string) {
	a.send(&discovery.DeltaDiscoveryRequest{TypeUrl: url, ResourceNamesSubscribe: names})
}

// Next receives a response, which must be of the type.
func (a *ADS) Next(url string) *discovery.DeltaDiscoveryResponse {
	a.t.Helper()
	m, err := a.stream.Recv()
	if err != nil {
		a.t.Fatal(err)
	}
	if m.GetTypeUrl() != url {
		a.t.Fatalf("received %s, want %s", m.GetTypeUrl(), url)
	}
	return m
}

// Ack acknowledges a response.
func (a *ADS) Ack(m *discovery.DeltaDiscoveryResponse) {
	a.send(&discovery.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()})
}

// Nack rejects a response.
func (a *ADS) Nack(m *discovery.DeltaDiscoveryResponse, message string) {
	a.send(&discovery.DeltaDiscoveryRequest{
		TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce(),
		ErrorDetail: &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: message},
	})
}

func (a *ADS) send(m *discovery.DeltaDiscoveryRequest) {
	a.t.Helper()
	m.Node, a.node = a.node, nil
	if err := a.stream.Send(m); err != nil {
		a.t.Fatal(err)
	}
}
