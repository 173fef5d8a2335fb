package credential

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// gateways is a fleet with a gateway in a namespace; "" for none.
type gateways struct{ namespace string }

func (r *gateways) GatewayNamespaces() []string {
	if r.namespace == "" {
		return nil
	}
	return []string{r.namespace}
}

func (r *gateways) IdentitiesChanged() <-chan struct{} { return nil }

// told is a source that keeps what it was told to read.
type told struct {
	Lookup
	keys, also []object.Key
}

func (s *told) Want(keys []object.Key)     { s.keys = keys }
func (s *told) WantAlso(keys []object.Key) { s.also = append(s.also, keys...) }

func server(mode networking.ServerTLSSettings_TLSmode, credential, authority string) *networking.Server {
	return &networking.Server{Tls: &networking.ServerTLSSettings{Mode: mode, CredentialName: credential, CaCertCredentialName: authority}}
}

// TestWanted: a Secret or ConfigMap is wanted as long as an object refers to it for workloads of its namespace.
func TestWanted(t *testing.T) {
	const simple, mutual = networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL
	r, fleet := newFixture(t), &gateways{}
	source := &told{}
	w := NewWanted(r.log, fleet, source)
	step := func(what string, upserts map[resource.Key]proto.Message, removed []resource.Key, want ...string) {
		t.Helper()
		r.commit(upserts, removed...)
		snapshot, _ := r.log.Current()
		w.follow(snapshot)
		w.changed = w.changed || len(upserts)+len(removed) == 0 // the fleet has changed
		w.tell()
		var got []string
		for _, k := range source.keys {
			got = append(got, fmt.Sprintf("%s %s/%s", k.Kind, k.Namespace, k.Name))
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\nwants %s\nwant  %s", what, strings.Join(got, ", "), strings.Join(want, ", "))
		}
	}
	one := func(k resource.Key, body proto.Message) map[resource.Key]proto.Message {
		return map[resource.Key]proto.Message{k: body}
	}
	edgeKey, edge := workload("edge-1", "edge", "edge")
	elsewhere := resource.Key{Kind: resource.KindWorkload, Namespace: "other", Name: "edge-2"}

	step("a Gateway without workloads",
		one(gatewayKey("g"), &networking.Gateway{Selector: map[string]string{"app": "edge"},
			Servers: []*networking.Server{server(simple, "a", "")}}), nil)
	step("with one", one(edgeKey, edge), nil, "Secret shop/a")
	step("with one in another namespace too", one(elsewhere, &configv1.Workload{Labels: map[string]string{"app": "edge"}}), nil,
		"Secret shop/a", "Secret other/a")
	step("which changes its labels", one(elsewhere, &configv1.Workload{Labels: map[string]string{"app": "web"}}), nil, "Secret shop/a")
	step("a Gateway that verifies clients, and one with a reference to another namespace", one(gatewayKey("g"), &networking.Gateway{
		Selector: map[string]string{"app": "edge"},
		Servers: []*networking.Server{server(mutual, "a", ""), server(simple, "kubernetes-gateway://other/b", ""),
			server(simple, "kubernetes://shop/c", ""), server(mutual, "d", "e-cacert"), server(simple, "file://x", "")},
	}), nil, "Secret shop/a", "Secret shop/a-cacert", "ConfigMap shop/a", "ConfigMap shop/a-cacert", "Secret shop/c", "Secret shop/d",
		"Secret shop/e", "Secret shop/e-cacert", "ConfigMap shop/e", "ConfigMap shop/e-cacert")
	step("one that passes TLS on", one(gatewayKey("g"), &networking.Gateway{
		Selector: map[string]string{"app": "edge"}, Servers: []*networking.Server{server(networking.ServerTLSSettings_PASSTHROUGH, "a", "")},
	}), nil)
	rule := resource.Key{Kind: kindRule, Namespace: "apps", Name: "r"}
	tls := &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{CredentialName: "client"}}
	all := func(namespace string) []string {
		return []string{"Secret " + namespace + "/client", "Secret " + namespace + "/client-cacert", "ConfigMap " + namespace + "/client",
			"ConfigMap " + namespace + "/client-cacert"}
	}
	step("a DestinationRule for workloads of its namespace", one(rule, &networking.DestinationRule{
		WorkloadSelector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "web"}}, TrafficPolicy: tls,
	}), nil, all("apps")...)
	step("one for gateways", one(rule, &networking.DestinationRule{TrafficPolicy: tls}), nil, all("shop")...)
	fleet.namespace = "lone"
	step("a gateway that no Gateway selects connects", nil, nil, append(all("shop"), all("lone")...)...)
	step("the workload goes", nil, []resource.Key{edgeKey}, all("lone")...)
	step("the rule goes", nil, []resource.Key{rule})
	if len(w.uses) != 1 || len(w.selections) != 1 {
		t.Errorf("%d objects and %d selectors are kept", len(w.uses), len(w.selections))
	}
	step("the Gateway goes", nil, []resource.Key{gatewayKey("g")})
	if len(w.uses)+len(w.selections)+len(w.matched) != 0 {
		t.Errorf("%v, %v, %v are kept", w.uses, w.selections, w.matched)
	}
}

// lookups is a Lookup of a source that has been asked for everything.
type lookups struct {
	mu      sync.Mutex
	reading bool
	asked   bool
	changed chan struct{}
	deliver func() // called by Reading, unless nil
}

func (l *lookups) Reading(object.Key) (asked, reading bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deliver != nil {
		l.deliver()
	}
	return l.asked, l.reading
}

func (l *lookups) Looked() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *lookups) set(asked, reading bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.reading = asked, reading
	close(l.changed)
	l.changed = make(chan struct{})
}

// TestNoAnswerBeforeTheSourceKnows: while a source reads a Secret, a gateway is not told that there is none.
func TestNoAnswerBeforeTheSourceKnows(t *testing.T) {
	l := &lookups{asked: true, reading: true, changed: make(chan struct{})}
	r := newFixtureWith(t, l)
	k, body := workload("edge-1", "edge", "edge")
	r.commit(map[resource.Key]proto.Message{gatewayKey("edge"): gateway("edge", "late", "missing"), k: body})
	r.fleet.Report("x").Apply(report("edge", "router"), true)
	w := r.watch("x")
	late, missing := w.subscribe("edge", "late"), w.subscribe("edge", "missing")
	r.table.Take([]normalise.Change{change("Secret", "late", pair("late"))})
	if !w.next(late) {
		t.Error("the credential is not served")
	}
	l.set(true, false)
	if w.next(missing) {
		t.Error("a credential that does not exist is served")
	}
	l.set(false, false)
	unasked := w.subscribe("edge", "missing")
	r.clock.WaitFor(t, 1)
	r.clock.Advance(answerWithin)
	if w.next(unasked) {
		t.Error("a credential that nobody has asked for is served")
	}
}

// TestACredentialThatArrivesDuringTheAnswer: the source delivers a Secret and says that it knows, both while a
// subscription is answered.
func TestACredentialThatArrivesDuringTheAnswer(t *testing.T) {
	l := &lookups{asked: true, changed: make(chan struct{})}
	r := newFixtureWith(t, l)
	l.deliver = func() { r.table.Take([]normalise.Change{change("Secret", "late", pair("late"))}) }
	k, body := workload("edge-1", "edge", "edge")
	r.commit(map[resource.Key]proto.Message{gatewayKey("edge"): gateway("edge", "late"), k: body})
	r.fleet.Report("x").Apply(report("edge", "router"), true)
	w := r.watch("x")
	if !w.next(w.subscribe("edge", "late")) {
		t.Error("it is said that there is none")
	}
}
