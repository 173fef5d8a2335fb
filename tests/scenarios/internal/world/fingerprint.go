package world

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// fingerprint is what Envoy holds, in short: clusters and listeners by their versions, which xds-server makes of their content. Envoy takes a tenth of the
// time for it that it takes for everything.
type fingerprint struct{ clusters, listeners, routes, endpoints string }

// fingerprint reads it.
func (l *workload) fingerprint(ctx context.Context) (fingerprint, error) {
	var f fingerprint
	lasting := map[string]bool{}
	for _, part := range []struct {
		into *string
		path string
		text func(raw []byte) (string, error)
	}{
		{&f.clusters, "resource=dynamic_active_clusters&mask=version_info,cluster.name,cluster.type", func(raw []byte) (string, error) {
			return sortedText(raw, func(c *clusterDump) string {
				lasting[nameOf(c.Cluster)] = hasLastingEndpoints(c.Cluster)
				return c.Version + " " + string(c.Cluster)
			})
		}},
		{&f.listeners, "resource=dynamic_listeners&mask=name,active_state.version_info", func(raw []byte) (string, error) {
			return sortedText(raw, func(r *json.RawMessage) string { return string(*r) })
		}},
		{&f.routes, "resource=dynamic_route_configs", func(raw []byte) (string, error) {
			return sortedText(raw, func(r *routeDump) string { return string(r.Config) })
		}},
		{&f.endpoints, "include_eds&resource=dynamic_endpoint_configs", func(raw []byte) (string, error) {
			return sortedText(raw, func(e *endpointDump) string {
				if !lasting[e.Config.Cluster] {
					return ""
				}
				return e.Config.Cluster + " " + strings.Join(e.lines(), ", ")
			})
		}},
	} {
		raw, err := l.admin(ctx, "/config_dump?"+part.path)
		if err == nil {
			*part.into, err = part.text(raw)
		}
		if err != nil {
			return f, fmt.Errorf("configuration dump of %s: %w", l.spec.Name, err)
		}
	}
	return f, nil
}

type clusterDump struct {
	Version string          `json:"version_info"`
	Cluster json.RawMessage `json:"cluster"`
}

// hasLastingEndpoints tells whether a cluster has the endpoints that it was given. Others find theirs as connections come, or in DNS.
func hasLastingEndpoints(cluster json.RawMessage) bool {
	var c struct {
		Type   string          `json:"type"`
		Custom json.RawMessage `json:"cluster_type"`
	}
	return json.Unmarshal(cluster, &c) == nil && (c.Type == "EDS" || c.Type == "" && c.Custom == nil)
}

type routeDump struct {
	Config json.RawMessage `json:"route_config"`
}

// sortedText is the same for the same resources in whatever order.
func sortedText[T any](raw []byte, text func(*T) string) (string, error) {
	var dump struct {
		Configs []T `json:"configs"`
	}
	if err := json.Unmarshal(raw, &dump); err != nil {
		return "", err
	}
	var all []string
	for i := range dump.Configs {
		all = append(all, text(&dump.Configs[i]))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "\n"), nil
}

// known is what one proxy held when all was well, and the short form of it.
type known struct {
	all   holdings
	short fingerprint
}

// look reads everything that all proxies hold that run.
func (w *World) look(ctx context.Context) (map[string]known, error) {
	out := map[string]known{}
	var mu sync.Mutex
	err := each(w.proxies(), func(l *workload) error {
		var k known
		var err error
		if k.all, err = l.holdings(ctx); err != nil {
			return err
		}
		if k.short, err = l.fingerprint(ctx); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		out[l.spec.Name] = k
		return nil
	})
	return out, err
}

// differences of what all proxies hold to what they held.
func (w *World) differences(ctx context.Context, before map[string]known) ([]string, error) {
	var out []string
	var mu sync.Mutex
	err := each(w.proxies(), func(l *workload) error {
		was := before[l.spec.Name]
		if short, err := l.fingerprint(ctx); err != nil || short == was.short {
			return err
		}
		now, err := l.holdings(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		out = append(out, difference(l.spec.Name, was.all, now)...)
		return nil
	})
	slices.Sort(out)
	return out, err
}
