// Package proxyless builds the resources of gRPC programs that speak xDS themselves. They ask for everything by name, understand a small
// part of what Envoy does, and reject what they do not understand; what is built here is no more than that part, which gRPC's proposals
// A27 to A53 describe. Names are those of Istio's agents and of its control plane for such programs.
package proxyless

import (
	"google.golang.org/protobuf/proto"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
)

// WithGRPCClients returns a translator that makes the resources of gRPC programs itself and leaves all other classes to the given one, which stays a
// plan.Ahead if it is one.
func WithGRPCClients(proxies plan.Translator) plan.Translator {
	b := withGRPCClients{proxies, builders[proxies.TypeURL()]}
	if _, ok := proxies.(plan.Ahead); ok {
		return aheadOfRequests{b}
	}
	return b
}

// builders of the types that programs ask for. Each returns nil, nil where there is no resource of the name.
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

// Names is nil for programs: they ask for everything by name.
func (b withGRPCClients) Names(r *input.Reader) ([]string, error) {
	if isGRPCClient(r) {
		return nil, nil
	}
	return b.proxies.Names(r)
}

// HostNames is nil for programs, like Names.
func (b withGRPCClients) HostNames(r *input.Reader, host string) ([]string, error) {
	if isGRPCClient(r) {
		return nil, nil
	}
	return b.proxies.HostNames(r, host)
}

// Build makes one resource.
func (b withGRPCClients) Build(r *input.Reader, name string) (proto.Message, error) {
	if !isGRPCClient(r) {
		return b.proxies.Build(r, name)
	}
	if b.build == nil {
		return nil, nil
	}
	return b.build(r, name)
}

type aheadOfRequests struct{ withGRPCClients }

// Ahead implements plan.Ahead.
func (aheadOfRequests) Ahead() {}

func isGRPCClient(r *input.Reader) bool { return r.Class().Type == class.Proxyless }
