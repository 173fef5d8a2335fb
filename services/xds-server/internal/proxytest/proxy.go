// Package proxytest has ADS clients for tests. They behave on the stream as Envoy does and keep the resources that they
// are sent.
package proxytest

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/translate/nametable"
)

const (
	cds  = resource.ClusterType
	eds  = resource.EndpointType
	lds  = resource.ListenerType
	rds  = resource.RouteType
	vhds = resource.VirtualHostType
	ecds = resource.ExtensionConfigType
	nds  = ndsv1.NameTableType
)

// Children lists what a proxy subscribes to because it holds a cluster (its endpoints) or a listener (its route
// configurations).
type Children func(url, name string, content []byte) []string

// SameName is for plantest's resources: endpoints are named like their cluster, route configurations like their
// listener.
func SameName(_, name string, _ []byte) []string { return []string{name} }

// Proxy behaves as Envoy does on an ADS stream. It has wildcard subscriptions to clusters and listeners, subscribes to
// the endpoints, routes and extension configs that these need, and with delta to virtual hosts. It acknowledges
// responses, or rejects some, and keeps versions over reconnects. It is safe for concurrent use.
type Proxy struct {
	// Delta selects the protocol variant: delta or sotw.
	Delta bool
	Node  *core.Node
	// Agent makes the proxy subscribe to the name table too, as Istio's agent does on the stream of its proxy.
	Agent bool

	children, extensions Children
	// demands are other names that it subscribes to, by type: what an on-demand proxy calls.
	demands map[string][]string

	mu sync.Mutex
	// A proxy does not apply a response that it rejects.
	rejectsAtRandom, statesDroppedVersions bool
	rand                                   *rand.Rand
	held                                   map[string]map[string]string // content by type and name
	// versions are, by type and name, the initial resource versions that a delta client states when it reconnects; for
	// a sotw client, the version of each type has the name "".
	versions map[string]map[string]string
	asked    map[string][]string
	stop     context.CancelFunc
	done     chan struct{}
}

// Config of a Proxy. Node and Children are required.
type Config struct {
	Delta    bool
	Node     *core.Node
	Agent    bool
	Children Children
	// Extensions lists the extension configs that a listener needs; nil if none does.
	Extensions Children
	// Demands are names that it subscribes to besides those that Children lists, by type.
	Demands map[string][]string
	// RejectsAtRandom makes the proxy reject one response in four, until StopRejecting.
	RejectsAtRandom bool
	Seed            uint64
	// StatesDroppedVersions makes the proxy state versions that it no longer holds, as Envoy does: those of virtual
	// hosts that it has dropped with their route configuration. If the stream breaks after the route configuration has
	// come back and before its virtual hosts have, the server cannot know this.
	StatesDroppedVersions bool
}

// New makes a proxy that is not connected.
func New(cfg Config) *Proxy {
	p := &Proxy{
		Delta: cfg.Delta, Node: cfg.Node, Agent: cfg.Agent, children: cfg.Children, extensions: cfg.Extensions, demands: cfg.Demands,
		rejectsAtRandom:       cfg.RejectsAtRandom,
		statesDroppedVersions: cfg.StatesDroppedVersions,
		rand:                  rand.New(rand.NewPCG(cfg.Seed, 1)), asked: map[string][]string{}, //nolint:gosec // a test that can be repeated
		held: map[string]map[string]string{}, versions: map[string]map[string]string{},
	}
	for _, url := range p.with(cds, eds, lds, rds, vhds, ecds) {
		p.held[url], p.versions[url] = map[string]string{}, map[string]string{}
	}
	return p
}

// with adds the name table to types, if the proxy subscribes to it.
func (p *Proxy) with(urls ...string) []string {
	if p.Agent {
		return append(urls, nds)
	}
	return urls
}

// Connect opens a stream and states what the proxy holds. It ends the stream that is open.
func (p *Proxy) Connect(t testing.TB, conn *grpc.ClientConn) {
	t.Helper()
	p.Disconnect()
	ctx, cancel := context.WithCancel(context.Background())
	p.stop, p.done = cancel, make(chan struct{})
	client := discovery.NewAggregatedDiscoveryServiceClient(conn)
	if p.Delta {
		stream, err := client.DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		go p.runDelta(stream)
		return
	}
	stream, err := client.StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	go p.runSotw(stream)
}

// Demands are names that it subscribes to besides those that Children lists, by type.
func (p *Proxy) Demands() map[string][]string { return p.demands }

// Disconnect ends the stream, if there is one.
func (p *Proxy) Disconnect() {
	if p.stop != nil {
		p.stop()
		<-p.done
		p.stop = nil
	}
}

// verdict decides on a response: nil to acknowledge it, or the error of a NACK.
func (p *Proxy) verdict() *rpcstatus.Status {
	if p.rejectsAtRandom && p.rand.IntN(4) == 0 {
		return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: "in a mood"}
	}
	return nil
}

func (p *Proxy) runDelta(stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) {
	defer close(p.done)
	first := p.Node
	send := func(m *discovery.DeltaDiscoveryRequest) {
		m.Node, first = first, nil
		_ = stream.Send(m) // a broken stream shows in Recv
	}
	p.mu.Lock()
	order := p.with(cds, eds, lds, rds, vhds, ecds)
	if p.rand.IntN(2) == 0 {
		slices.Reverse(order)
	}
	for _, url := range order {
		m := &discovery.DeltaDiscoveryRequest{TypeUrl: url, InitialResourceVersions: maps.Clone(p.versions[url])}
		switch url {
		case eds, rds, ecds:
			if m.ResourceNamesSubscribe = slices.Clone(p.asked[url]); len(m.ResourceNamesSubscribe) == 0 {
				continue
			}
			p.rand.Shuffle(len(m.ResourceNamesSubscribe), func(i, j int) {
				m.ResourceNamesSubscribe[i], m.ResourceNamesSubscribe[j] = m.ResourceNamesSubscribe[j], m.ResourceNamesSubscribe[i]
			})
		case cds:
			if demands := p.demands[url]; len(demands) > 0 {
				m.ResourceNamesSubscribe = append([]string{"*"}, demands...)
			}
		}
		send(m)
		if demands := p.demands[url]; url == vhds && len(demands) > 0 {
			send(&discovery.DeltaDiscoveryRequest{TypeUrl: url, ResourceNamesSubscribe: demands})
		}
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
				if r.GetResource() == nil { // "not found"
					continue
				}
				if url == vhds && !p.hasRouteConfig(r.GetName()) {
					if p.statesDroppedVersions {
						p.versions[url][r.GetName()] = r.GetVersion()
					}
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
		for _, child := range p.childTypes(url) {
			if added, gone := p.follow(url, child); len(added)+len(gone) > 0 {
				send(&discovery.DeltaDiscoveryRequest{TypeUrl: child, ResourceNamesSubscribe: added, ResourceNamesUnsubscribe: gone})
			}
		}
		p.mu.Unlock()
	}
}

func (p *Proxy) runSotw(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient) {
	defer close(p.done)
	first, nonces := p.Node, map[string]string{}
	send := func(url string, failure *rpcstatus.Status) {
		m := &discovery.DiscoveryRequest{
			Node: first, TypeUrl: url, ResourceNames: slices.Clone(p.asked[url]), VersionInfo: p.versions[url][""],
			ResponseNonce: nonces[url], ErrorDetail: failure,
		}
		first = nil
		_ = stream.Send(m) // a broken stream shows in Recv
	}
	p.mu.Lock()
	for _, url := range p.with(cds, eds, lds, rds, ecds) {
		if (url == eds || url == rds || url == ecds) && len(p.asked[url]) == 0 {
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
			if url == cds || url == lds || url == nds {
				clear(p.held[url])
			}
			for _, r := range m.GetResources() {
				msg, err := r.UnmarshalNew()
				if err != nil {
					continue
				}
				name := cache.GetResourceName(msg)
				if url == nds {
					name = nametable.Name // the message has no name
				}
				if p.wants(url, name) {
					p.held[url][name] = string(r.GetValue())
				}
			}
			p.versions[url][""] = m.GetVersionInfo()
		}
		send(url, failure)
		for _, child := range p.childTypes(url) {
			if added, gone := p.follow(url, child); len(added)+len(gone) > 0 {
				send(child, nil)
			}
		}
		p.mu.Unlock()
	}
}

// hasRouteConfig reports whether the proxy holds the route configuration of a virtual host.
func (p *Proxy) hasRouteConfig(host string) bool {
	_, ok := p.held[rds][host[:strings.LastIndexByte(host, '/')]]
	return ok
}

// wants reports whether the proxy is subscribed to a resource: it ignores a response to a subscription that it has
// ended meanwhile.
func (p *Proxy) wants(url, name string) bool {
	return url == cds || url == lds || url == vhds || url == nds || slices.Contains(p.asked[url], name)
}

// childTypes lists the types that the proxy subscribes to because of what it holds of another.
func (p *Proxy) childTypes(parent string) []string {
	switch {
	case parent == cds:
		return []string{eds}
	case parent == lds && p.extensions != nil:
		return []string{rds, ecds}
	case parent == lds:
		return []string{rds}
	default:
		return nil
	}
}

// follow adjusts the subscriptions to endpoints, routes or extension configs to the clusters or listeners that the
// proxy holds. It drops the resources that it unsubscribes from.
func (p *Proxy) follow(parent, child string) (added, gone []string) {
	list := p.children
	if child == ecds {
		list = p.extensions
	}
	wanted := map[string]bool{}
	for name, content := range p.held[parent] {
		for _, c := range list(parent, name, []byte(content)) {
			wanted[c] = true
		}
	}
	for name := range wanted {
		if !slices.Contains(p.asked[child], name) {
			added = append(added, name)
		}
	}
	for _, name := range p.asked[child] {
		if !wanted[name] {
			gone = append(gone, name)
			delete(p.held[child], name)
			delete(p.versions[child], name)
			if child == rds {
				of := func(host, _ string) bool { return strings.HasPrefix(host, name+"/") }
				maps.DeleteFunc(p.held[vhds], of)
				if !p.statesDroppedVersions {
					maps.DeleteFunc(p.versions[vhds], of)
				}
			}
		}
	}
	p.asked[child] = slices.DeleteFunc(p.asked[child], func(n string) bool { return slices.Contains(gone, n) })
	p.asked[child] = append(p.asked[child], added...)
	slices.Sort(p.asked[child])
	return added, gone
}

// State copies what the proxy holds: content by type URL and name.
func (p *Proxy) State() map[string]map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := map[string]map[string]string{}
	for url, held := range p.held {
		state[url] = maps.Clone(held)
	}
	return state
}

// StopRejecting makes the proxy acknowledge all further responses.
func (p *Proxy) StopRejecting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rejectsAtRandom = false
}
