// Package proxy is a fleet of delta ADS clients that ask, acknowledge and reconnect as Envoys do, and that note what
// they receive and when.
package proxy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/wire"
)

// Proxy is one client.
type Proxy struct {
	mesh.Proxy
	fleet  *Fleet
	number int

	conn   *grpc.ClientConn
	stream grpc.ClientStream
	cancel context.CancelFunc
	ended  chan struct{}
	// closing is true once the stream is meant to end.
	closing bool

	// held are the contents received, by type, in order; they outlive a stream.
	held map[string][]*wire.Content
	// first is this stream's state on the way to its first whole configuration.
	session
}

// session is what is known of one stream. Only the goroutine that reads the stream uses it.
type session struct {
	// echo is true for a stream that acknowledges everything and asks for nothing.
	echo bool
	// asked are the types that were requested.
	asked map[string]bool
	// endpoints are the names subscribed to.
	endpoints names
	// Names subscribed to that were not answered: endpoints by number, routes and filters by name; route configurations
	// whose hosts have not come.
	endpointsDue  int
	routesDue     map[string]struct{}
	virtualDue    map[string]struct{}
	extensionsDue map[string]struct{}
	// warming are endpoints without which the acknowledgement of their clusters is held back.
	warming  map[string]struct{}
	withheld *wire.Response
	// configured is true once everything that was asked for has come.
	configured bool
}

// names is a set of names that is mostly one shared by many proxies.
type names struct {
	base        map[string]struct{}
	added, less map[string]struct{}
}

func (n *names) has(name string) bool {
	if _, ok := n.added[name]; ok {
		return true
	}
	_, in := n.base[name]
	_, out := n.less[name]
	return in && !out
}

func (n *names) add(name string) {
	delete(n.less, name)
	if _, ok := n.base[name]; !ok {
		n.added[name] = struct{}{}
	}
}

func (n *names) remove(name string) {
	delete(n.added, name)
	if _, ok := n.base[name]; ok {
		n.less[name] = struct{}{}
	}
}

func newSession(echo bool) session {
	return session{
		echo: echo, asked: map[string]bool{}, routesDue: map[string]struct{}{}, virtualDue: map[string]struct{}{},
		extensionsDue: map[string]struct{}{}, warming: map[string]struct{}{},
		endpoints: names{added: map[string]struct{}{}, less: map[string]struct{}{}},
	}
}

// run reads the stream until it ends. A stream that the server refuses for its load is begun again.
func (p *Proxy) run(again func() error) {
	defer close(p.ended)
	for {
		var m wire.Message
		err := p.stream.RecvMsg(&m)
		if err != nil && p.refused(err) {
			if err = again(); err == nil {
				continue
			}
		}
		if err != nil {
			p.fleet.lost(p, err)
			return
		}
		at := time.Now()
		r, err := p.fleet.reader.Read(m.Body)
		m.Free()
		if err == nil {
			p.fleet.received(p, r, at)
			err = p.handle(r)
		}
		if err != nil {
			p.fleet.lost(p, fmt.Errorf("%s: %w", p.ID, err))
			return
		}
	}
}

func (p *Proxy) send(r wire.Request) error { return p.sendRaw(r.Encode()) }

func (p *Proxy) sendRaw(b []byte) error { return p.stream.SendMsg(wire.Parts{b}) }

// ask sends a request that begins a type.
func (p *Proxy) ask(url string, subscribe ...string) error {
	p.asked[url] = true
	return p.send(wire.Request{Type: url, Subscribe: subscribe})
}

func (p *Proxy) ack(r wire.Response) error {
	err := p.send(wire.Request{Type: r.Type, Nonce: r.Nonce})
	p.fleet.acknowledged(p, r.Content, time.Now())
	return err
}

// handle does what Envoy does about a response.
func (p *Proxy) handle(r wire.Response) error {
	if p.echo {
		return p.ack(r)
	}
	if p.fleet.observe != nil {
		p.held[r.Type] = p.held[r.Type][:0]
	}
	p.held[r.Type] = append(p.held[r.Type], r.Content)
	var err error
	switch r.Type {
	case wire.Cluster:
		err = p.clusters(r)
	case wire.Endpoint:
		err = p.assignments(r)
	case wire.Listener:
		err = p.listeners(r)
	case wire.Route:
		err = p.routes(r)
	case wire.VirtualHost:
		err = p.virtualHosts(r)
	case wire.Extension:
		p.extensions(r)
		err = p.ack(r)
	default:
		err = p.ack(r)
	}
	if err == nil && !p.configured && p.complete() {
		p.configured = true
		p.fleet.configuredNow(p)
	}
	return err
}

func (p *Proxy) complete() bool {
	return p.asked[wire.Listener] && len(p.held[wire.Listener]) > 0 && p.endpointsDue == 0 &&
		len(p.routesDue)+len(p.virtualDue)+len(p.extensionsDue) == 0
}

// clusters asks for the endpoints of new clusters. While an updated cluster waits for its endpoints, its response is
// not acknowledged.
func (p *Proxy) clusters(r wire.Response) error {
	if p.endpoints.base == nil {
		p.endpoints.base = r.EndpointSet
		if p.endpointsDue = len(r.EndpointSet); p.endpointsDue > 0 {
			if err := p.ask(wire.Endpoint, r.Endpoints...); err != nil {
				return err
			}
		}
		if err := p.ack(r); err != nil || p.endpointsDue > 0 {
			return err
		}
		return p.ask(wire.Listener)
	}
	var more, less []string
	for _, name := range r.Endpoints {
		if !p.endpoints.has(name) {
			p.endpoints.add(name)
			more = append(more, name)
		}
		if p.configured {
			p.warming[name] = struct{}{}
		}
	}
	for _, name := range r.Removed {
		if p.endpoints.has(name) {
			p.endpoints.remove(name)
			less = append(less, name)
		}
		delete(p.warming, name)
	}
	if len(more)+len(less) > 0 {
		if !p.configured {
			p.endpointsDue += len(more)
		}
		if err := p.send(wire.Request{Type: wire.Endpoint, Subscribe: more, Unsubscribe: less}); err != nil {
			return err
		}
	}
	if len(p.warming) == 0 {
		return p.ack(r)
	}
	p.withheld = &r
	return nil
}

func (p *Proxy) assignments(r wire.Response) error {
	if err := p.ack(r); err != nil {
		return err
	}
	for _, h := range r.Resources {
		delete(p.warming, h.Name)
	}
	for _, name := range r.Removed {
		delete(p.warming, name)
	}
	if p.withheld != nil && len(p.warming) == 0 {
		late := *p.withheld
		p.withheld = nil
		if err := p.ack(late); err != nil {
			return err
		}
	}
	if p.endpointsDue == 0 {
		return nil
	}
	if p.endpointsDue = max(0, p.endpointsDue-len(r.Resources)-len(r.Removed)); p.endpointsDue > 0 || p.asked[wire.Listener] {
		return nil
	}
	return p.ask(wire.Listener)
}

// listeners asks for the filters and the routes that they name.
func (p *Proxy) listeners(r wire.Response) error {
	for _, named := range []struct {
		url, prefix string
		names       []string
		due         map[string]struct{}
	}{
		{wire.Extension, extensionAsked, r.Extensions, p.extensionsDue},
		{wire.Route, routeAsked, r.Routes, p.routesDue},
	} {
		var more []string
		for _, name := range named.names {
			if !p.asked[named.prefix+name] {
				p.asked[named.prefix+name] = true
				named.due[name] = struct{}{}
				more = append(more, name)
			}
		}
		if len(more) > 0 {
			if err := p.ask(named.url, more...); err != nil {
				return err
			}
		}
	}
	return p.ack(r)
}

// Prefixes of the names that were asked for, beside the types.
const (
	routeAsked     = "route "
	extensionAsked = "extension "
)

func (p *Proxy) extensions(r wire.Response) {
	for _, h := range r.Resources {
		delete(p.extensionsDue, h.Name)
	}
	for _, name := range r.Removed {
		delete(p.extensionsDue, name)
	}
}

func (p *Proxy) routes(r wire.Response) error {
	for _, h := range r.Resources {
		delete(p.routesDue, h.Name)
	}
	for _, name := range r.Removed {
		delete(p.routesDue, name)
	}
	for _, name := range r.Virtual {
		if !p.asked["hosts "+name] {
			p.asked["hosts "+name] = true
			p.virtualDue[name] = struct{}{}
		}
	}
	if len(r.Virtual) > 0 && !p.asked[wire.VirtualHost] {
		if err := p.ask(wire.VirtualHost); err != nil {
			return err
		}
	}
	return p.ack(r)
}

func (p *Proxy) virtualHosts(r wire.Response) error {
	for name := range maps.Clone(p.virtualDue) {
		of := func(resource string) bool { return strings.HasPrefix(resource, name+"/") }
		if slices.ContainsFunc(r.Resources, func(h wire.Held) bool { return of(h.Name) }) || slices.ContainsFunc(r.Removed, of) {
			delete(p.virtualDue, name)
		}
	}
	return p.ack(r)
}

// retained gives the requests by which the proxy comes back: every type with all versions it holds.
func (p *Proxy) retained() [][]byte {
	var out [][]byte
	for _, url := range []string{wire.Cluster, wire.Endpoint, wire.Listener, wire.Extension, wire.Route, wire.VirtualHost} {
		contents := p.held[url]
		if len(contents) == 0 {
			continue
		}
		versions := map[string]string{}
		for _, c := range contents {
			for _, h := range c.Resources {
				versions[h.Name] = h.Version
			}
			for _, name := range c.Removed {
				delete(versions, name)
			}
		}
		r := wire.Request{Type: url}
		if len(out) == 0 {
			r.Node = p.Node
		}
		for _, name := range slices.Sorted(maps.Keys(versions)) {
			if url == wire.Endpoint && !p.endpoints.has(name) {
				continue // they went with their cluster
			}
			r.Held = append(r.Held, wire.Held{Name: name, Version: versions[name]})
			if url == wire.Endpoint || url == wire.Route || url == wire.Extension {
				r.Subscribe = append(r.Subscribe, name)
			}
		}
		out = append(out, r.Encode())
	}
	return out
}

// resume makes a session that knows what the proxy holds.
func (p *Proxy) resume() {
	endpoints := p.endpoints
	p.session = newSession(false)
	p.configured, p.endpoints = true, endpoints
	for url, contents := range p.held {
		p.asked[url] = true
		for _, c := range contents {
			for _, name := range c.Routes {
				p.asked[routeAsked+name] = true
			}
			for _, name := range c.Extensions {
				p.asked[extensionAsked+name] = true
			}
			for _, name := range c.Virtual {
				p.asked["hosts "+name] = true
			}
		}
	}
}

// wait for the goroutines of all proxies.
func wait(proxies []*Proxy) {
	var wg sync.WaitGroup
	for _, p := range proxies {
		wg.Go(func() {
			if p.ended != nil {
				<-p.ended
			}
		})
	}
	wg.Wait()
}
