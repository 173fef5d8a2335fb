package subscription

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/wire"
	"fairlead.dev/services/xds-server/internal/store"
)

// urls are the types of a script.
var urls = map[string]string{
	"cds": resource.ClusterType, "eds": resource.EndpointType, "lds": resource.ListenerType, "rds": resource.RouteType,
	"vhds": resource.VirtualHostType,
}

// step is an event, and what the client is sent because of it: "TYPE +resource -removed ?missing" for each response, in
// order, separated by "; ". The events are:
//
//	sub TYPE NAMES…      a request that subscribes to names; a sotw request that asks for all of these names
//	has TYPE NAMES…      the same, as a client that reconnects and holds everything that the class has
//	unsub TYPE NAMES…    a request that unsubscribes
//	both TYPE NAMES…     a request that does both with the same names
//	ack TYPE             a request with the nonce of the last response of the type
//	nack TYPE MESSAGE    the same with an error
//	old TYPE NAMES…      a sotw request with a nonce that is not the last one
//	set TYPE NAME=V…     a change of resources, which the class publishes and tells; no V: they are removed
//	publish TYPE NAME=V… a change that the class publishes and does not tell yet
//	tell                 what was published is told
//	wait                 the order timeout passes
//	full, free           there is no room for responses; there is again
type step struct{ event, sent string }

// script is a client with a class that the test changes.
type script struct {
	t         *testing.T
	client    *Client
	store     *store.Store
	delta     bool
	items     map[string]map[string]plan.Item
	published *plan.Snapshot
	told      plan.Point
	changed   plan.Changes
	added     plan.Changes
	onDemand  bool
	now       time.Time
	nonces    map[string]string
	count     int
	full      bool
	// charged is what the account is charged, and allowed how much that may be.
	charged, allowed int64
	// refused counts the calls of NamesRefused.
	refused int
}

func start(t *testing.T, delta bool, change func(*Config)) *script {
	t.Helper()
	s := &script{
		t: t, delta: delta, store: store.New(), items: map[string]map[string]plan.Item{}, now: time.Unix(1, 0), nonces: map[string]string{},
		changed: plan.Changes{}, added: plan.Changes{}, allowed: 1 << 20,
	}
	cfg := Config{
		Delta: delta, Class: s, Account: s, Memory: s, EmptyEndpoints: s.store, HostRefused: func(string, bool) {},
		NamesRefused: func(string) { s.refused++ },
		Limits: &Limits{
			MaxSubscribedBytes: 1 << 20, MaxNameBytes: 100, MaxOnDemandHosts: 2, MaxResponseBytes: 1 << 20, OrderTimeout: 5 * time.Second,
		},
	}
	if change != nil {
		change(&cfg)
	}
	s.client = New(cfg)
	s.publish()
	s.tell()
	return s
}

// Class, Account and Memory of the client.

func (s *script) Plan(string, bool, []string)    {}
func (s *script) Release(string, []string)       {}
func (s *script) Snapshot() *plan.Snapshot       { return s.published }
func (s *script) Failures(string) []plan.Failure { return nil }
func (s *script) OnDemand() bool                 { return s.onDemand }
func (s *script) RefundNames(n int64)            { s.charged -= n }
func (s *script) AddWork(int)                    {}
func (s *script) Names(string) []string          { return nil }
func (s *script) Remember(string, []string)      {}

func (s *script) ChargeNames(n int64) (refused string) {
	if s.charged+n > s.allowed {
		return "too many names"
	}
	s.charged += n
	return ""
}

// message is a resource whose bytes depend on a version. Route configurations have their virtual hosts apart, and a
// virtual host of version "to:NAME" routes to that cluster.
func message(url, name, version string) proto.Message {
	ads := &core.ConfigSource{
		ResourceApiVersion: core.ApiVersion_V3, ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
	}
	switch url {
	case resource.ClusterType:
		return &cluster.Cluster{
			Name: name, AltStatName: version, ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
			EdsClusterConfig: &cluster.Cluster_EdsClusterConfig{EdsConfig: ads},
		}
	case resource.EndpointType:
		return &endpoint.ClusterLoadAssignment{ClusterName: name, NamedEndpoints: map[string]*endpoint.Endpoint{version: {}}}
	case resource.ListenerType:
		return &listener.Listener{Name: name, StatPrefix: version}
	case resource.RouteType:
		rc := &route.RouteConfiguration{Name: name, InternalOnlyHeaders: []string{version}}
		if version != "inline" {
			rc.Vhds = &route.Vhds{ConfigSource: ads}
		}
		return rc
	default:
		vh := &route.VirtualHost{Name: name, Domains: []string{"*"}, RequestHeadersToRemove: []string{version}}
		if to, ok := strings.CutPrefix(version, "to:"); ok {
			vh.Routes = []*route.Route{{Action: &route.Route_Route{Route: &route.RouteAction{
				ClusterSpecifier: &route.RouteAction_Cluster{Cluster: to},
			}}}}
		}
		return vh
	}
}

// change sets resources, "NAME=VERSION", or removes them, "NAME".
func (s *script) change(url string, changes []string) {
	if s.items[url] == nil {
		s.items[url] = map[string]plan.Item{}
	}
	for _, change := range changes {
		name, version, set := strings.Cut(change, "=")
		s.changed[url] = append(s.changed[url], name)
		if !set {
			delete(s.items[url], name)
			continue
		}
		if _, ok := s.items[url][name]; !ok {
			s.added[url] = append(s.added[url], name)
		}
		blob, err := s.store.Put(url, name, message(url, name, version))
		if err != nil {
			s.t.Fatal(err)
		}
		named := url == resource.EndpointType || url == resource.RouteType
		s.items[url][name] = plan.Item{Blob: blob, Wildcard: !named}
	}
}

// publish makes the next snapshot.
func (s *script) publish() {
	next := s.told.Generation + 1
	if s.published != nil {
		next = s.published.Generation + 1
	}
	items := map[string]map[string]plan.Item{}
	for url, named := range s.items {
		items[url] = maps.Clone(named)
	}
	s.published = plan.SnapshotOf(plan.Point{Revision: &configv1.Revision{Sequence: next}, Generation: next}, items)
}

// tell tells the client what was published.
func (s *script) tell() {
	s.client.SetServed(s.told)
	s.client.Changed(s.changed, s.added)
	s.changed, s.added = plan.Changes{}, plan.Changes{}
	s.told = s.published.Point
}

// request sends a request in its wire form, which is not refused.
func (s *script) request(url, nonce string, names, unsubscribe []string, edit func(*discovery.DeltaDiscoveryRequest)) {
	if err := s.try(url, nonce, names, unsubscribe, edit); err != nil {
		s.t.Fatal(err)
	}
}

// try sends a request and returns the error that ends the stream.
func (s *script) try(url, nonce string, names, unsubscribe []string, edit func(*discovery.DeltaDiscoveryRequest)) error {
	var m proto.Message
	delta := &discovery.DeltaDiscoveryRequest{
		TypeUrl: url, ResponseNonce: nonce, ResourceNamesSubscribe: names, ResourceNamesUnsubscribe: unsubscribe,
	}
	if edit != nil {
		edit(delta)
	}
	if m = delta; !s.delta {
		m = &discovery.DiscoveryRequest{TypeUrl: url, ResponseNonce: nonce, ResourceNames: names, ErrorDetail: delta.GetErrorDetail()}
	}
	raw, err := proto.Marshal(m)
	if err != nil {
		s.t.Fatal(err)
	}
	req := &wire.Request{Delta: s.delta}
	if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, req); err != nil {
		s.t.Fatal(err)
	}
	_, err = s.client.Request(s.now, req)
	return err
}

// names are those that a sotw request repeats.
func (s *script) asked(url string) []string {
	if sub := s.client.subscription(url); !s.delta && sub != nil {
		names := slices.Sorted(sub.names.All())
		if sub.wildcard && !sub.unnamed {
			names = append(names, "*")
		}
		return names
	}
	return nil
}

// do makes an event happen and returns what is sent.
func (s *script) do(event string) string {
	words := strings.Fields(event)
	var url string
	var rest []string
	if len(words) > 1 {
		url, rest = urls[words[1]], words[2:]
	}
	switch words[0] {
	case "sub":
		s.request(url, s.nonces[url], rest, nil, nil)
	case "has":
		s.request(url, "", rest, nil, func(m *discovery.DeltaDiscoveryRequest) {
			m.InitialResourceVersions = map[string]string{}
			for name, item := range s.items[url] {
				m.InitialResourceVersions[name] = item.Blob.Version()
			}
		})
	case "unsub":
		s.request(url, "", nil, rest, nil)
	case "both":
		s.request(url, "", rest, rest, nil)
	case "ack":
		s.request(url, s.nonces[url], s.asked(url), nil, nil)
	case "nack":
		s.request(url, s.nonces[url], s.asked(url), nil, func(m *discovery.DeltaDiscoveryRequest) {
			m.ErrorDetail = &rpcstatus.Status{Message: strings.Join(rest, " ")}
		})
	case "old":
		s.request(url, "0", rest, nil, nil)
	case "set":
		s.change(url, rest)
		s.publish()
		s.tell()
	case "publish":
		s.change(url, rest)
		s.publish()
	case "tell":
		s.tell()
	case "wait":
		s.now = s.now.Add(5 * time.Second)
	case "full", "free":
		s.full = words[0] == "full"
	default:
		s.t.Fatalf("unknown event %q", event)
	}
	var sent []string
	s.client.Flush(s.now, func(out *Response) bool {
		if s.full {
			return false
		}
		s.count++
		s.nonces[out.TypeURL] = fmt.Sprint(s.count)
		s.client.Sent(s.now, out, s.nonces[out.TypeURL])
		sent = append(sent, s.describe(out))
		return true
	})
	s.client.SetServed(s.told)
	return strings.Join(sent, "; ")
}

func (s *script) describe(out *Response) string {
	var words []string
	for short, url := range urls {
		if url == out.TypeURL {
			words = append(words, short)
		}
	}
	for _, blob := range out.Blobs {
		words = append(words, "+"+blob.Name())
	}
	for _, name := range out.Missing {
		words = append(words, "?"+name)
	}
	for _, name := range out.Removed {
		if s.delta {
			words = append(words, "-"+name)
		}
	}
	return strings.Join(words, " ")
}

// run plays the steps.
func (s *script) run(steps []step) {
	s.t.Helper()
	for i, step := range steps {
		if got := s.do(step.event); got != step.sent {
			s.t.Fatalf("step %d, %q: sent %q, want %q", i+1, step.event, got, step.sent)
		}
	}
}
