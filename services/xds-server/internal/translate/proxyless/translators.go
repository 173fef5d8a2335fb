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

// Beside returns a translator that makes the resources of gRPC programs itself and leaves all other classes to the given one.
func Beside(proxies plan.Translator) plan.Translator {
	return beside{proxies, builders[proxies.TypeURL()]}
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

type beside struct {
	proxies plan.Translator
	build   func(*input.Reader, string) (proto.Message, error)
}

func (b beside) TypeURL() string { return b.proxies.TypeURL() }

// Traits are those of the given translator.
func (b beside) Traits() plan.Traits { return b.proxies.Traits() }

// Names is nil for programs: they ask for everything by name.
func (b beside) Names(r *input.Reader) ([]string, error) {
	if isProgram(r) {
		return nil, nil
	}
	return b.proxies.Names(r)
}

// HostNames is nil for programs, like Names.
func (b beside) HostNames(r *input.Reader, host string) ([]string, error) {
	if isProgram(r) {
		return nil, nil
	}
	return b.proxies.HostNames(r, host)
}

// Build makes one resource.
func (b beside) Build(r *input.Reader, name string) (proto.Message, error) {
	if !isProgram(r) {
		return b.proxies.Build(r, name)
	}
	if b.build == nil {
		return nil, nil
	}
	return b.build(r, name)
}

func isProgram(r *input.Reader) bool { return r.Class().Type == class.Proxyless }
