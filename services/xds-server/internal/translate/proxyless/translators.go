// Package proxyless builds the resources of proxyless gRPC clients and servers: programs whose gRPC library speaks xDS.
// They request everything by name, support a small part of what Envoy does, and reject configuration that they do not
// support. This package builds only that part, as gRPC's proposals A27 to A53 describe it. WithGRPCClients is its entry
// point. Names of resources are those of Istio's agents and control plane for gRPC.
package proxyless

import (
	"google.golang.org/protobuf/proto"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// WithGRPCClients returns a translator that builds the resources of proxyless gRPC clients and servers, and has proxies
// build those of all other classes.
func WithGRPCClients(proxies plan.Translator) plan.Translator {
	return withGRPCClients{proxies, builders[proxies.TypeURL()]}
}

// builders of the types that gRPC requests. Each returns nil, nil if there is no resource of the name.
var builders = map[string]func(r *input.Reader, name string) (proto.Message, error){
	resourcev3.ListenerType: func(r *input.Reader, name string) (proto.Message, error) {
		out, err := listener(r, name)
		return message(out, out == nil, err)
	},
	resourcev3.RouteType: func(r *input.Reader, name string) (proto.Message, error) {
		out, err := routes(r, name)
		return message(out, out == nil, err)
	},
	resourcev3.ClusterType: func(r *input.Reader, name string) (proto.Message, error) {
		out, err := cluster(r, name)
		return message(out, out == nil, err)
	},
	resourcev3.EndpointType: func(r *input.Reader, name string) (proto.Message, error) {
		out, err := endpoints(r, name)
		return message(out, out == nil, err)
	},
}

func message(m proto.Message, none bool, err error) (proto.Message, error) {
	if none || err != nil {
		return nil, err
	}
	return m, nil
}

type withGRPCClients struct {
	proxies plan.Translator
	build   func(*input.Reader, string) (proto.Message, error)
}

func (b withGRPCClients) TypeURL() string { return b.proxies.TypeURL() }

// Traits are those of the translator for proxies.
func (b withGRPCClients) Traits() plan.Traits { return b.proxies.Traits() }

// Names is nil for gRPC, which requests everything by name.
func (b withGRPCClients) Names(r *input.Reader) ([]string, error) {
	if isGRPCClient(r) {
		return nil, nil
	}
	return b.proxies.Names(r)
}

// HostNames is nil for gRPC, like Names.
func (b withGRPCClients) HostNames(r *input.Reader, host string) ([]string, error) {
	if isGRPCClient(r) {
		return nil, nil
	}
	return b.proxies.HostNames(r, host)
}

func (b withGRPCClients) Build(r *input.Reader, name string) (proto.Message, error) {
	if !isGRPCClient(r) {
		return b.proxies.Build(r, name)
	}
	if b.build == nil {
		return nil, nil
	}
	return b.build(r, name)
}

func isGRPCClient(r *input.Reader) bool { return r.Class().Type == class.Proxyless }
