package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// fingerprint is what Envoy holds, in short and by kind: clusters and listeners by their versions, which xds-server
// makes of their content. Envoy takes a tenth of the time for it that it takes for everything.
type fingerprint map[string]string

// questions ask Envoy for a fingerprint, by kind; each kind is what these types of xDS bring.
var questions = []struct {
	kind  string
	path  string
	types []string
}{
	{clusters, "resource=dynamic_active_clusters&mask=version_info,cluster.name", []string{"envoy.config.cluster.v3.Cluster"}},
	{listeners, "resource=dynamic_listeners&mask=name,active_state.version_info", []string{"envoy.config.listener.v3.Listener"}},
	{routes, "resource=dynamic_route_configs", []string{"envoy.config.route.v3.RouteConfiguration", "envoy.config.route.v3.VirtualHost"}},
	{endpoints, "include_eds&resource=dynamic_endpoint_configs",
		[]string{"envoy.config.endpoint.v3.ClusterLoadAssignment", "envoy.config.cluster.v3.Cluster"}},
}

// fingerprint reads the kinds that are wanted. before are the holdings to compare with: what is no lasting endpoint by
// them does not count, nor does a route configuration that they lack, if it is there for the last connections of a
// listener which is gone.
func (l *workload) fingerprint(ctx context.Context, wanted func(kind string) bool, before holdings) (fingerprint, error) {
	f := fingerprint{}
	for _, q := range questions {
		if !wanted(q.kind) {
			continue
		}
		raw, err := l.admin(ctx, "/config_dump?"+q.path)
		if err == nil {
			switch q.kind {
			case listeners:
				f[q.kind], err = sortedText(raw, func(d *listenerDump) string {
					if d.Active == nil {
						return ""
					}
					return d.Name + " " + d.Active.Version
				})
			case routes:
				f[q.kind], err = sortedText(raw, func(r *routeDump) string {
					if name := nameOf(r.Config); before[routes][name] == nil && l.drains(ctx, name) {
						return ""
					}
					return string(r.Config)
				})
			case endpoints:
				f[q.kind], err = sortedText(raw, func(e *endpointDump) string {
					if !hasLastingEndpoints(before[clusters][e.Config.Cluster]) {
						return ""
					}
					return e.Config.Cluster + " " + strings.Join(e.lines(), ", ")
				})
			default:
				f[q.kind], err = sortedText(raw, func(r *json.RawMessage) string { return string(*r) })
			}
		}
		if err != nil {
			return f, fmt.Errorf("configuration dump of %s: %w", l.spec.Name, err)
		}
	}
	return f, nil
}

// drains tells whether a route configuration belongs to a listener that waits for its last connections; no if Envoy
// does not say. What has once done so is remembered: it ends with the proxy, or is used again by a listener that is
// seen by itself.
func (l *workload) drains(ctx context.Context, routeConfig string) bool {
	if l.draining[routeConfig] {
		return true
	}
	var dump struct {
		Configs []listenerDump `json:"configs"`
	}
	raw, err := l.admin(ctx, "/config_dump?resource=dynamic_listeners&mask=name,draining_state.listener")
	if err != nil || json.Unmarshal(raw, &dump) != nil {
		return false
	}
	h := holdings{listeners: {}}
	for _, d := range dump.Configs {
		if d.Draining != nil {
			h[listeners][d.Name] = d.Draining.Listener
		}
	}
	if l.draining == nil {
		l.draining = map[string]bool{}
	}
	maps.Copy(l.draining, h.routeReferences())
	return l.draining[routeConfig]
}

type clusterDump struct {
	Cluster json.RawMessage `json:"cluster"`
}

// listenerDump is a listener in use, one that waits for its last connections to end, or both.
type listenerDump struct {
	Name   string `json:"name"`
	Active *struct {
		Version  string          `json:"version_info"`
		Listener json.RawMessage `json:"listener"`
	} `json:"active_state"`
	Draining *struct {
		Listener json.RawMessage `json:"listener"`
	} `json:"draining_state"`
}

type routeDump struct {
	Config json.RawMessage `json:"route_config"`
}

// sortedText is the same for the same resources in whatever order; what has no text is no part of it.
func sortedText[T any](raw []byte, text func(*T) string) (string, error) {
	var dump struct {
		Configs []T `json:"configs"`
	}
	if err := json.Unmarshal(raw, &dump); err != nil {
		return "", err
	}
	var all []string
	for i := range dump.Configs {
		if t := text(&dump.Configs[i]); t != "" {
			all = append(all, t)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "\n"), nil
}

// hasLastingEndpoints tells whether a cluster has the endpoints that it was given. Others find theirs as connections
// come, or in DNS.
func hasLastingEndpoints(cluster json.RawMessage) bool {
	var c struct {
		Type   string          `json:"type"`
		Custom json.RawMessage `json:"cluster_type"`
	}
	return json.Unmarshal(cluster, &c) == nil && (c.Type == "EDS" || c.Type == "" && c.Custom == nil)
}

// known is what one proxy held when all was well, and the short form of it.
type known struct {
	all   holdings
	short fingerprint
	// remembered is all, and what a sidecar on demand has asked for since; nil before it is needed.
	remembered holdings
}

// look reads everything that all proxies hold that run.
func (h *Harness) look(ctx context.Context) (map[string]known, error) {
	out := map[string]known{}
	var mu sync.Mutex
	err := each(h.proxies(), func(l *workload) error {
		var k known
		var err error
		if k.all, err = l.holdings(ctx); err != nil {
			return err
		}
		if k.short, err = l.fingerprint(ctx, func(string) bool { return true }, k.all); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		out[l.spec.Name] = k
		return nil
	})
	return out, err
}

// sent tells, by proxy and type, how much configuration it was sent on which connection: where that is the same as
// before, it holds what it held.
func (h *Harness) sent(ctx context.Context) (map[string]map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, ackedWithin)
	defer cancel()
	resp, err := h.store.fleet.ListProxies(ctx, &configv1.ListProxiesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, explain(err)
	}
	out := map[string]map[string]string{}
	for _, p := range resp.Proxies {
		types := map[string]string{}
		for _, t := range p.Types {
			_, name, _ := strings.Cut(t.TypeUrl, "/")
			types[name] = fmt.Sprintf("%s %s %d", p.XdsServer, p.ConnectedAt.AsTime(), t.BytesSent)
		}
		out[p.NodeId] = types
	}
	return out, nil
}

// nodeID is the proxy's name among those that the control plane knows.
func (l *workload) nodeID() string {
	role := "sidecar"
	if l.isGateway() {
		role = "router"
	}
	return fmt.Sprintf("%s~%s~%s.%s~%[4]s.svc.%s", role, l.host.IP, l.spec.Name, l.spec.Namespace, domain)
}

// changed tells of each kind whether the proxy may hold something else of it than when it was sent before.
func (l *workload) changed(before, now map[string]map[string]string) func(kind string) bool {
	id := l.nodeID()
	return func(kind string) bool {
		for _, q := range questions {
			if q.kind != kind {
				continue
			}
			for _, t := range q.types {
				if before[id] == nil || before[id][t] != now[id][t] {
					return true
				}
			}
		}
		return false
	}
}

// differences of what proxies hold to what they held at a snapshot, and which proxies those are.
func (h *Harness) differences(ctx context.Context, s *Snapshot, proxies []*workload) (out []string, of []*workload, err error) {
	sent, err := h.sent(ctx)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	err = each(proxies, func(l *workload) error {
		mu.Lock()
		was := s.held[l.spec.Name]
		mu.Unlock()
		before := was.all
		if was.remembered != nil {
			before = was.remembered
		}
		short, err := l.fingerprint(ctx, l.changed(s.sent, sent), before)
		if err != nil {
			return err
		}
		same := true
		for kind, text := range short {
			same = same && was.short[kind] == text
		}
		if same {
			return nil
		}
		now, err := l.holdings(ctx)
		if err != nil {
			return err
		}
		var diff []string
		if l.onDemand() {
			if was.remembered == nil {
				was.remembered = was.all.apart()
			}
			diff = differenceOnDemand(l.spec.Name, was.remembered, now.apart())
		} else {
			diff = difference(l.spec.Name, was.all, now)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(diff) > 0 {
			out, of = append(out, diff...), append(of, l)
			return nil
		}
		// What does not count, such as the routes of a listener that drains, looks like this for a while: it is not
		// looked into each time.
		was.short = maps.Clone(was.short)
		maps.Copy(was.short, short)
		s.held[l.spec.Name] = was
		return nil
	})
	slices.Sort(out)
	return out, of, err
}
