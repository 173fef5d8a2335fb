package route

import (
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// routesWithTimeout is a route with a timeout, after its deadline route.
func routesWithTimeout(name string, timeout time.Duration) []*routev3.Route {
	r := defaultRoute("cluster", name, nil, nil)
	r.Name = name
	action := &routev3.RouteAction{ClusterSpecifier: r.GetRoute().GetClusterSpecifier()}
	withTimeout(action, durationpb.New(timeout))
	r.Action = &routev3.Route_Route{Route: action}
	if d := deadlineRoute(r); d != nil {
		return []*routev3.Route{d, r}
	}
	return []*routev3.Route{r}
}

// The test changes routes as an EnvoyFilter does: it finds one route for each of the user's.
func TestDeadlineRoutesFollowPatchedTimeouts(t *testing.T) {
	host := &routev3.VirtualHost{Routes: append(routesWithTimeout("limited", time.Second), routesWithTimeout("free", 0)...)}
	host.Routes = append(host.Routes, routesWithTimeout("own", 0)...)
	if len(host.GetRoutes()) != 4 {
		t.Fatalf("%d routes, want one more than three", len(host.GetRoutes()))
	}
	before := proto.CloneOf(host)
	hosts := []*routev3.VirtualHost{host}
	done := WithoutDeadlines(hosts)
	if len(host.GetRoutes()) != 3 {
		t.Fatalf("an EnvoyFilter would find %v", host.GetRoutes())
	}
	done(hosts)
	if !proto.Equal(host, before) {
		t.Fatalf("unchanged routes became %v", host)
	}

	done = WithoutDeadlines(hosts)
	own := &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: durationpb.New(time.Minute)}
	host.Routes[0].GetRoute().Timeout = durationpb.New(0)
	host.Routes[1].GetRoute().Timeout = durationpb.New(2 * time.Second)
	host.Routes[2].GetRoute().MaxStreamDuration = own
	added := &routev3.Route{Name: "added", Match: anyPath(),
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{Timeout: durationpb.New(time.Second)}}}
	host.Routes = append(host.Routes, added)
	done(hosts)
	want := append(routesWithTimeout("limited", 0), routesWithTimeout("free", 2*time.Second)...)
	want = append(want, routesWithTimeout("own", 0)...)
	want[len(want)-1].GetRoute().MaxStreamDuration = own
	want = append(want, added)
	if got := (&routev3.VirtualHost{Routes: want}); !proto.Equal(host, got) {
		t.Errorf("got %v, want %v", host, got)
	}
}
