package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/tests/internal/kubeapi"
)

// sightings are when something was first seen, by name.
type sightings struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (s *sightings) see(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, seen := s.at[name]; !seen {
		s.at[name] = time.Now()
	}
}

// of waits for something.
func (s *sightings) of(t testing.TB, name string) (at time.Time) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if at = s.at[name]; at.IsZero() {
			return fmt.Errorf("%s is not seen", name)
		}
		return nil
	})
	return at
}

// gatewayHosts connects a gateway as an Envoy does that asks for its virtual hosts one by one, and sees which of them
// come and go.
func gatewayHosts(t testing.TB, w *watcher, address, node, account string) (come, gone *sightings) {
	t.Helper()
	come, gone = &sightings{at: map[string]time.Time{}}, &sightings{at: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream := testkit.Must(adstest.OpenDelta(ctx, w.dialADS(address, account), adstest.Node(node, nil)))(t)
	testkit.NoError(t, errors.Join(stream.Subscribe(resource.ClusterType, "*"), stream.Subscribe(resource.ListenerType, "*"),
		stream.Subscribe(resource.RouteType, "http.80"), stream.Subscribe(resource.VirtualHostType, "http.80")))
	go func() {
		_ = stream.Follow(func(m *discovery.DeltaDiscoveryResponse) error { // ends with the test
			for _, r := range m.GetResources() {
				for field := range bytes.FieldsFuncSeq(r.GetResource().GetValue(), func(r rune) bool {
					return r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
				}) {
					if bytes.HasSuffix(field, []byte(".example.com")) {
						come.see(string(field))
					}
				}
			}
			for _, name := range m.GetRemovedResources() {
				_, host, _ := strings.Cut(strings.TrimSuffix(name, ":80"), "/")
				gone.see(host)
			}
			return nil
		})
	}()
	return come, gone
}

// TestARouteIsOnItsWayAtOnce: from the API server's event about a new or removed route, with 1,000 others, to the
// response of the xds-server nothing waits.
func TestARouteIsOnItsWayAtOnce(t *testing.T) {
	const routes, times, most = 1000, 40, 15 * time.Millisecond
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "standard"))
	a := newAPI(t, s)
	s.Apply(t, edgeShop+"---"+edge)
	route := func(name string) string {
		return strings.Replace(httpRoute(name, "edge", "web"), "rules:", "hostnames: ["+name+".example.com], rules:", 1)
	}
	var crowd errgroup.Group
	for w := range 8 {
		crowd.Go(func() error {
			var text strings.Builder
			for i := w; i < routes; i += 8 {
				text.WriteString(route(fmt.Sprint("many-", i)))
			}
			objects, err := kubeapi.Decode([]byte(text.String()))
			return errors.Join(err, kubeapi.Apply(t.Context(), s.Config, objects...))
		})
	}
	testkit.NoError(t, crowd.Wait())
	s.Apply(t, "{apiVersion: v1, kind: Pod, metadata: {name: edge-1, namespace: shop, labels: "+
		"{gateway.networking.k8s.io/gateway-name: edge}}, spec: {serviceAccountName: edge, containers: [{name: a, image: a}]}}")
	a.setStatus(corev1.SchemeGroupVersion.WithResource("pods").Resource, "shop", "edge-1",
		`{"podIP":"10.9.0.1","podIPs":[{"ip":"10.9.0.1"}],"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}`)
	address := startXDSServer(t, a.watcher).String()
	come, gone := gatewayHosts(t, a.watcher, address, "router~10.9.0.1~edge-1.shop~shop.svc.cluster.local", "edge")
	come.of(t, fmt.Sprintf("many-%d.example.com", routes-1))
	a.has("gateways", "shop", "edge", fmt.Sprint("http: attached ", routes))
	a.quiet()

	events := testkit.Must(a.resource("httproutes", "shop").Watch(t.Context(), metav1.ListOptions{ResourceVersion: a.get("gateways", "shop",
		"edge").GetResourceVersion()}))(t)
	t.Cleanup(events.Stop)
	added, deleted := &sightings{at: map[string]time.Time{}}, &sightings{at: map[string]time.Time{}}
	go func() {
		for e := range events.ResultChan() {
			o, ok := e.Object.(metav1.Object)
			switch {
			case !ok:
			case e.Type == watch.Deleted:
				deleted.see(o.GetName())
			default:
				added.see(o.GetName())
			}
		}
	}()
	var delays, removals []time.Duration
	for i := range times {
		name := fmt.Sprint("new-", i)
		s.Apply(t, route(name))
		delays = append(delays, come.of(t, name+".example.com").Sub(added.of(t, name)))
	}
	for i := range times {
		name := fmt.Sprint("new-", i)
		testkit.NoError(t, a.resource("httproutes", "shop").Delete(t.Context(), name, metav1.DeleteOptions{}))
		removals = append(removals, gone.of(t, name+".example.com").Sub(deleted.of(t, name)))
	}
	for what, list := range map[string][]time.Duration{"new": delays, "removed": removals} {
		slices.Sort(list)
		t.Logf("a %s route is sent %s after its event, %s at most", what, list[times/2], list[times-1])
		if list[times/2] > most {
			t.Errorf("want %s", most)
		}
	}
}
