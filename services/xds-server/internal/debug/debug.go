// Package debug answers, as JSON, what this xds-server knows of its proxies and what it serves them. Its handlers are for authenticated
// operators only; they show no secret, because xds-server holds none.
package debug

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/encoding/protojson"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Mux takes the handlers; ops.Server does.
type Mux interface {
	Debug(path, about string, h http.Handler)
}

// Fleet knows the proxies; serve.Server does.
type Fleet interface {
	Statuses() []*configv1.ProxyStatus
	Served() *configv1.Revision
}

// Register adds the handlers. wrap turns a function into a handler; ops.JSON does.
func Register(mux Mux, wrap func(func(*http.Request) (any, error)) http.Handler, fleet Fleet, engine *plan.Engine) {
	d := &pages{fleet: fleet, engine: engine}
	mux.Debug("/debug/proxies", "connected proxies and what they were sent, acknowledged and rejected", wrap(d.proxies))
	mux.Debug("/debug/class", "classes of proxies; ?proxy=<node id or name.namespace> or ?id=<class> shows one", wrap(d.class))
	mux.Debug("/debug/resources", "what a proxy is served: ?proxy=<node id or name.namespace>[&type=clusters|endpoints|listeners|routes]",
		wrap(d.resources))
}

type pages struct {
	fleet  Fleet
	engine *plan.Engine
}

func (d *pages) proxies(*http.Request) (any, error) {
	var proxies []json.RawMessage
	for _, p := range d.fleet.Statuses() {
		raw, err := protojson.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("proxy %s: %w", p.GetNodeId(), err)
		}
		proxies = append(proxies, raw)
	}
	revision, err := protojson.Marshal(d.fleet.Served())
	if err != nil {
		return nil, fmt.Errorf("revision: %w", err)
	}
	return map[string]any{"revision": json.RawMessage(revision), "proxies": proxies}, nil
}

func (d *pages) class(r *http.Request) (any, error) {
	q := r.URL.Query()
	if id := q.Get("id"); id != "" {
		c := d.engine.Class(id)
		if c == nil {
			return nil, fmt.Errorf("no class %q", id)
		}
		return describe(c), nil
	}
	if q.Get("proxy") != "" {
		c, err := d.classOf(q.Get("proxy"))
		if err != nil {
			return nil, err
		}
		return describe(c), nil
	}
	all := []any{}
	for _, c := range d.engine.Classes() {
		all = append(all, map[string]any{"id": c.ID(), "key": c.Key(), "failures": failures(c)})
	}
	return all, nil
}

// classOf finds the class of a connected proxy.
func (d *pages) classOf(proxy string) (*plan.Class, error) {
	for _, p := range d.fleet.Statuses() {
		if p.GetNodeId() == proxy || p.GetWorkload()+"."+p.GetNamespace() == proxy {
			if c := d.engine.Class(p.GetClass()); c != nil {
				return c, nil
			}
		}
	}
	return nil, fmt.Errorf("no proxy %q is connected here; give ?proxy=<node id> or <name>.<namespace>", proxy)
}

func describe(c *plan.Class) any {
	types := map[string]any{}
	for _, url := range c.Snapshot().URLs() {
		versions := map[string]string{}
		c.Snapshot().Type(url).Scan(func(name string, item plan.Item) bool {
			versions[name] = ""
			if item.Blob != nil {
				versions[name] = item.Blob.Version()
			}
			return true
		})
		types[url] = versions
	}
	return map[string]any{"id": c.ID(), "key": c.Key(), "resources": types, "failures": failures(c)}
}

func failures(c *plan.Class) []map[string]string {
	list := []map[string]string{}
	for _, f := range c.Failures("") {
		list = append(list, map[string]string{"type": f.TypeURL, "name": f.Name, "error": f.Err.Error()})
	}
	return list
}

// shortNames of types, as in `fairlead proxy-config`.
var shortNames = map[string]string{
	"clusters": resource.ClusterType, "endpoints": resource.EndpointType, "listeners": resource.ListenerType, "routes": resource.RouteType,
}

func (d *pages) resources(r *http.Request) (any, error) {
	q := r.URL.Query()
	c, err := d.classOf(q.Get("proxy"))
	if err != nil {
		return nil, err
	}
	wanted := q.Get("type")
	if url, ok := shortNames[strings.ToLower(wanted)]; ok {
		wanted = url
	}
	snapshot := c.Snapshot()
	found := map[string]any{}
	for _, url := range snapshot.URLs() {
		if wanted != "" && wanted != url {
			continue
		}
		list := []any{}
		snapshot.Type(url).Scan(func(name string, item plan.Item) bool {
			if item.Blob == nil {
				return true
			}
			var raw []byte
			if raw, err = protojson.Marshal(item.Blob.Resource.GetResource()); err != nil {
				err = fmt.Errorf("%s: %w", name, err)
				return false
			}
			list = append(list, map[string]any{"name": name, "version": item.Blob.Version(), "resource": json.RawMessage(raw)})
			return true
		})
		if err != nil {
			return nil, err
		}
		found[url] = list
	}
	return found, nil
}
