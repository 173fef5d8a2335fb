// Package listener builds listeners. A sidecar with redirected traffic has virtualOutbound and virtualInbound, which
// hand connections to listeners that bind no port (address.go) and to filter chains of inbound ports (inbound.go);
// without redirection all listeners bind their ports. Sidecars also have the explicit listeners of their Sidecar
// resource (outbound.go) and the HTTP forward proxy. A gateway has one listener per port (gateway.go).
//
// Translator builds them for LDS. Filter chains of TCP and TLS routes are in l4routes.go, their matches in
// duplicatematches.go, network filters in networkfilters.go; package hcm builds the HTTP connection managers.
package listener

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// Translator builds Listeners (LDS).
type Translator struct{}

// TypeURL implements plan.Translator.
func (Translator) TypeURL() string { return resourcev3.ListenerType }

// Traits of the type are the usual ones.
func (Translator) Traits() plan.Traits { return plan.Traits{} }

// Names lists the listeners that do not depend on services: those of redirected traffic, of the workload's own ports,
// of the Sidecar's explicit egress listeners and of the forward proxy, and all of a gateway.
func (Translator) Names(r *input.Reader) ([]string, error) {
	planned, err := hostIndependent(r)
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

// HostNames lists the listeners of the addresses at which a sidecar's application connects to a service.
func (Translator) HostNames(r *input.Reader, host string) ([]string, error) {
	if r.Class().Type == class.Router {
		return nil, nil
	}
	return addressListenerNames(r, r.Service(host)), nil
}

// Build implements plan.Translator.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	out, err := build(r, name)
	if _, incomplete := errors.AsType[*plan.Incomplete](err); out == nil || err != nil && !incomplete {
		return nil, err
	}
	log, failed := hcm.ListenerLog(r.Mesh())
	if failed != nil {
		return nil, failed
	}
	out.AccessLog = log
	if r.Class().Type == class.Router || out.GetTrafficDirection() == corev3.TrafficDirection_INBOUND {
		if err := policy.Lacking(r); err != nil {
			return out, &plan.Incomplete{Err: err}
		}
	}
	return out, err
}

// build builds a listener; of two with the same name the first in hostIndependent's order is built.
func build(r *input.Reader, name string) (*listenerv3.Listener, error) {
	if isRedirected(r) {
		switch name {
		case resourcename.VirtualOutbound:
			return virtualOutbound(r)
		case resourcename.VirtualInbound:
			return virtualInbound(r)
		}
	}
	planned, err := hostIndependent(r)
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
	return addressListener(r, name)
}

// planned is a listener that the class has; build builds it.
type planned struct {
	name  string
	build func() (*listenerv3.Listener, error)
}

func isRedirected(r *input.Reader) bool {
	return r.Class().Type != class.Router && r.Class().Interception != class.None
}

// hostIndependent lists the listeners of Names, in order of precedence.
func hostIndependent(r *input.Reader) ([]planned, error) {
	if r.Class().Type == class.Router {
		return planGateway(r)
	}
	var out []planned
	if isRedirected(r) {
		out = append(out,
			planned{resourcename.VirtualOutbound, func() (*listenerv3.Listener, error) { return virtualOutbound(r) }},
			planned{resourcename.VirtualInbound, func() (*listenerv3.Listener, error) { return virtualInbound(r) }},
		)
	}
	inboundListeners, err := planInbound(r)
	if err != nil {
		return nil, err
	}
	out = append(out, inboundListeners...)
	out = append(out, planExplicit(r)...)
	return append(out, planForwardProxy(r)...), nil
}
