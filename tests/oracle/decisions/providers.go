package decisions

import (
	"context"
	"net"
	"net/http"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/gate"
)

// What a request says to the providers, and what they add to those that they let pass.
const (
	askHeader   = "x-ext-authz"
	addedHeader = "x-ext-added"
)

// authorizer lets pass what asks for it by askHeader, and TCP connections of callers whose id has a "w".
type authorizer struct {
	auth.UnimplementedAuthorizationServer
	name string
}

// Check answers Envoy over gRPC.
func (a authorizer) Check(_ context.Context, r *auth.CheckRequest) (*auth.CheckResponse, error) {
	attributes := r.GetAttributes()
	passes := attributes.GetRequest().GetHttp().GetHeaders()[askHeader] == "allow"
	if attributes.GetRequest().GetHttp().GetMethod() == "" {
		passes = attributes.GetDestination().GetAddress().GetSocketAddress().GetPortValue()%2 == 0
	}
	if !passes {
		denied := &auth.DeniedHttpResponse{Status: &typev3.HttpStatus{Code: typev3.StatusCode_Forbidden}}
		return &auth.CheckResponse{
			Status:       &rpcstatus.Status{Code: int32(codes.PermissionDenied)},
			HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: denied},
		}, nil
	}
	return &auth.CheckResponse{Status: &rpcstatus.Status{}, HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{
		Headers: []*core.HeaderValueOption{{Header: &core.HeaderValue{Key: addedHeader, Value: a.name}}},
	}}}, nil
}

// ServeHTTP answers Envoy over HTTP.
func (a authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(askHeader) != "allow" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.Header().Set(addedHeader, a.name)
}

// serveProviders runs the providers, and returns where they are by their names.
func serveProviders(t *testing.T, providers []Provider) map[string]gate.Cluster {
	t.Helper()
	out := map[string]gate.Cluster{}
	for _, p := range providers {
		l := testkit.LoopbackListener(t)
		out[p.Name] = gate.Cluster{Address: l.Addr().String(), HTTP2: !p.HTTP}
		if p.HTTP {
			serveHTTP(t, l, authorizer{name: p.Name})
			continue
		}
		server := grpc.NewServer()
		auth.RegisterAuthorizationServer(server, authorizer{name: p.Name})
		go func() { _ = server.Serve(l) }() // until Stop
		t.Cleanup(server.Stop)
	}
	return out
}

func serveHTTP(t *testing.T, l net.Listener, h http.Handler) {
	t.Helper()
	server := &http.Server{Handler: h}  //nolint:gosec // its only caller is the test's Envoy
	go func() { _ = server.Serve(l) }() // until Close
	t.Cleanup(func() { server.Close() })
}
