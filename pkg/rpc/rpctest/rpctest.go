// Package rpctest runs gRPC servers in the process of a test as services run theirs: in the place of another service,
// or with what is under test.
package rpctest

import (
	"context"
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
)

// Serve serves on lis what register adds until the test ends or stop is called, which cuts calls that run. cfg needs no
// Log, by default the test's, and no Registerer.
func Serve(t testing.TB, lis net.Listener, cfg rpc.ServerConfig, register func(*grpc.Server), options ...grpc.ServerOption) (stop func()) {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = testkit.Logger(t)
	}
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	server, err := rpc.NewServer(cfg, options...)
	if err != nil {
		t.Fatal(err)
	}
	register(server)
	return testkit.Background(t, func(ctx context.Context) error { return rpc.Serve(ctx, server, lis, 0) })
}
