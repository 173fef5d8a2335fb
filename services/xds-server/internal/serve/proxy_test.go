package serve_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// proxy behaves as Envoy does on an ADS stream: wildcard clusters and listeners, endpoints and routes as these need them, virtual hosts
// apart for delta, acknowledgements, sometimes a NACK, and versions retained over reconnects.
type proxy struct {
	delta bool
	node  *core.Node
	// moody proxies reject now and then; a rejected response is not applied.
	moody bool

	mu   sync.Mutex
	rand *rand.Rand
	held map[string]map[string]string // content by type and name
	// versions are what a delta client would state on reconnect, and by "" the version of a state-of-the-world type.
	versions map[string]map[string]string
	asked    map[string][]string
	stop     context.CancelFunc
	done     chan struct{}
}

func newProxy(pod, namespace string, delta bool, seed uint64) *proxy {
	p := &proxy{delta: delta, node: node(pod, namespace), rand: rand.New(rand.NewPCG(seed, 1)), asked: map[string][]string{}}
	p.held, p.versions = map[string]map[string]string{}, map[string]map[string]string{}
	for _, url := range []string{cds, eds, lds, rds, vhds} {
		p.held[url], p.versions[url] = map[string]string{}, map[string]string{}
	}
	return p
}

// connect opens a stream to a replica with what is held; an open one is dropped.
func (p *proxy) connect(r *replicaServer) {
	p.disconnect()
	ctx, cancel := context.WithCancel(context.Background())
	p.stop, p.done = cancel, make(chan struct{})
	client := discovery.NewAggregatedDiscoveryServiceClient(r.conn)
	if p.delta {
		stream, err := client.DeltaAggregatedResources(ctx)
		if err != nil {
			r.t.Fatal(err)
		}
		go p.runDelta(stream)
		return
	}
	stream, err := client.StreamAggregatedResources(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	go p.runWorld(stream)
}

func (p *proxy) disconnect() {
	if p.stop != nil {
		p.stop()
		<-p.done
		p.stop = nil
	}
}

// verdict decides on a response.
func (p *proxy) verdict() *rpcstatus.Status {
	if p.moody && p.rand.IntN(4) == 0 {
		return nack("in a mood")
	}
	return nil
}

func (p *proxy) runDelta(stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) {
	defer close(p.done)
	first := p.node
	send := func(m *discovery.DeltaDiscoveryRequest) {
		m.Node, first = first, nil
		_ = stream.Send(m) // a broken stream shows in Recv
	}
	p.mu.Lock()
	order := []string{cds, eds, lds, rds, vhds}
	if p.rand.IntN(2) == 0 {
		order = []string{vhds, rds, lds, eds, cds}
	}
	for _, url := range order {
		m := &discovery.DeltaDiscoveryRequest{TypeUrl: url, InitialResourceVersions: clone(p.versions[url])}
		if url == eds || url == rds {
			if m.ResourceNamesSubscribe = slices.Clone(p.asked[url]); len(m.ResourceNamesSubscribe) == 0 {
				continue
			}
		}
		send(m)
	}
	p.mu.Unlock()
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		p.mu.Lock()
		url := m.GetTypeUrl()
		failure := p.verdict()
		if failure == nil {
			for _, r := range m.GetResources() {
				if url == vhds && !p.hasTable(r.GetName()) {
					p.versions[url][r.GetName()] = r.GetVersion() // dropped, and said to be held all the same
					continue
				}
				if !p.wants(url, r.GetName()) {
					continue
				}
				p.held[url][r.GetName()], p.versions[url][r.GetName()] = string(r.GetResource().GetValue()), r.GetVersion()
			}
			for _, name := range m.GetRemovedResources() {
				delete(p.held[url], name)
				delete(p.versions[url], name)
			}
		}
		send(&discovery.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: m.GetNonce(), ErrorDetail: failure})
		if child, added, gone := p.follow(url); len(added)+len(gone) > 0 {
			send(&discovery.DeltaDiscoveryRequest{TypeUrl: child, ResourceNamesSubscribe: added, ResourceNamesUnsubscribe: gone})
		}
		p.mu.Unlock()
	}
}

func (p *proxy) runWorld(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient) {
	defer close(p.done)
	first, nonces := p.node, map[string]string{}
	send := func(url string, failure *rpcstatus.Status) {
		m := &discovery.DiscoveryRequest{
			Node: first, TypeUrl: url, ResourceNames: slices.Clone(p.asked[url]), VersionInfo: p.versions[url][""],
			ResponseNonce: nonces[url], ErrorDetail: failure,
		}
		first = nil
		_ = stream.Send(m) // a broken stream shows in Recv
	}
	p.mu.Lock()
	for _, url := range []string{cds, eds, lds, rds} {
		if (url == eds || url == rds) && len(p.asked[url]) == 0 {
			continue
		}
		send(url, nil)
	}
	p.mu.Unlock()
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		p.mu.Lock()
		url := m.GetTypeUrl()
		nonces[url] = m.GetNonce()
		failure := p.verdict()
		if failure == nil {
			if url == cds || url == lds {
				clear(p.held[url])
			}
			for _, r := range m.GetResources() {
				if msg, err := r.UnmarshalNew(); err == nil && p.wants(url, cache.GetResourceName(msg)) {
					p.held[url][cache.GetResourceName(msg)] = string(r.GetValue())
				}
			}
			p.versions[url][""] = m.GetVersionInfo()
		}
		send(url, failure)
		if child, added, gone := p.follow(url); len(added)+len(gone) > 0 {
			send(child, nil)
		}
		p.mu.Unlock()
	}
}

// hasTable reports whether the route configuration of a virtual host is held.
func (p *proxy) hasTable(host string) bool {
	_, ok := p.held[rds][host[:strings.LastIndexByte(host, '/')]]
	return ok
}

// wants reports whether a resource was asked for: one that was given up while its response was on the way is ignored.
func (p *proxy) wants(url, name string) bool {
	return url == cds || url == lds || url == vhds || slices.Contains(p.asked[url], name)
}

// follow adjusts what is asked for to the clusters or listeners held. What is given up is forgotten.
func (p *proxy) follow(parent string) (child string, added, gone []string) {
	switch parent {
	case cds:
		child = eds
	case lds:
		child = rds
	default:
		return "", nil, nil
	}
	for name := range p.held[parent] {
		if !slices.Contains(p.asked[child], name) {
			added = append(added, name)
		}
	}
	for _, name := range p.asked[child] {
		if _, ok := p.held[parent][name]; !ok {
			gone = append(gone, name)
			delete(p.held[child], name)
			delete(p.versions[child], name)
			if child == rds {
				maps.DeleteFunc(p.held[vhds], func(host, _ string) bool { return strings.HasPrefix(host, name+"/") })
			}
		}
	}
	p.asked[child] = slices.DeleteFunc(p.asked[child], func(n string) bool { return slices.Contains(gone, n) })
	p.asked[child] = append(p.asked[child], added...)
	slices.Sort(p.asked[child])
	return child, added, gone
}

// state copies what is held.
func (p *proxy) state() map[string]map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := map[string]map[string]string{}
	for url, held := range p.held {
		state[short(url)] = clone(held)
	}
	return state
}

func (p *proxy) calmDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moody = false
}

func clone(m map[string]string) map[string]string {
	c := make(map[string]string, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}
