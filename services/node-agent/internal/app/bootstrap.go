package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/protomerge"
	"fairlead.dev/services/node-agent/internal/bootstrap"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/envoy"
	"fairlead.dev/services/node-agent/internal/node"
	"fairlead.dev/services/node-agent/internal/relay"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// newBootstrap builds and writes Envoy's bootstrap.
func newBootstrap(c *config.Config, dir *statedir.Dir) (*bootstrapv3.Bootstrap, error) {
	n, err := node.New(c)
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitRefused)
	}
	b, err := bootstrap.Build(bootstrap.Input{
		Node:                     n,
		XDSPath:                  dir.EnvoyPath(statedir.XDS),
		SDSPath:                  dir.EnvoyPath(statedir.SDS),
		AdminPath:                dir.EnvoyPath(statedir.Admin),
		Delta:                    c.DeltaXDS,
		Status:                   c.StatusAddress,
		Ready:                    c.ReadyAddress,
		Stats:                    c.StatsAddress,
		MaxDownstreamConnections: c.MaxDownstreamConnections,
		RuntimeValues:            c.ProxyConfig.GetRuntimeValues(),
		StatsMatcher:             bootstrap.StatsMatcherFrom(c.ProxyConfig, c.Annotations),
		ExtraTags:                c.ProxyConfig.GetExtraStatTags(),
	})
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitRefused)
	}
	return b, bootstrap.Write(dir, b)
}

// patched asks an xds-server how EnvoyFilters change the bootstrap, and returns the path of the bootstrap to start
// with. If Envoy rejects the changed one, that is base's, and the xds-server is told why. It waits for an xds-server
// until ctx ends.
func patched(ctx context.Context, dir *statedir.Dir, base *bootstrapv3.Bootstrap, o envoy.Options, from *relay.Relay, log *slog.Logger) string {
	path := o.Bootstrap
	err := from.Fetch(ctx, base.GetNode(), bootstrap.TypeURL, func(a *anypb.Any) error {
		change := &bootstrapv3.Bootstrap{}
		if err := a.UnmarshalTo(change); err != nil {
			return err
		}
		if proto.Size(change) == 0 {
			return nil
		}
		if err := writePatched(dir, base, change); err != nil {
			return err
		}
		o.Bootstrap = dir.Path(statedir.Patched)
		if err := envoy.Validate(ctx, o); err != nil {
			return err
		}
		path = o.Bootstrap
		return nil
	})
	switch {
	case ctx.Err() != nil: // nothing starts any more
	case err != nil:
		log.Warn("Envoy starts without what EnvoyFilters change of its bootstrap", "error", err)
	default:
		log.Info("EnvoyFilters were asked for", "bootstrap", path)
	}
	return path
}

// writePatched writes the changed bootstrap as protobuf, not JSON: it may contain messages that only Envoy knows.
func writePatched(dir *statedir.Dir, base, change *bootstrapv3.Bootstrap) error {
	if change.GetNode() != nil {
		return errors.New("the xds-server sent a whole bootstrap, not what EnvoyFilters change of one")
	}
	whole := proto.CloneOf(base)
	if err := (protomerge.Rules{}).Merge(whole, change); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(whole)
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return dir.Write(statedir.Patched, data)
}
