// Package beside is the servers beside the echo application: those that proxies ask whether a request may pass, and
// those that they tell what they have done.
package beside

import (
	"net/http"

	"google.golang.org/grpc"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"

	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/rawgrpc"
)

// New is the server of a port with an application of format's; nil if it is an echo application. What is told it is put
// into collected.
func New(app string, collected *Collected) http.Handler {
	switch app {
	case format.AppExtAuthzHTTP:
		return http.HandlerFunc(check)
	case format.AppExtAuthzGRPC:
		s := grpc.NewServer()
		authv3.RegisterAuthorizationServer(s, authorization{})
		return s
	case format.AppOTLP, format.AppALS:
		return grpc.NewServer(grpc.ForceServerCodec(rawgrpc.Codec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			return collected.stream(app, stream)
		}))
	case format.AppZipkin:
		return http.HandlerFunc(collected.zipkin)
	}
	return nil
}
