package held

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fingerprint is what Envoy holds, in short and by kind: clusters and listeners by their versions, which xds-server
// makes of their content. Envoy takes a tenth of the time for it that it takes for everything.
type fingerprint map[string]string

type question struct {
	kind, path string
	types      []string
}

// questions ask Envoy for a fingerprint, by kind; each kind is what these types of xDS bring.
var questions = []question{
	{clusters, "resource=dynamic_active_clusters&mask=version_info,cluster.name", []string{"envoy.config.cluster.v3.Cluster"}},
	{listeners, "resource=dynamic_listeners&mask=name,active_state.version_info", []string{"envoy.config.listener.v3.Listener"}},
	{routes, "resource=dynamic_route_configs", []string{"envoy.config.route.v3.RouteConfiguration", "envoy.config.route.v3.VirtualHost"}},
	{endpoints, "include_eds&resource=dynamic_endpoint_configs",
		[]string{"envoy.config.endpoint.v3.ClusterLoadAssignment", "envoy.config.cluster.v3.Cluster"}},
	{extensions, "resource=ecds_filters", []string{"envoy.config.core.v3.TypedExtensionConfig"}},
}

// fingerprint reads the kinds that are wanted. before are the holdings to compare with: what is no lasting endpoint by
// them does not count, nor does a route configuration that they lack, if it is there for the last connections of a
// listener which is gone.
func (p *Proxy) fingerprint(ctx context.Context, wanted func(kind string) bool, before Holdings) (fingerprint, error) {
	f := fingerprint{}
	for _, q := range questions {
		if !wanted(q.kind) {
			continue
		}
		raw, err := p.Get(ctx, "/config_dump?"+q.path)
		if err != nil && q.kind == extensions && strings.Contains(err.Error(), "404") {
			f[q.kind] = "" // Envoy has a list of them only where there are some
			continue
		}
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
					if name := nameOf(r.Config); before[routes][name] == nil && p.drains(ctx, name) {
						return ""
					}
					return string(r.Config)
				})
			case extensions:
				f[q.kind], err = sortedText(raw, func(e *extensionDump) string {
					if before[extensions][nameOf(e.Config)] == nil {
						return "" // of a listener that is new, or that waits for its last connections
					}
					return string(e.Config)
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
			return f, fmt.Errorf("configuration dump of %s: %w", p.Name, err)
		}
	}
	return f, nil
}

// drains tells whether a route configuration belongs to a listener that waits for its last connections; no if Envoy
// does not say. What has once done so is remembered: it ends with the proxy, or is used again by a listener that is
// seen by itself.
func (p *Proxy) drains(ctx context.Context, routeConfig string) bool {
	if p.draining[routeConfig] {
		return true
	}
	var dump struct {
		Configs []listenerDump `json:"configs"`
	}
	raw, err := p.Get(ctx, "/config_dump?resource=dynamic_listeners&mask=name,draining_state.listener")
	if err != nil || json.Unmarshal(raw, &dump) != nil {
		return false
	}
	h := Holdings{listeners: {}}
	for _, d := range dump.Configs {
		if d.Draining != nil {
			h[listeners][d.Name] = d.Draining.Listener
		}
	}
	if p.draining == nil {
		p.draining = map[string]bool{}
	}
	maps.Copy(p.draining, h.routeReferences())
	return p.draining[routeConfig]
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

// Known is what a proxy held when all was well, and the short form of it.
type Known struct {
	all   Holdings
	short fingerprint
	// remembered is all, and what a sidecar on demand has asked for since; nil before it is needed.
	remembered Holdings
}

// Look reads everything that the proxy holds.
func (p *Proxy) Look(ctx context.Context) (k Known, err error) {
	if k.all, err = p.Holdings(ctx); err == nil {
		k.short, err = p.fingerprint(ctx, func(string) bool { return true }, k.all)
	}
	return k, err
}

// Sent is, by type of xDS, how much configuration a proxy was sent on which connection: where that is the same as
// before, it holds what it held.
type Sent map[string]string

// since tells of each kind whether the proxy may hold something else of it than when it was sent before.
func (s Sent) since(before Sent) func(kind string) bool {
	return func(kind string) bool {
		return slices.ContainsFunc(questions, func(q question) bool {
			return q.kind == kind && slices.ContainsFunc(q.types, func(t string) bool { return before == nil || before[t] != s[t] })
		})
	}
}

// Compare lists what the proxy holds otherwise than it did; only kinds of which it was sent something since, before and
// now, are looked into. onDemand tells that it holds some because it asked. The short form of what is no difference,
// and what was asked for, are remembered in k.
func (p *Proxy) Compare(ctx context.Context, k *Known, onDemand bool, before, now Sent) ([]string, error) {
	all := k.all
	if k.remembered != nil {
		all = k.remembered
	}
	short, err := p.fingerprint(ctx, now.since(before), all)
	if err != nil {
		return nil, err
	}
	same := true
	for kind, text := range short {
		same = same && k.short[kind] == text
	}
	if same {
		return nil, nil
	}
	is, err := p.Holdings(ctx)
	if err != nil {
		return nil, err
	}
	var diff []string
	if onDemand {
		if k.remembered == nil {
			k.remembered = k.all.apart()
		}
		diff = differenceOnDemand(p.Name, k.remembered, is.apart())
	} else {
		diff = difference(p.Name, k.all, is)
	}
	if len(diff) == 0 {
		// What does not count, such as the routes of a listener that drains, looks like this for a while: it is not
		// looked into each time.
		k.short = maps.Clone(k.short)
		maps.Copy(k.short, short)
	}
	return diff, nil
}
