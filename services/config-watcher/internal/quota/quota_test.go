package quota

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// route is a VirtualService with so many empty matches.
func route(namespace, name string, matches int) *object.Object {
	vs := &networking.VirtualService{Hosts: []string{"a"},
		Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "a"}}}}}}
	for range matches {
		vs.Http[0].Match = append(vs.Http[0].Match, &networking.HTTPMatchRequest{})
	}
	return &object.Object{Key: object.Key{Group: "networking.istio.io", Kind: "VirtualService", Namespace: namespace, Name: name}, Body: vs}
}

func table(limit int64) (*Table, *testkit.Clock) {
	c := testkit.NewClock(time.Now())
	return New(limit, func() []string { return []string{"istio-system"} }, c), c
}

func inForce(t *Table, objects ...*object.Object) {
	for _, o := range objects {
		t.Take([]normalise.Change{{Key: o.Key, Object: o}})
	}
}

func TestANamespaceHasALimit(t *testing.T) {
	one := Cost(route("a", "x", 1000))
	limit := 3*one + one/2
	q, clock := table(limit)
	check := func(reserve bool, objects ...*object.Object) string {
		return q.Check(reserve, objects...).Error()
	}
	inForce(q, route("a", "1", 1000), route("a", "2", 1000))
	if got := check(false, route("a", "3", 1000)); got != "" {
		t.Errorf("the third: %s", got)
	}
	// What is on its way counts, whoever asks next, and two that come at once.
	if got := check(false, route("a", "3", 1000), route("a", "4", 1000)); !strings.Contains(got, "VirtualService a/4") ||
		!strings.Contains(got, "--max-namespace-memory") {
		t.Errorf("two at once: %q", got)
	}
	if got := check(true, route("a", "3", 1000)); got != "" {
		t.Errorf("the third: %s", got)
	}
	if got := check(true, route("a", "3", 1000)); got != "" {
		t.Errorf("the third again: %s", got)
	}
	if got := check(true, route("a", "4", 1000)); got == "" {
		t.Error("the fourth was let in beside one that is on its way")
	}
	clock.Advance(reserved + time.Second) // it has not arrived
	if got := check(true, route("a", "4", 1000)); got != "" {
		t.Errorf("instead of one that never came: %s", got)
	}
	inForce(q, route("a", "3", 1000), route("a", "4", 1000)) // as over an API server without the webhook
	for name, o := range map[string]*object.Object{"smaller": route("a", "1", 10), "as large": route("a", "1", 1000)} {
		if got := check(false, o); got != "" {
			t.Errorf("an object that is %s, in a namespace over the limit: %s", name, got)
		}
	}
	if got := check(false, route("a", "1", 1001)); got == "" {
		t.Error("an object grows in a namespace over the limit")
	}
	// Others have their own; administrators have none.
	for _, ns := range []string{"b", "istio-system"} {
		if got := check(false, route(ns, "1", 3000)); got != "" {
			t.Errorf("namespace %s: %s", ns, got)
		}
	}
	if got := check(false, route("istio-system", "1", 100_000)); got != "" {
		t.Errorf("the administrators: %s", got)
	}
	q.Take([]normalise.Change{{Key: route("a", "2", 0).Key}, {Key: route("a", "3", 0).Key}})
	if got := check(false, route("a", "5", 1000)); got != "" {
		t.Errorf("after two were deleted: %s", got)
	}
	for _, n := range []string{"1", "4"} {
		q.Take([]normalise.Change{{Key: route("a", n, 0).Key}})
	}
	if len(q.namespaces) != 0 {
		t.Errorf("%d namespaces without objects are kept", len(q.namespaces))
	}
	if got := check(true, &object.Object{Key: object.Key{Kind: "Service", Namespace: "a", Name: "s"}}); got != "" || len(q.namespaces) != 0 {
		t.Errorf("a Service: %q, %d namespaces", got, len(q.namespaces))
	}
}

func TestWithoutALimitNothingIsRefused(t *testing.T) {
	q, _ := table(0)
	if got := q.Check(true, route("a", "1", 100_000)); len(got) > 0 {
		t.Error(got)
	}
	if got := (*Table)(nil).Check(true, route("a", "1", 1)); len(got) > 0 {
		t.Error(got)
	}
}

// The estimate is not below what the decoded object alone takes, whether it has many small values or long texts.
func TestCostIsNotBelowWhatIsTaken(t *testing.T) {
	long := route("a", "long", 0)
	for i := range 100 {
		long.Body.(*networking.VirtualService).Hosts = append(long.Body.(*networking.VirtualService).Hosts,
			strings.Repeat("a", 10_000)+fmt.Sprint(i))
	}
	for name, make := range map[string]func() *object.Object{
		"dense": func() *object.Object { return route("a", "dense", 190_000) },
		"usual": func() *object.Object {
			o := route("a", "usual", 0)
			vs := o.Body.(*networking.VirtualService)
			for i := range 20_000 {
				vs.Http = append(vs.Http, &networking.HTTPRoute{
					Match: []*networking.HTTPMatchRequest{
						{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: fmt.Sprintf("/path/%d", i)}}}},
					Route: []*networking.HTTPRouteDestination{
						{Destination: &networking.Destination{Host: fmt.Sprintf("server-%d.apps.svc.cluster.local", i)}}},
				})
			}
			return o
		},
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		o := make()
		runtime.GC()
		runtime.ReadMemStats(&after)
		taken := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("%s: %d MiB taken, estimated %d", name, taken>>20, Cost(o)>>20)
		if cost := Cost(o); cost < taken || cost > 8*taken {
			t.Errorf("%s: taken %d bytes, estimated %d", name, taken, cost)
		}
		runtime.KeepAlive(o)
	}
	if cost := Cost(long); cost < 3_000_000 {
		t.Errorf("a million bytes of text are estimated at %d", cost)
	}
}

// TestRoutesOfTheGatewayAPICost: they count with their size, as a VirtualService of the same rules does.
func TestRoutesOfTheGatewayAPICost(t *testing.T) {
	httpRoute := func(matches int) *object.Object {
		rule := gatewayv1.HTTPRouteRule{Matches: make([]gatewayv1.HTTPRouteMatch, matches)}
		return &object.Object{Key: object.Key{Group: "gateway.networking.k8s.io", Kind: "HTTPRoute", Namespace: "a", Name: "x"},
			Body: &gatewayv1.HTTPRoute{Spec: gatewayv1.HTTPRouteSpec{Rules: []gatewayv1.HTTPRouteRule{rule}}}}
	}
	less, more := Cost(httpRoute(10)), Cost(httpRoute(1010))
	if want := Cost(route("a", "x", 1010)) - Cost(route("a", "x", 10)); more-less < want/2 || more-less > 2*want {
		t.Errorf("1,000 matches cost %d, those of a VirtualService %d", more-less, want)
	}
	q, _ := table(more + less/2)
	inForce(q, httpRoute(1010))
	other := httpRoute(10)
	other.Key.Name = "y"
	if got := q.Check(false, other).Error(); !strings.Contains(got, "HTTPRoute a/y") {
		t.Errorf("a second route: %q", got)
	}
}
