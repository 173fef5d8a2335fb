package hcm_test

import (
	"slices"
	"testing"

	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/xds-server/internal/translate/hcm"
)

// A filter before it would see requests without a route, and see them twice.
func TestOnDemandFilterIsFirst(t *testing.T) {
	const name = "envoy.filters.http.on_demand"
	filters := func(onDemand bool) []*managerv3.HttpFilter {
		built, err := hcm.Build(hcm.Options{
			Role: hcm.SidecarOutbound, StatPrefix: "test", RouteName: "80", GRPCWeb: true, OnDemand: onDemand, Mesh: &meshv1alpha1.MeshConfig{},
		})
		if err != nil {
			t.Fatal(err)
		}
		manager := &managerv3.HttpConnectionManager{}
		if err := built.GetTypedConfig().UnmarshalTo(manager); err != nil {
			t.Fatal(err)
		}
		return manager.GetHttpFilters()
	}
	if slices.ContainsFunc(filters(false), func(f *managerv3.HttpFilter) bool { return f.GetName() == name }) {
		t.Error("the filter is there without being asked for")
	}
	first := filters(true)[0]
	config := &ondemandv3.OnDemand{}
	if err := first.GetTypedConfig().UnmarshalTo(config); err != nil || first.GetName() != name {
		t.Fatalf("the first filter is %s: %v", first.GetName(), err)
	}
	if config.GetOdcds().GetSource().GetAds() == nil || config.GetOdcds().GetTimeout().AsDuration() <= 0 {
		t.Errorf("clusters are asked for by %v", config.GetOdcds())
	}
}
