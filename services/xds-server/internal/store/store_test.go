package store_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/store"
)

func put(t *testing.T, s *store.Store, name, stat string) *store.Blob {
	t.Helper()
	b, err := s.Put(resource.ClusterType, name, &cluster.Cluster{
		Name: name, AltStatName: stat, ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEqualContentIsHeldOnce(t *testing.T) {
	s := store.New()
	a, again, other, renamed := put(t, s, "a", "x"), put(t, s, "a", "x"), put(t, s, "a", "y"), put(t, s, "b", "x")
	if a != again {
		t.Error("equal content is held twice")
	}
	if a == other || a.Version() == other.Version() {
		t.Error("different content has one version")
	}
	if a == renamed || a.Hash() == renamed.Hash() {
		t.Error("different names are one resource")
	}
	if n, bytes := s.Usage(); n != 3 || bytes != int64(a.Size()+other.Size()+renamed.Size()) {
		t.Errorf("%d resources, %d bytes", n, bytes)
	}
	if again.Version() != put(t, store.New(), "a", "x").Version() {
		t.Error("two stores disagree on a version")
	}
	m := &cluster.Cluster{}
	if err := proto.Unmarshal(a.Resource.GetResource().GetValue(), m); err != nil || m.GetAltStatName() != "x" || a.Name() != "a" {
		t.Errorf("holds %v, %v", m, err)
	}
	if a.EndpointsName != "a" {
		t.Errorf("endpoints %q", a.EndpointsName)
	}
}

func TestUnusedBytesAreFreed(t *testing.T) {
	s := store.New()
	kept := put(t, s, "kept", "x")
	for i := range 1000 {
		put(t, s, fmt.Sprint(i), "x")
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		runtime.GC()
		if n, bytes := s.Usage(); n != 1 || bytes != int64(kept.Size()) {
			return fmt.Errorf("%d resources, %d bytes", n, bytes)
		}
		return nil
	})
	if put(t, s, "kept", "x") != kept {
		t.Error("what is in use was dropped")
	}
}

func TestFieldsAreTheResource(t *testing.T) {
	for _, stat := range []string{"x", strings.Repeat("long", 10_000)} {
		b := put(t, store.New(), "a", stat)
		delta, world := &discovery.DeltaDiscoveryResponse{}, &discovery.DiscoveryResponse{}
		if err := errors.Join(proto.Unmarshal(b.DeltaField().ReadOnlyData(), delta),
			proto.Unmarshal(b.SotwField().ReadOnlyData(), world)); err != nil {
			t.Fatal(err)
		}
		if len(delta.GetResources()) != 1 || !proto.Equal(delta.GetResources()[0], b.Resource) {
			t.Errorf("the field of a delta response is %v", delta)
		}
		if len(world.GetResources()) != 1 || !proto.Equal(world.GetResources()[0], b.Resource.GetResource()) {
			t.Errorf("the field of a state-of-the-world response is %v", world)
		}
	}
}

func TestRouteConfigurationsTellOfVirtualHosts(t *testing.T) {
	for want, rc := range map[bool]*route.RouteConfiguration{true: {Name: "a", Vhds: &route.Vhds{}}, false: {Name: "a"}} {
		b, err := store.New().Put(resource.RouteType, "a", rc)
		if err != nil || b.VirtualHosts != want {
			t.Errorf("%v: %v %v", rc, b.VirtualHosts, err)
		}
	}
}
