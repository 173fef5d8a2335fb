// Package listener builds listeners: a sidecar's two capturing ones and those they hand connections to, real ones where nothing captures,
// and a gateway's.
package listener

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/names"
)

// Translator makes Listeners (LDS).
type Translator struct{}

// TypeURL of the resources.
func (Translator) TypeURL() string { return resourcev3.ListenerType }

// Names lists the listeners of the class.
func (Translator) Names(r *input.Reader) ([]string, error) {
	planned, err := plan(r, "")
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(planned))
	for _, p := range planned {
		out = append(out, p.name)
	}
	slices.Sort(out)
	return out, nil
}

// Build makes one listener.
func (Translator) Build(r *input.Reader, name string) (proto.Message, error) {
	planned, err := plan(r, name)
	if err != nil {
		return nil, err
	}
	for _, p := range planned {
		if p.name == name {
			out, err := p.build()
			if out == nil || err != nil {
				return nil, err
			}
			return out, nil
		}
	}
	return nil, nil
}

// planned is a listener that the class has, not built yet.
type planned struct {
	name  string
	build func() (*listenerv3.Listener, error)
}

// plan lists the class's listeners, each name once; of two that want one place the first wins. With a name, only what could have that name
// is looked for.
func plan(r *input.Reader, name string) ([]planned, error) {
	var out []planned
	var err error
	if r.Class().Type == class.Router {
		out, err = planGateway(r)
	} else {
		out, err = planSidecar(r, name)
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(p planned) bool {
		repeated := seen[p.name]
		seen[p.name] = true
		return repeated
	}), err
}

func planSidecar(r *input.Reader, name string) ([]planned, error) {
	var out []planned
	captured := r.Class().Interception != class.None
	if captured {
		out = append(out,
			planned{names.VirtualOutbound, func() (*listenerv3.Listener, error) { return virtualOutbound(r) }},
			planned{names.VirtualInbound, func() (*listenerv3.Listener, error) { return virtualInbound(r) }},
		)
		if name == names.VirtualOutbound || name == names.VirtualInbound {
			return out, nil
		}
	}
	inboundListeners, err := planInbound(r)
	if err != nil {
		return nil, err
	}
	out = append(out, inboundListeners...)
	out = append(out, planExplicit(r)...)
	out = append(out, planProxy(r)...)
	only := uint32(0)
	if name != "" {
		// Names that are no place belong to none of the following.
		place := strings.LastIndexByte(name, '_')
		var ok bool
		if _, only, ok = names.ParseListener(name); !ok || place < 0 {
			return out, nil
		}
	}
	return append(out, planImplicit(r, only)...), nil
}
