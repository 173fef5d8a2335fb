package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/protomerge"
	"fairlead.dev/services/node-agent/internal/bootstrap"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/envoy"
	"fairlead.dev/services/node-agent/internal/node"
	"fairlead.dev/services/node-agent/internal/relay"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// resolveTimeout bounds the look-up of the statsd server's name, on which Envoy's start waits.
const resolveTimeout = 5 * time.Second

// newBootstrap builds and writes Envoy's bootstrap, and sets the options that go with it. It returns the agent's own
// bootstrap, nil if a template has taken its place.
func newBootstrap(ctx context.Context, c *config.Config, dir *statedir.Dir, o *envoy.Options, log *slog.Logger) (*bootstrapv3.Bootstrap,
	error) {
	in, err := bootstrapInput(ctx, c, dir, log)
	var own *bootstrapv3.Bootstrap
	if err == nil {
		own, err = bootstrap.Build(in)
	}
	if err == nil && c.Envoy.BootstrapOverride != nil {
		if o.Override, err = bootstrap.Override(c.Envoy.BootstrapOverride, c.Envoy.HostIP); err != nil {
			err = fmt.Errorf("ISTIO_BOOTSTRAP_OVERRIDE: %s: %w", c.Envoy.OverrideFile, err)
		}
	}
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitRefused)
	}
	o.AnyFields = o.Override != "" || c.Envoy.BootstrapTemplate != nil // they may be for another Envoy
	if err := bootstrap.Write(dir, own); err != nil {
		return nil, err
	}
	if c.Envoy.BootstrapTemplate != nil {
		if err := writeTemplate(c, dir, own, in); err != nil {
			return nil, process.WithExitCode(fmt.Errorf("bootstrap template %s: %w", c.Envoy.TemplateFile, err), process.ExitRefused)
		}
		own = nil
	}
	if o.AnyFields { // by hands other than the agent's
		if err := envoy.Validate(ctx, *o); err != nil {
			return nil, process.WithExitCode(err, process.ExitRefused)
		}
	}
	return own, nil
}

func bootstrapInput(ctx context.Context, c *config.Config, dir *statedir.Dir, log *slog.Logger) (bootstrap.Input, error) {
	n, err := node.New(c)
	if err != nil {
		return bootstrap.Input{}, err
	}
	addresses := lists.Map(c.InstanceIPs, netip.Addr.String)
	telemetry, warnings, err := bootstrap.TelemetryFrom(c.ProxyConfig, c.Annotations, addresses, c.Envoy.HostIP)
	if err != nil {
		return bootstrap.Input{}, err
	}
	for _, w := range warnings {
		log.Warn("configuration", "warning", w)
	}
	return bootstrap.Input{
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
		Telemetry:                telemetry,
		Statsd:                   resolve(ctx, telemetry.StatsdAddress, log),
		OutlierLog:               c.Envoy.OutlierLog,
		ReadyProxyProtocol:       c.Envoy.ReadyProxyProtocol,
	}, nil
}

// resolve finds the address of the statsd server, because Envoy wants no name there. Without one Envoy starts without
// the sink, as in Istio.
func resolve(ctx context.Context, address string, log *slog.Logger) netip.AddrPort {
	if address == "" {
		return netip.AddrPort{}
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	host, port, _ := net.SplitHostPort(address)
	number, _ := strconv.ParseUint(port, 10, 16)
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(found) == 0 {
		err = errors.New("no address")
	}
	if err != nil {
		log.Warn("Envoy sends no stats to statsd", "field", "statsdUdpAddress", "address", address, "error", err)
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(found[0].Unmap(), uint16(number))
}

// writeTemplate renders the template in the place of the agent's bootstrap.
func writeTemplate(c *config.Config, dir *statedir.Dir, own *bootstrapv3.Bootstrap, in bootstrap.Input) error {
	text, err := bootstrap.JSON(own)
	if err != nil {
		return err
	}
	js, err := protojson.Marshal(c.ProxyConfig)
	if err != nil {
		return err
	}
	var pc map[string]any
	if err := json.Unmarshal(js, &pc); err != nil {
		return err
	}
	out, err := bootstrap.FromTemplate(string(c.Envoy.BootstrapTemplate), text, in, pc)
	if err != nil {
		return err
	}
	return dir.Write(statedir.Bootstrap, out)
}

// patched asks an xds-server how EnvoyFilters change the bootstrap, and returns the path of the bootstrap to start
// with. If Envoy rejects the changed one, that is base's, and the xds-server is told why. It waits for an xds-server
// until ctx ends.
func patched(ctx context.Context, dir *statedir.Dir, base *bootstrapv3.Bootstrap, o envoy.Options, from *relay.Relay,
	log *slog.Logger) string {
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
