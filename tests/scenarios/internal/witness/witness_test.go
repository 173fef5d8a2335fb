package witness_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/tests/scenarios/internal/witness"
)

const listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"

// authority is that of the proxy's streams.
const authority = "xds-grpc"

// agent answers each request by the type that it names: a listener for listeners, and for all else what it was asked.
// It takes streams of the authority alone.
type agent struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	listener *anypb.Any
}

func (a agent) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if got := metadata.ValueFromIncomingContext(s.Context(), ":authority"); !slices.Equal(got, []string{authority}) {
		return status.Errorf(codes.InvalidArgument, "a stream of the authority %q", got)
	}
	for {
		r, err := s.Recv()
		if err != nil {
			return nil //nolint:nilerr // the proxy has ended the stream
		}
		if err := s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.GetTypeUrl(), Nonce: r.GetNode().GetId(),
			Resources: []*discoveryv3.Resource{{Name: "a", Version: "1", Resource: a.listener}}}); err != nil {
			return err
		}
	}
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	out, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func chain(t *testing.T, filters ...proto.Message) *listenerv3.FilterChain {
	t.Helper()
	c := &listenerv3.FilterChain{}
	for _, f := range filters {
		c.Filters = append(c.Filters, &listenerv3.Filter{ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, f)}})
	}
	return c
}

// TestWitness: what the proxy is sent has a log more in each filter that writes one, and nothing else is changed.
func TestWitness(t *testing.T) {
	dir := t.TempDir()
	of, socket, log := filepath.Join(dir, "XDS"), filepath.Join(dir, "witness"), filepath.Join(dir, "log")
	lis, err := new(net.ListenConfig).Listen(t.Context(), "unix", of)
	if err != nil {
		t.Fatal(err)
	}
	l := &listenerv3.Listener{Name: "a", FilterChains: []*listenerv3.FilterChain{
		chain(t, &corev3.Address{}, &hcmv3.HttpConnectionManager{StatPrefix: "h"}), chain(t, &tcpv3.TcpProxy{StatPrefix: "t"}),
	}, DefaultFilterChain: chain(t, &tcpv3.TcpProxy{StatPrefix: "d"})}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, agent{listener: packed(t, l)})
	go func() { _ = server.Serve(lis) }()
	defer server.Stop()
	w, err := witness.Start(socket, of, log, os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context(), grpc.CallAuthority(authority))
	if err != nil {
		t.Fatal(err)
	}
	for _, typeURL := range []string{"type.googleapis.com/other", listenerType} {
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, Node: &corev3.Node{Id: "n"}}); err != nil {
			t.Fatal(err)
		}
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		out := &listenerv3.Listener{}
		first := got.GetResources()[0]
		if err := first.GetResource().UnmarshalTo(out); err != nil || got.GetNonce() != "n" || first.GetVersion() != "1" {
			t.Fatalf("got %v (%v)", got, err)
		}
		logs := strings.Count(out.String(), "fairlead.tests.witness")
		if typeURL != listenerType && !proto.Equal(out, l) || typeURL == listenerType && logs != 3 {
			t.Errorf("%s: %d logs in %v", typeURL, logs, out)
		}
	}
	if _, err := os.Stat(log); err != nil {
		t.Error(err)
	}
}

// TestProgram: the bootstrap that the proxy starts with leads to the witness, and every argument reaches it.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	program, envoy := filepath.Join(dir, "program"), filepath.Join(dir, "envoy")
	script := []byte("#!/bin/sh\nfor a in \"$@\"; do echo \"[$a]\"; done\ncat \"$4\"\n")
	if err := os.WriteFile(envoy, script, 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	if err := witness.Program(program, envoy, "./XDS", "./WIT"); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"b.json": `{"pipe": {"path": "%s"}, "path":"XDSOTHER"}`, "b.c.pb": "\x0a\xff\x00\x05%s\x12\x03XDS",
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, fmt.Appendf(nil, text, "./XDS"), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), program, "--mode", "validate", "-c", file, "--x", "", "a b").CombinedOutput()
		ext := filepath.Ext(name)
		want := "[--mode]\n[validate]\n[-c]\n[" + strings.TrimSuffix(file, ext) + ".witness" + ext + "]\n[--x]\n[]\n[a b]\n" +
			fmt.Sprintf(text, "./WIT")
		if err != nil || string(out) != want {
			t.Errorf("it runs %q (%v), want %q", out, err, want)
		}
	}
	if err := witness.Program(program, envoy, "./XDS", "./witness"); err == nil {
		t.Error("a path of another length was put into a binary message")
	}
}
