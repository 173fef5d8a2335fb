// Package listener builds listeners: a sidecar's two capturing ones and those they hand connections to, real ones where nothing captures,
// and a gateway's.
package listener

import (
	"slices"

	"google.golang.org/protobuf/proto"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/names"
)

// Translator makes Listeners (LDS).
type Translator struct{}

// TypeURL of the resources.
func (Translator) TypeURL() string { return resourcev3.ListenerType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names lists the listeners that the class has whatever services there are: those that capture, the workload's own ports, the Sidecar's
// explicit listeners, the forward proxy, and all of a gateway.
func (Translator) Names(r *input.Reader) ([]string, error) {
	planned, err := fixed(r)
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(planned))
	for _, p := range planned {
		out = append(out, p.name)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// HostNames lists the places where a sidecar's application connects to a service.
func (Translator) HostNames(r *input.Reader, host string) ([]string, error) {
	if r.Class().Type == class.Router {
		return nil, nil
	}
	return implicitNames(r, r.Service(host)), nil
}

// Build makes one listener.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	out, err := build(r, name)
	if out == nil || err != nil {
		return nil, err
	}
	if out.AccessLog, err = hcm.ListenerLog(r.Mesh()); err != nil {
		return nil, err
	}
	return out, nil
}

// build makes a listener; of two that want one place the first wins.
func build(r *input.Reader, name string) (*listenerv3.Listener, error) {
	if captured(r) {
		switch name {
		case names.VirtualOutbound:
			return virtualOutbound(r)
		case names.VirtualInbound:
			return virtualInbound(r)
		}
	}
	planned, err := fixed(r)
	if err != nil {
		return nil, err
	}
	for _, p := range planned {
		if p.name == name {
			return p.build()
		}
	}
	if r.Class().Type == class.Router {
		return nil, nil
	}
	return implicit(r, name)
}

// planned is a listener that the class has, not built yet.
type planned struct {
	name  string
	build func() (*listenerv3.Listener, error)
}

func captured(r *input.Reader) bool {
	return r.Class().Type != class.Router && r.Class().Interception != class.None
}

// fixed lists the listeners of Names, in the order of their precedence.
func fixed(r *input.Reader) ([]planned, error) {
	if r.Class().Type == class.Router {
		return planGateway(r)
	}
	var out []planned
	if captured(r) {
		out = append(out,
			planned{names.VirtualOutbound, func() (*listenerv3.Listener, error) { return virtualOutbound(r) }},
			planned{names.VirtualInbound, func() (*listenerv3.Listener, error) { return virtualInbound(r) }},
		)
	}
	inboundListeners, err := planInbound(r)
	if err != nil {
		return nil, err
	}
	out = append(out, inboundListeners...)
	out = append(out, planExplicit(r)...)
	return append(out, planProxy(r)...), nil
}
