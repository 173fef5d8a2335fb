package normalise

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// joinedTotal is about the sum of the weights of all endpoints of a Service that a registry's are added to. It is large
// enough for shares of a percent among some thousand endpoints, and far below what Envoy can add up.
const joinedTotal = 10_000_000

// addJoined adds the endpoints of the oldest registry's ServiceEntry that joins the host, and divides the traffic
// between them and the others by its share. It adds those with an IP address alone, as Services have. Of a ServiceEntry
// with several ports, that with the service port's number counts; else the only port joins the only one.
func (m *Mesh) addJoined(b *setBuilder, h *host) {
	if h.joiners.Len() == 0 || b.svc.Resolution != configv1.Resolution_RESOLUTION_STATIC {
		return
	}
	var joiner *owner
	for o := range h.joiners.All {
		if joiner == nil || object.Older(o.object, joiner.object) {
			joiner = o
		}
	}
	ports := joiner.entry.Ports
	i := slices.IndexFunc(ports, func(p *networking.ServicePort) bool { return p.Number == b.port.Number })
	if i < 0 && len(ports) == 1 && len(b.svc.Ports) == 1 {
		i = 0
	}
	if i < 0 {
		return
	}
	own := len(b.items)
	m.addEntryPort(b, joiner, ports[i])
	joined := slices.DeleteFunc(b.items[own:], func(c candidate) bool { return familyOf(c.endpoint.Address) == "" })
	b.items = b.items[:own+len(joined)]
	switch share := joiner.registered.Share; share {
	case 0:
		b.items = b.items[:own]
	case 100:
		b.items = b.items[own:]
	default:
		weigh(b.items[:own], 100-share)
		weigh(b.items[own:], share)
	}
}

// weigh gives the candidates that are ready a share of joinedTotal, in percent, and divides it by their weights. If
// there are none, the others have all traffic whatever they weigh.
func weigh(items []candidate, share uint32) {
	var ready, all uint64
	for _, c := range items {
		all += uint64(max(c.endpoint.Weight, 1))
		if c.endpoint.Health == configv1.Health_HEALTH_READY {
			ready += uint64(max(c.endpoint.Weight, 1))
		}
	}
	if ready == 0 {
		ready = all
	}
	for _, c := range items {
		w := uint64(max(c.endpoint.Weight, 1)) * joinedTotal / 100 * uint64(share) / ready
		c.endpoint.Weight = uint32(min(max(w, 1), joinedTotal))
	}
}
