package serve_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// onlyA is a Sidecar that lets the workloads with app=pod address only service A.
func onlyA() *configv1.Resource {
	return meshtest.Config(mesh.KindSidecar, "default", "only-a", &networking.Sidecar{
		WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"app": "pod"}},
		Egress:           []*networking.IstioEgressListener{{Hosts: []string{"default/" + hostA}}},
	})
}

func TestProxyChangesClass(t *testing.T) {
	r := start(t, append(basicMesh(), meshtest.Workload("default", "pod", "10.0.0.1"))...)
	c, other := r.delta("pod", "default"), r.delta("other", "default")
	c.connectAll()
	other.connectAll()
	r.acked("other")
	before := r.acked("pod").GetClass()

	r.edit(onlyA())
	clusters := c.expect(cds, "-80|"+hostB)
	if p := r.status("other"); p.GetAcked().GetSequence() != r.Sequence {
		t.Errorf("a proxy that the Sidecar does not select was touched: %v", p)
	}
	c.ack(clusters)
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesUnsubscribe: []string{"80|" + hostB}})
	testkit.Eventually(t, patience, func() error {
		for {
			select {
			case m := <-c.got: // the removal of the endpoints, if it came before their unsubscription
				c.ack(m)
				continue
			default:
			}
			break
		}
		if p := r.status("pod"); p.GetAcked().GetSequence() != r.Sequence {
			return fmt.Errorf("status %v", p)
		}
		return nil
	})
	if got := r.acked("pod").GetClass(); got == before {
		t.Error("the class is the same although a selector tests a label of the workload now")
	}

	// The workload's label changes, so that the Sidecar does not select it any more.
	r.edit(meshtest.Workload("default", "pod", "10.0.0.1", func(w *configv1.Workload) { w.Labels["app"] = "else" }))
	c.ack(c.expect(cds, "+80|"+hostB))
	r.acked("pod")

	// Without the Sidecar, no label is relevant, and the proxy is in the first class again.
	r.remove(onlyA())
	if got := r.acked("pod").GetClass(); got != before {
		t.Errorf("class %s, at first it was %s", got, before)
	}
}

// TestBusyProxyChangesClassAfterwards applies two revisions that reclassify a proxy in the middle of one of its
// requests. Neither Apply waits for the request, and the proxy ends up at the newest revision.
func TestBusyProxyChangesClassAfterwards(t *testing.T) {
	r := start(t, append(basicMesh(), meshtest.Workload("default", "pod", "10.0.0.1"))...)
	c, other := r.delta("pod", "default"), r.delta("other", "default")
	c.connectAll()
	other.connectAll()
	r.acked("pod")
	r.acked("other")
	release := sync.OnceFunc(r.ADS.Busy("pod"))
	defer release()
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		r.edit(onlyA())
		r.edit(meshtest.Workload("default", "pod", "10.0.0.1", func(w *configv1.Workload) { w.Labels["app"] = "else" }))
		r.edit(meshtest.Workload("default", "pod", "10.0.0.1"), meshtest.Endpoints("default", hostA, 80, "10.1.0.9"))
	}()
	select {
	case <-applied:
	case <-time.After(patience):
		t.Error("the revision waits for a busy stream")
		release()
		<-applied
	}
	other.expect(eds, "+80|"+hostA)
	release()
	for m := c.next(); ; m = c.next() {
		if c.ack(m); slices.Equal(describe(m), []string{"-80|" + hostB}) && m.GetTypeUrl() == cds {
			break
		}
	}
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesUnsubscribe: []string{"80|" + hostB}})
	testkit.Eventually(t, patience, func() error {
		for len(c.got) > 0 {
			c.ack(<-c.got)
		}
		if p := r.status("pod"); p.GetAcked().GetSequence() != r.Sequence {
			return fmt.Errorf("status %v", p)
		}
		return nil
	})
}

func TestClassesAreIsolated(t *testing.T) {
	secret := "secret.a"
	r := start(t, append(basicMesh(), meshtest.Service("a", secret, 80, meshtest.Visible("a")),
		meshtest.Endpoints("a", secret, 80, "10.9.0.1"))...)
	inside, outside := r.delta("in", "a"), r.delta("out", "b")
	for range 2 { // with cold and with warm caches
		inside.subscribe(eds, "80|"+secret)
		inside.ack(inside.expect(eds, "+80|"+secret))
		outside.subscribe(eds, "80|"+secret)
		outside.ack(outside.expect(eds, "-80|"+secret))
	}
	r.edit(meshtest.Endpoints("a", secret, 80, "10.9.0.2"))
	inside.ack(inside.expect(eds, "+80|"+secret))
	if got := r.acked("out"); typeStatus(got, eds).GetSent().GetSequence() != 1 {
		t.Errorf("another namespace heard of the change: %v", got)
	}
}

func TestProxyIsConfiguredByALaterRevision(t *testing.T) {
	r := start(t, meshtest.Mesh(&meshv1alpha1.MeshConfig{}))
	c := r.delta("pod", "default")
	c.subscribe(cds, "*")
	c.ack(c.expect(cds))
	c.subscribe(eds, "80|"+hostA)
	c.ack(c.expect(eds, "-80|"+hostA))
	r.acked("pod")
	r.edit(basicMesh()...)
	c.ack(c.expect(cds, "+80|"+hostA, "+80|"+hostB))
	c.ack(c.expect(eds, "+80|"+hostA))
	r.acked("pod")
}

func TestStreamOfAStalledClientEnds(t *testing.T) {
	r := start(t, basicMesh()...)
	c := r.delta("pod", "default")
	c.connectAll()
	r.acked("pod")
	// The watchdog does not end the stream of an idle client.
	for range 3 {
		r.clock.WaitFor(t, 2)
		r.clock.Advance(30 * time.Second)
	}
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.9"))
	c.ack(c.expect(eds, "+80|"+hostA))
	r.acked("pod")
}

func TestMetadataOutsideTheClassSharesTheClass(t *testing.T) {
	r := start(t, basicMesh()...)
	one := r.delta("one", "default")
	one.connectAll()
	class := r.acked("one").GetClass()
	two := r.delta("two", "default")
	meta, err := structpb.NewStruct(map[string]any{
		"PROXY_CONFIG": map[string]any{"concurrency": 7.0}, "NAME": "two", "LABELS": map[string]any{"untested": "x"}, "ISTIO_VERSION": "9.9.9",
	})
	if err != nil {
		t.Fatal(err)
	}
	two.node.Metadata, two.node.UserAgentName, two.node.Id = meta, "envoy", "sidecar~10.0.0.2~two.default~default.svc.cluster.local"
	two.node.Extensions = []*core.Extension{
		{Name: "envoy.filters.http.router"}, {Name: "envoy.filters.http.rbac"}, {Name: "envoy.filters.http.jwt_authn"},
		{Name: "envoy.filters.http.ext_authz"},
	}
	two.connectAll()
	if got := r.acked("two").GetClass(); got != class {
		t.Errorf("class %s, want %s", got, class)
	}
}
