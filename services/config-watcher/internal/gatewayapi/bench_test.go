package gatewayapi_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// large is a Gateway with many routes of one namespace, that all have one hostname.
func large(t testing.TB, routes int) *world {
	w := load(t, basic)
	for i := range routes {
		o := numbered(i, "cart")
		w.Put(o.Key, o)
	}
	w.rebuild()
	return w
}

func numbered(i int, backend gatewayv1.ObjectName) *object.Object {
	port, path := int32(8080), fmt.Sprintf("/path/%d", i)
	exact := gatewayv1.PathMatchExact
	route := &gatewayv1.HTTPRoute{Spec: gatewayv1.HTTPRouteSpec{
		CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "web"}}},
		Hostnames:       []gatewayv1.Hostname{"cart.example.com"},
		Rules: []gatewayv1.HTTPRouteRule{{
			Matches: []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Type: &exact, Value: &path}}},
			BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
				Name: backend, Port: &port,
			}}}},
		}},
	}}
	return &object.Object{
		Key: gatewayKey("HTTPRoute", "shop", fmt.Sprintf("r%05d", i)), Generation: 1, Body: route, Created: time.Unix(int64(i), 0),
	}
}

// BenchmarkChange is one route of 5,000 that changes.
func BenchmarkChange(b *testing.B) {
	w := large(b, 5000)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		o := numbered(i%5000, []gatewayv1.ObjectName{"gone", "cart"}[i/5000%2])
		w.Put(o.Key, o)
		if r := w.Rebuild(); len(r.Resources) != 1 {
			b.Fatal(r)
		}
	}
}

// BenchmarkNewRoute is one route that comes to 5,000 and goes, with the Gateway's count.
func BenchmarkNewRoute(b *testing.B) {
	w := large(b, 5000)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		o := numbered(9000, "cart")
		if i%2 == 1 {
			w.Put(o.Key, nil)
		} else {
			w.Put(o.Key, o)
		}
		if r := w.Rebuild(); len(r.Resources) != 1 || len(r.Statuses) != 2 {
			b.Fatal(r)
		}
	}
}

// BenchmarkListenerSet is one ListenerSet of 1,000 of a Gateway that changes.
func BenchmarkListenerSet(b *testing.B) {
	w := load(b, gatewayOf("web", "  allowedListeners: {namespaces: {from: All}}", "{name: http, port: 80, protocol: HTTP}"))
	set := func(i int, host string) {
		hostname := gatewayv1.Hostname(fmt.Sprintf("%s%d.example.com", host, i))
		o := &object.Object{Key: gatewayKey("ListenerSet", "shop", fmt.Sprint("s", i)),
			Body: &gatewayv1.ListenerSet{Spec: gatewayv1.ListenerSetSpec{
				ParentRef: gatewayv1.ParentGatewayReference{Name: "web"},
				Listeners: []gatewayv1.ListenerEntry{{Name: "a", Port: 80, Protocol: "HTTP", Hostname: &hostname}},
			}}}
		w.Put(o.Key, o)
	}
	for i := range 1000 {
		set(i, "a")
	}
	w.rebuild()
	b.ResetTimer()
	for i := range b.N {
		set(i%1000, []string{"b", "a"}[i/1000%2])
		if r := w.Rebuild(); len(r.Resources) != 1 {
			b.Fatal(len(r.Resources))
		}
	}
}

// BenchmarkRoutes is 1,000 routes that come at once.
func BenchmarkRoutes(b *testing.B) {
	for b.Loop() {
		large(b, 1000)
	}
}

// TestWorkOfAChange checks that a change touches only what refers to it, however many routes there are.
func TestWorkOfAChange(t *testing.T) {
	w := large(t, 2000)
	measure := func(f func()) float64 { return testing.AllocsPerRun(10, f) }
	i := 0
	if got := measure(func() {
		i++
		o := numbered(7, []gatewayv1.ObjectName{"gone", "cart"}[i%2])
		w.Put(o.Key, o)
		w.Rebuild()
	}); got > 300 {
		t.Errorf("a route that changes costs %v allocations", got)
	}
	for _, k := range []object.Key{{Kind: "Namespace", Name: "shop"}, {Kind: "Namespace", Name: "other"}, gatewayKey("ReferenceGrant",
		"shop", "x")} {
		if got := measure(func() {
			o := &object.Object{Key: k, Labels: map[string]string{"i": fmt.Sprint(i)}, Body: &corev1.Namespace{}}
			if k.Kind == "ReferenceGrant" {
				o.Body = &gatewayv1.ReferenceGrant{}
			}
			i++
			w.Put(k, o)
			w.Rebuild()
			w.Put(k, nil)
			w.Rebuild()
		}); got > 60 {
			t.Errorf("%s that nobody refers to costs %v allocations", k, got)
		}
	}
}
