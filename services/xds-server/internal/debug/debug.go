// Package debug answers, as JSON, what this xds-server knows of its proxies, what it serves them, and why. Its handlers
// are for authenticated operators only and show no private key.
package debug

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"fairlead.dev/pkg/ops"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/acks"
	"fairlead.dev/services/xds-server/internal/plan"
)

// Mux registers the handlers; ops.Server implements it.
type Mux interface {
	Debug(path, about string, h http.Handler)
}

// Fleet has the statuses of the proxies; serve.Server implements it.
type Fleet interface {
	Statuses() []*configv1.ProxyStatus
	Served() *configv1.Revision
	Refusals() []*configv1.Refusal
	Trust() acks.State
}

// Register adds the handlers. wrap turns a function into a handler; ops.JSON does.
func Register(mux Mux, wrap func(func(*http.Request) (any, error)) http.Handler, fleet Fleet, engine *plan.Engine) {
	d := &pages{fleet: fleet, engine: engine}
	mux.Debug("/debug/proxies", "connected proxies: what they were sent, acknowledged and rejected, and what waits; [?proxy=] shows one",
		wrap(d.proxies))
	mux.Debug("/debug/refusals", "streams refused in the last ten minutes because their identity uses too much", wrap(d.refusals))
	mux.Debug("/debug/trust", "how many agents verify with which generation of the trust bundle, and who is behind", wrap(d.trust))
	mux.Debug("/debug/class", "classes of proxies; ?proxy=<node id or name.namespace> or ?id=<class> shows one", wrap(d.class))
	mux.Debug("/debug/resources", "what a proxy is served: ?proxy=<node id or name.namespace>[&type="+strings.Join(typeNames(), "|")+
		"][&name=][&spelling=proto]",
		wrap(d.resources))
	mux.Debug("/debug/why", "what a resource was made from: ?proxy=<node id or name.namespace>&name=<resource, or host[:port]>[&type=]",
		wrap(d.why))
	mux.Debug("/debug/request",
		"which rule of the Gateway API answers a request: ?gateway=<namespace>/<name>&url=[http[s]://]<host>[:port][/path][&method=]"+
			"[&header=<name>: <value>]",
		wrap(d.request))
}

type pages struct {
	fleet  Fleet
	engine *plan.Engine
}

func (d *pages) proxies(r *http.Request) (any, error) {
	statuses := d.fleet.Statuses()
	if wanted := r.URL.Query().Get("proxy"); wanted != "" {
		one, err := d.status(wanted)
		if err != nil {
			return nil, err
		}
		statuses = []*configv1.ProxyStatus{one}
	}
	proxies := []json.RawMessage{}
	for _, p := range statuses {
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

func (d *pages) refusals(*http.Request) (any, error) {
	all := []json.RawMessage{}
	for _, r := range d.fleet.Refusals() {
		raw, err := protojson.Marshal(r)
		if err != nil {
			return nil, err
		}
		all = append(all, raw)
	}
	return all, nil
}

func (d *pages) trust(*http.Request) (any, error) { return d.fleet.Trust(), nil }

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
		_, c, err := d.proxy(q.Get("proxy"))
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

// status finds a connected proxy by its node id or name; a verified one goes before one that only claims the name. If
// there is none it returns an ops.StatusError of 404: the proxy may be connected to another xds-server.
func (d *pages) status(proxy string) (*configv1.ProxyStatus, error) {
	var found *configv1.ProxyStatus
	for _, p := range d.fleet.Statuses() {
		meant := p.GetNodeId() == proxy || p.GetWorkload()+"."+p.GetNamespace() == proxy
		if meant && (found == nil || found.GetUnverified() && !p.GetUnverified()) {
			found = p
		}
	}
	if found != nil {
		return found, nil
	}
	return nil, &ops.StatusError{Code: http.StatusNotFound,
		Err: fmt.Errorf("no proxy %q is connected here; give ?proxy=<node id> or <name>.<namespace>", proxy)}
}

// proxy finds a connected proxy and its class.
func (d *pages) proxy(name string) (*configv1.ProxyStatus, *plan.Class, error) {
	p, err := d.status(name)
	if err != nil {
		return nil, nil, err
	}
	c := d.engine.Class(p.GetClass())
	if c == nil {
		return nil, nil, fmt.Errorf("proxy %q has just become another class; ask again", name)
	}
	return p, c, nil
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
