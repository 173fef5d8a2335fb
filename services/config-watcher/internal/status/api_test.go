package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// apiMesh is a mesh with a tracker of statuses and a fleet.
type apiMesh struct {
	// file is the place of objects that are applied; empty for those of an API server.
	file    string
	t       testing.TB
	mesh    *normalise.Mesh
	log     *revision.Log
	tracker *Tracker
	clock   *testkit.Clock
	fleet   *fleet.Table
	reports interface {
		Apply(*configv1.ReportRequest, bool)
	}
	all, few *apiSink
	owner    *Owner
	findings foundFake
	// whole is a second tracker of the same mesh, each of whose rounds looks at everything; mostly nil.
	whole *Tracker
	uid   int
}

// foundFake are findings; it counts how often it is asked for those of an object.
type foundFake struct {
	of      map[object.Key][]finding.Finding
	changed []object.Key
	asked   int
}

func (f *foundFake) Of(k object.Key) []finding.Finding {
	f.asked++
	return f.of[k]
}

func (f *foundFake) TakeChanged() []object.Key {
	out := f.changed
	f.changed = nil
	return out
}

// apiSink keeps the newest status of each object, and counts.
type apiSink struct {
	statuses map[object.Key]*Status
	puts     int
}

func (s *apiSink) Put(to Target, st *Status) bool {
	s.statuses[to.Key] = st
	s.puts++
	return true
}

// written is what is written of each object.
func (s *apiSink) written() map[object.Key]any {
	out := map[object.Key]any{}
	for k, st := range s.statuses {
		if out[k] = st; st.API != nil {
			out[k] = st.API
		}
	}
	return out
}

func (s *apiSink) Forget(k object.Key) { delete(s.statuses, k) }
func (s *apiSink) Failure() error      { return nil }

func newAPIMesh(t testing.TB, revisionName string) *apiMesh {
	c := testkit.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	m := &apiMesh{t: t, clock: c, mesh: normalise.New(normalise.Config{}), log: revision.NewLog(testEpoch, c), fleet: fleet.NewTable(c),
		all: &apiSink{statuses: map[object.Key]*Status{}}, few: &apiSink{statuses: map[object.Key]*Status{}}}
	m.owner = NewOwner(revisionName)
	m.tracker = NewTracker(Config{Domain: "cluster.local", Revisions: m.log, Fleet: m.fleet, Credentials: credential.NewTable(),
		Overridden: func() [][]*object.Object { return nil }, Findings: &m.findings,
		Sinks: map[string]Sink{"test": m.all}, Few: map[string]Sink{"test": m.few}, Owner: m.owner, Log: testkit.Logger(t), Clock: c})
	m.reports = m.fleet.Report("xds-1")
	m.reports.Apply(&configv1.ReportRequest{}, true)
	return m
}

// apply applies objects in YAML; one with the label "gone" is removed.
func (m *apiMesh) apply(documents ...string) {
	m.t.Helper()
	var changes []normalise.Change
	for _, text := range documents {
		var meta metav1.PartialObjectMetadata
		testkit.NoError(m.t, yaml.Unmarshal([]byte(text), &meta))
		group, _, grouped := strings.Cut(meta.APIVersion, "/")
		if !grouped {
			group = ""
		}
		k := object.Key{Group: group, Kind: meta.Kind, Namespace: meta.Namespace, Name: meta.Name}
		if _, gone := meta.Labels["gone"]; gone {
			changes = append(changes, normalise.Change{Key: k})
			continue
		}
		m.uid++
		o := &object.Object{Key: k, APIVersion: meta.APIVersion, Labels: meta.Labels, Generation: meta.Generation, Source: "test",
			Location: m.file, UID: string(meta.UID), Digest: [16]byte{byte(m.uid), byte(m.uid >> 8)}}
		body := map[string]any{"Gateway": &gatewayv1.Gateway{}, "GatewayClass": &gatewayv1.GatewayClass{}, "HTTPRoute": &gatewayv1.HTTPRoute{},
			"ListenerSet": &gatewayv1.ListenerSet{}, "Service": &corev1.Service{}, "Namespace": nil}[meta.Kind]
		if meta.Kind == "Pod" {
			pod := &corev1.Pod{}
			testkit.NoError(m.t, yaml.Unmarshal([]byte(text), pod))
			body = object.PodOf(pod)
		} else if body != nil {
			testkit.NoError(m.t, yaml.UnmarshalStrict([]byte(text), body))
		}
		o.Body = body
		changes = append(changes, normalise.Change{Key: k, Object: o})
	}
	d := m.mesh.Apply(changes)
	for _, err := range d.Errors {
		m.t.Error(err)
	}
	m.log.Commit(d.Upserts, d.Removed, "")
	m.submit(d.Discovered, d.Judged)
	m.round()
}

func (m *apiMesh) submit(changes []normalise.Change, judged normalise.Judged) {
	m.tracker.Submit(changes, judged)
	if m.whole != nil {
		m.whole.Submit(changes, judged)
	}
}

func (m *apiMesh) round() {
	snapshot, _ := m.log.Current()
	m.tracker.round(snapshot)
	if m.whole != nil {
		for k := range m.whole.entries {
			m.whole.due.add(k)
		}
		m.whole.due.fleet = nil
		m.whole.round(snapshot)
	}
}

// gateway reports a connected gateway of namespace shop that has acknowledged the newest revision less behind.
func (m *apiMesh) gateway(name string, behind uint64, types ...*configv1.ProxyTypeStatus) {
	snapshot, _ := m.log.Current()
	r := at(snapshot.Sequence() - behind)
	m.reports.Apply(&configv1.ReportRequest{Proxies: []*configv1.ProxyStatus{{NodeId: "router~10.0.0.1~" + name + ".shop~d",
		Identity: "spiffe://cluster.local/ns/shop/sa/" + name, Namespace: "shop", Workload: name, Types: types, Acked: r}}, Revision: r}, false)
	m.round()
}

// conditions are those of an object's status as "<type>=<status>/<reason>", and of its listeners.
func (m *apiMesh) conditions(kind, name string) string {
	k := object.Key{Group: gatewayapi.Group, Kind: kind, Namespace: "shop", Name: name}
	if kind == gatewayapi.GatewayClass {
		k.Namespace = ""
	}
	st := m.few.statuses[k]
	if st == nil {
		st = m.all.statuses[k]
	}
	if st == nil {
		return "nothing"
	}
	var out []string
	add := func(where string, list []metav1.Condition) {
		for _, c := range list {
			if c.Type == Programmed || c.Type == Accepted && c.Status != metav1.ConditionTrue || kind != gatewayapi.Gateway {
				out = append(out, fmt.Sprintf("%s%s=%s/%s", where, c.Type, c.Status, c.Reason))
			}
		}
	}
	switch a := st.API; {
	case a.Gateway != nil:
		add("", a.Gateway.Conditions)
		for _, l := range a.Gateway.Listeners {
			add(string(l.Name)+":", l.Conditions)
		}
		for _, at := range a.Gateway.Addresses {
			out = append(out, at.Value)
		}
	case a.ListenerSet != nil:
		add("", a.ListenerSet.Conditions)
	case a.Route != nil:
		for _, p := range a.Route.Parents {
			add(string(p.ParentRef.Name)+":", p.Conditions)
		}
	case a.Class != nil:
		add("", a.Class.Conditions)
	}
	return strings.Join(out, " ")
}

func (m *apiMesh) want(what, kind, name, want string) {
	m.t.Helper()
	if got := m.conditions(kind, name); got != want {
		m.t.Errorf("%s:\ngot  %s\nwant %s", what, got, want)
	}
}

const (
	shopNamespace = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"
	edgeGateway   = `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge, namespace: shop, generation: 1},
 spec: {gatewayClassName: istio, listeners: [{name: a, port: 80, protocol: HTTP}, {name: b, port: 81, protocol: HTTP}]}}`
	edgePod = `{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: edge}},
 spec: {serviceAccountName: %[1]s}, status: {podIP: 10.0.0.%d, phase: Running}}`
	edgeService = `{apiVersion: v1, kind: Service, metadata: {name: edge-istio, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: edge}},
 spec: {type: LoadBalancer, clusterIP: 10.9.0.1, ports: [{port: 80}]}, status: {loadBalancer: {ingress: [%s]}}}`
)

// TestProgrammedGateways: Programmed means that every connected gateway that the Gateway selects has acknowledged it,
// and that it has its addresses.
func TestProgrammedGateways(t *testing.T) {
	m := newAPIMesh(t, "")
	m.apply(shopNamespace, edgeGateway, fmt.Sprintf(edgePod, "edge-1", 1), fmt.Sprintf(edgePod, "edge-2", 2))
	m.want("nobody is connected", "Gateway", "edge", "Programmed=False/Pending a:Programmed=False/Pending b:Programmed=False/Pending")
	m.gateway("edge-1", 0)
	m.want("without a Service, the workloads' addresses", "Gateway", "edge",
		"Programmed=True/Programmed a:Programmed=True/Programmed b:Programmed=True/Programmed 10.0.0.1")
	m.apply(fmt.Sprintf(edgeService, ""))
	m.gateway("edge-1", 0)
	m.want("the load balancer has no address", "Gateway", "edge",
		"Programmed=False/AddressNotAssigned a:Programmed=True/Programmed b:Programmed=True/Programmed")
	m.file = "mesh.yaml:7"
	m.apply(fmt.Sprintf(edgeService, ""))
	m.gateway("edge-1", 0)
	m.want("nobody gives a Service of a file an address", "Gateway", "edge",
		"Programmed=True/Programmed a:Programmed=True/Programmed b:Programmed=True/Programmed 10.0.0.1")
	m.file = ""
	m.apply(fmt.Sprintf(edgeService, "{ip: 192.0.2.1}"))
	m.gateway("edge-1", 0)
	m.want("the load balancer has one", "Gateway", "edge",
		"Programmed=True/Programmed a:Programmed=True/Programmed b:Programmed=True/Programmed 192.0.2.1")
	m.gateway("edge-2", 0, &configv1.ProxyTypeStatus{TypeUrl: "x", Awaiting: true})
	m.want("a second one", "Gateway", "edge",
		"Programmed=True/Programmed a:Programmed=True/Programmed b:Programmed=True/Programmed 192.0.2.1")

	t.Run("a new version is pending until both have it", func(t *testing.T) {
		m.t = t
		m.apply(strings.Replace(strings.Replace(edgeGateway, "port: 81", "port: 82", 1), "generation: 1", "generation: 2", 1))
		m.gateway("edge-1", 0)
		m.clock.Advance(settleTime)
		m.round()
		m.want("one has it", "Gateway", "edge",
			"Programmed=False/Pending a:Programmed=False/Pending b:Programmed=False/Pending 192.0.2.1")
		m.gateway("edge-2", 0)
		m.want("both have it", "Gateway", "edge",
			"Programmed=True/Programmed a:Programmed=True/Programmed b:Programmed=True/Programmed 192.0.2.1")
	})
	t.Run("a rejected listener is told in Envoy's words", func(t *testing.T) {
		m.t = t
		snapshot, _ := m.log.Current()
		m.gateway("edge-2", 0, rejects("listener.v3.Listener", snapshot.Sequence(), "no such thing", "0.0.0.0_82"))
		m.want("one port", "Gateway", "edge", "Programmed=False/Invalid a:Programmed=True/Programmed b:Programmed=False/Invalid 192.0.2.1")
		row := m.few.statuses[object.Key{Group: gatewayapi.Group, Kind: "Gateway", Namespace: "shop", Name: "edge"}]
		if words := row.Get(Programmed).Message; !strings.Contains(words, "shop/edge-2: Listener 0.0.0.0_82: no such thing") {
			t.Errorf("the message is %q", words)
		}
		m.gateway("edge-2", 0, rejects("listener.v3.Listener", snapshot.Sequence(), "no such thing", "other"))
		m.want("a name that says no port", "Gateway", "edge",
			"Programmed=False/Invalid a:Programmed=False/Invalid b:Programmed=False/Invalid 192.0.2.1")
		m.gateway("edge-2", 0)
	})
	t.Run("addresses that are asked for", func(t *testing.T) {
		m.t = t
		asks := func(n int, addresses string) string {
			return strings.Replace(strings.Replace(edgeGateway, "spec: {", "spec: {addresses: ["+addresses+"], ", 1), "generation: 1",
				fmt.Sprint("generation: ", n), 1)
		}
		const served = " a:Programmed=True/Programmed b:Programmed=True/Programmed 192.0.2.1"
		for i, c := range []struct{ addresses, want string }{
			{"{value: 192.0.2.1}", "Programmed=True/Programmed" + served},
			{"{value: 192.0.2.1}, {value: 192.0.2.9}", "Programmed=False/AddressNotUsable" + served},
			{"{type: IPAddress}", "Programmed=True/Programmed" + served},
			{"{type: Hostname, value: nowhere.shop.svc.cluster.local}",
				"Programmed=False/AddressNotUsable a:Programmed=False/Pending b:Programmed=False/Pending"},
			{"{type: Hostname, value: edge.example.com}",
				"Programmed=False/AddressNotUsable a:Programmed=False/Pending b:Programmed=False/Pending"},
		} {
			m.apply(asks(10+i, c.addresses))
			m.gateway("edge-1", 0)
			m.gateway("edge-2", 0)
			m.clock.Advance(settleTime)
			m.round()
			m.want(c.addresses, "Gateway", "edge", c.want)
		}
	})
}

// TestAddressesOfLongNames: a Gateway whose name is no value of a label has the addresses of its Service, which the
// label names in short, and the Pods with that label serve it.
func TestAddressesOfLongNames(t *testing.T) {
	for _, name := range []string{strings.Repeat("g", 63), strings.Repeat("g", 64), strings.Repeat("long.", 40) + "name"} {
		m := newAPIMesh(t, "")
		named := func(text, label string) string {
			text = strings.ReplaceAll(text, "gateway-name: edge", "gateway-name: "+label)
			return strings.Replace(text, "{name: edge, ", "{name: "+name+", ", 1)
		}
		label := gatewaydeploy.LabelValue(name)
		m.apply(shopNamespace, named(edgeGateway, ""), named(fmt.Sprintf(edgePod, "edge-1", 1), label),
			named(fmt.Sprintf(edgeService, "{ip: 192.0.2.1}"), label))
		m.gateway("edge-1", 0)
		m.want(fmt.Sprintf("a name of %d bytes", len(name)), "Gateway", name,
			"Programmed=True/Programmed a:Programmed=True/Programmed b:Programmed=True/Programmed 192.0.2.1")
	}
}

// TestTakenListeners: a listener is not programmed whose port or hostname an older Gateway of the same workloads has.
func TestTakenListeners(t *testing.T) {
	m := newAPIMesh(t, "")
	gateway := func(name, listeners string) string {
		return "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: " + name +
			", namespace: shop, generation: 1}, spec: {gatewayClassName: istio, addresses: [{type: Hostname, value: edge}], listeners: [" +
			listeners + "]}}"
	}
	m.apply(shopNamespace, "{apiVersion: v1, kind: Service, metadata: {name: edge, namespace: shop}, spec: {type: ClusterIP, "+
		"selector: {gateway.networking.k8s.io/gateway-name: edge}, ports: [{port: 80}]}}", fmt.Sprintf(edgePod, "edge-1", 1),
		gateway("a", "{name: w, port: 80, protocol: HTTP}"),
		gateway("b", "{name: x, port: 80, protocol: TCP}, {name: v, port: 81, protocol: TCP}"),
		gateway("c", "{name: z, port: 80, protocol: HTTP}"))
	m.gateway("edge-1", 0)
	const address = " edge.shop.svc.cluster.local"
	m.want("the oldest", "Gateway", "a", "Programmed=True/Programmed w:Programmed=True/Programmed"+address)
	m.want("one of two listeners", "Gateway", "b", "Programmed=True/Programmed x:Accepted=False/ProtocolConflict "+
		"x:Programmed=False/ProtocolConflict v:Programmed=True/Programmed"+address)
	m.want("its only listener", "Gateway", "c", "Accepted=False/ListenersNotValid Programmed=False/Invalid z:Accepted=False/HostnameConflict "+
		"z:Programmed=False/HostnameConflict"+address)
	m.apply("{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: a, namespace: shop, labels: {gone: ''}}}")
	m.gateway("edge-1", 0)
	m.want("the older one is gone", "Gateway", "b",
		"Programmed=True/Programmed x:Programmed=True/Programmed v:Programmed=True/Programmed"+address)
}

// TestStatusIsWrittenOnce: what does not change is not handed on, and 1,000 routes that come in one go change their
// Gateway a few times.
func TestStatusIsWrittenOnce(t *testing.T) {
	m := newAPIMesh(t, "")
	m.apply(shopNamespace, edgeGateway, fmt.Sprintf(edgePod, "edge-1", 1), fmt.Sprintf(edgeService, "{ip: 192.0.2.1}"))
	m.gateway("edge-1", 0)
	route := func(i int) string {
		return fmt.Sprintf(`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r%d, namespace: shop, generation: 1},
 spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: nowhere, port: 80}]}]}}`, i)
	}
	var all []string
	for i := range 1000 {
		all = append(all, route(i))
	}
	before := m.few.puts
	m.apply(all...)
	m.gateway("edge-1", 0)
	k := object.Key{Group: gatewayapi.Group, Kind: "Gateway", Namespace: "shop", Name: "edge"}
	if n := m.few.statuses[k].API.Gateway.Listeners[0].AttachedRoutes; n != 1000 || m.few.puts-before > 2 {
		t.Errorf("%d routes are attached after %d statuses of the Gateway", n, m.few.puts-before)
	}
	m.want("a route", "HTTPRoute", "r7", "edge:Accepted=True/Accepted edge:ResolvedRefs=False/BackendNotFound")
	few, puts := m.few.puts, m.all.puts
	for range 5 {
		m.clock.Advance(time.Second)
		m.gateway("edge-1", 0)
	}
	if m.few.puts != few || m.all.puts != puts {
		t.Errorf("%d and %d statuses are handed on although nothing changes", m.few.puts-few, m.all.puts-puts)
	}
	m.apply(strings.Replace(route(7), "generation: 1", "labels: {gone: ''}", 1))
	if m.conditions("HTTPRoute", "r7") != "nothing" {
		t.Error("the status of a route that is gone is kept")
	}
}

// TestRevisionsOfTheGatewayAPI: of several revisions of the control plane that one writes whose label the object, or
// its namespace, has.
func TestRevisionsOfTheGatewayAPI(t *testing.T) {
	labelled := func(text, revision string) string {
		return strings.Replace(text, "namespace: shop,", "namespace: shop, labels: {istio.io/rev: "+revision+"},", 1)
	}
	namespace := strings.Replace(shopNamespace, "name: shop", "name: shop, labels: {istio.io/rev: canary}", 1)
	for name, c := range map[string]struct {
		documents []string
		writers   []string
	}{
		"no label":                        {[]string{shopNamespace, edgeGateway}, []string{"", "default"}},
		"a label":                         {[]string{shopNamespace, labelled(edgeGateway, "canary")}, []string{"canary"}},
		"the label of the default":        {[]string{shopNamespace, labelled(edgeGateway, "default")}, []string{"", "default"}},
		"the namespace's":                 {[]string{namespace, edgeGateway}, []string{"canary"}},
		"its own before the namespace's":  {[]string{namespace, labelled(edgeGateway, "default")}, []string{"", "default"}},
		"the label comes later":           {[]string{shopNamespace, edgeGateway, "then", labelled(edgeGateway, "canary")}, []string{"canary"}},
		"the namespace's label goes away": {[]string{namespace, edgeGateway, "then", shopNamespace}, []string{"", "default"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, revision := range []string{"", "default", "canary"} {
				m := newAPIMesh(t, revision)
				if i := slices.Index(c.documents, "then"); i >= 0 {
					m.apply(c.documents[:i]...)
					m.apply(c.documents[i+1:]...)
				} else {
					m.apply(c.documents...)
				}
				if writes := m.conditions("Gateway", "edge") != "nothing"; writes != slices.Contains(c.writers, revision) {
					t.Errorf("revision %q writes: %v", revision, writes)
				}
			}
		})
	}
}
