package app

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/config-watcher/internal/gatewayname"
	"fairlead.dev/services/config-watcher/internal/jwks"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/pipeline"
)

// newKeys makes the table of keys that verify tokens, before the next stage.
func (s *Server) newKeys(next func(context.Context, []normalise.Change)) (*jwks.Table, error) {
	fetcher, err := jwks.NewFetcher(jwks.FetcherConfig{Addresses: fetch.Addresses{Allow: s.cfg.jwksAllow}, RootsFile: s.cfg.JWKSCAFile,
		Clock: s.Clock, Log: s.Log})
	if err != nil {
		return nil, process.WithExitCode(fmt.Errorf("--jwks-ca-file: %w", err), process.ExitUsage)
	}
	keys := jwks.NewTable(jwks.Config{Fetcher: fetcher, PerNamespace: s.cfg.MaxNamespaceJWKS, Shortest: s.cfg.JWKSMinInterval,
		Saved: s.dirs.saved, Next: next, Clock: s.Clock, Log: s.Log, Random: rand.Float64})
	keys.Collect(s.Registry)
	return keys, nil
}

// newGatewayNames makes the table of host names of gateways, before the next stage.
func (s *Server) newGatewayNames(next func(context.Context, []normalise.Change)) *gatewayname.Table {
	names := gatewayname.NewTable(gatewayname.Config{Resolver: net.DefaultResolver, Every: s.cfg.GatewayNamesEvery, Domain: s.cfg.DomainSuffix,
		Saved: s.dirs.saved, Next: next, Clock: s.Clock, Log: s.Log})
	names.Collect(s.Registry)
	return names
}

// waiter waits for what was submitted to the table of keys, and then for the pipeline.
type waiter struct {
	keys     *jwks.Table
	pipeline *pipeline.Pipeline
}

// Wait returns the revision that contains everything that was submitted before the call.
func (w waiter) Wait(ctx context.Context) (uint64, error) {
	if err := w.keys.Wait(ctx); err != nil {
		return 0, err
	}
	return w.pipeline.Wait(ctx)
}
