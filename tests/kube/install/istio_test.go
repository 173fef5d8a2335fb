package install

import (
	"reflect"
	"testing"

	"fairlead.dev/tests/internal/binaries"
)

// TestIstiosOwnPackage installs Istio's own install package, from the module cache, in two revisions. The API server's
// namespace istio-system is there before.
func TestIstiosOwnPackage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.manifests = binaries.IstioManifests(t)
	r.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")
	before := contents(r.snapshot(t))
	// The demo profile has gateways, whose Pods a webhook of istiod would inject; there are no Pods here.
	profile := []string{"--set", "profile=demo"}
	out, said := r.install(t, profile...)
	says(t, out, "revision default is installed in namespace istio-system: ")
	says(t, said, "CustomResourceDefinitions: ", "base: ", "pilot: ", "egressGateways[istio-egressgateway]: ",
		"ingressGateways[istio-ingressgateway]: ")
	first := r.snapshot(t)
	for _, id := range []string{"Deployment istio-system/istiod", "CustomResourceDefinition /virtualservices.networking.istio.io",
		"Service istio-system/istio-ingressgateway"} {
		if first[id] == nil {
			t.Errorf("%s is not installed", id)
		}
	}
	r.proxy.watch(nil)
	r.install(t, profile...)
	if writes := r.proxy.seen(); len(writes) > 0 {
		t.Errorf("the second installation wrote %q", writes)
	}
	r.install(t, "--set", "profile=minimal", "--revision", "canary")
	r.does(t, 0, "uninstall", "--revision", "canary", "-y")
	r.install(t, profile...)
	if left := differing(contents(r.snapshot(t)), contents(first)); len(left) > 0 {
		t.Errorf("with a second revision that came and went it is not as before: %v", left)
	}
	r.purge(t)
	if left := contents(r.snapshot(t)); !reflect.DeepEqual(left, before) {
		t.Errorf("after uninstall --purge the cluster is not as before: %v", differing(left, before))
	}
}
