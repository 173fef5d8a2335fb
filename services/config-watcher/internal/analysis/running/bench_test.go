package running

import (
	"fmt"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// large is a mesh of n Services, VirtualServices, DestinationRules and Gateways each. All VirtualServices name one of
// the Gateways.
func large(n int) []normalise.Change {
	var out []normalise.Change
	add := func(group, kind, ns, name string, body any) {
		k := object.Key{Group: group, Kind: kind, Namespace: ns, Name: name}
		out = append(out, normalise.Change{Key: k, Object: &object.Object{Key: k, Body: body, Created: time.Unix(int64(len(out)), 0)}})
	}
	const net = kinds.GroupNetworking
	for i := range n {
		ns, name := fmt.Sprintf("ns-%d", i%100), fmt.Sprintf("svc-%d", i)
		add("", "Service", ns, name, &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
		add(net, "DestinationRule", ns, name, &networking.DestinationRule{Host: name, Subsets: []*networking.Subset{{Name: "v1"}}})
		add(net, "VirtualService", ns, name, &networking.VirtualService{
			Hosts: []string{name, fmt.Sprintf("%s.example.com", name)}, Gateways: []string{"mesh", "ns-0/svc-0"},
			Http: []*networking.HTTPRoute{
				{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: name, Subset: "v1"}}}}},
		})
		add(net, "Gateway", ns, name, &networking.Gateway{Selector: map[string]string{"istio": "ingress"}, Servers: []*networking.Server{{
			Port: &networking.Port{Number: 443, Name: "https", Protocol: "HTTPS"}, Hosts: []string{fmt.Sprintf("%s.example.com", name)},
			Tls: &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE},
		}}})
	}
	k := object.Key{Kind: "Pod", Namespace: "ns-0", Name: "ingress"}
	out = append(out, normalise.Change{Key: k,
		Object: &object.Object{Key: k, Labels: map[string]string{"istio": "ingress"}, Body: &object.Pod{}}})
	return out
}

func BenchmarkWhole(b *testing.B) {
	changes := large(5000)
	for b.Loop() {
		m := New("")
		m.Apply(changes)
		m.Analyze(0)
		if found := m.All(); len(found) > 0 {
			b.Fatal(found[0].Error())
		}
	}
}

// BenchmarkChange changes the host of one VirtualService among 20,000 objects, and back.
func BenchmarkChange(b *testing.B) {
	m := New("")
	m.Apply(large(5000))
	m.Analyze(0)
	m.Changes()
	k := object.Key{Group: kinds.GroupNetworking, Kind: "VirtualService", Namespace: "ns-7", Name: "svc-7"}
	there := m.analyzed[k].object
	gone := *there
	gone.Body = &networking.VirtualService{Hosts: []string{"svc-7"},
		Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "nobody"}}}}}}
	for b.Loop() {
		for i, o := range []*object.Object{&gone, there} {
			m.Apply([]normalise.Change{{Key: k, Object: o}})
			m.Analyze(0)
			if len(m.Of(k)) != 1-i {
				b.Fatal(m.Of(k))
			}
		}
		m.Changes()
	}
}

// TestCostOfChangeIsIndependentOfMesh: the cost of a change does not grow with the mesh.
func TestCostOfChangeIsIndependentOfMesh(t *testing.T) {
	m := New("")
	m.Apply(large(5000))
	m.Analyze(0)
	before := m.changes
	k := object.Key{Kind: "Service", Namespace: "ns-7", Name: "svc-7"}
	o := m.analyzed[k].object
	m.Apply([]normalise.Change{{Key: k}})
	if len(m.dirty) > 4 { // the route, the rule
		t.Errorf("a Service that goes has %d objects to analyze again", len(m.dirty))
	}
	m.Analyze(0)
	if len(m.Changes().Appeared) != 2 {
		t.Errorf("found %+v after %+v", m.Changes(), before)
	}
	testkit.Quick(t, 5*time.Millisecond, func() time.Duration {
		began := time.Now()
		m.Apply([]normalise.Change{{Key: k, Object: o}})
		m.Analyze(0)
		m.Apply([]normalise.Change{{Key: k}})
		m.Analyze(0)
		return time.Since(began)
	})
}
