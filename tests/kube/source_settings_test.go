package kube

import (
	"fmt"
	"testing"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// meshSettings are the mesh-wide settings that an xds-server holds.
func meshSettings(t *testing.T, v *view) *meshv1alpha1.MeshConfig {
	t.Helper()
	out := &meshv1alpha1.MeshConfig{}
	if r := v.get("MeshConfig /default"); r != nil {
		if err := r.GetMeshConfig().GetSettings().UnmarshalTo(out); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestMeshConfigurationOfACluster(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	newMesh(t, s)
	settings := func(mesh string) {
		t.Helper()
		s.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: %s}, data: {mesh: %q}}", meshNamespace,
			mesh))
	}
	s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+meshNamespace+"}}")
	settings("connectTimeout: 3s")
	s.Apply(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: other, namespace: "+meshNamespace+
		"}, data: {mesh: 'connectTimeout: 9s'}}\n---"+shop)
	w := startWatcher(t, s.Kubeconfig, "--revision", "canary")
	v := w.subscribe()
	hasTimeout := func(want time.Duration) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if got := meshSettings(t, v).GetConnectTimeout().AsDuration(); got != want {
				return fmt.Errorf("connectTimeout is %s, want %s", got, want)
			}
			return nil
		})
	}

	t.Run("is read, changed while it runs, and gone", func(t *testing.T) {
		hasTimeout(3 * time.Second)
		settings("connectTimeout: 4s")
		hasTimeout(4 * time.Second)
		settings("connectTimeout: four")
		w.until("refused", func(st sourceState) bool { return st.Refused > 0 })
		hasTimeout(4 * time.Second)
		if err := s.Client(t).CoreV1().ConfigMaps(meshNamespace).Delete(t.Context(), "istio", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		hasTimeout(10 * time.Second)
		w.until("not refused", func(st sourceState) bool { return st.Refused == 0 })
	})
	t.Run("no other ConfigMap is read", func(t *testing.T) {
		if n := w.metric("source_kind_objects", `kind="ConfigMap"`); n != 0 {
			t.Errorf("%v ConfigMaps", n)
		}
	})
	t.Run("discoverySelectors leave namespaces out", func(t *testing.T) {
		settings("discoverySelectors: [{matchLabels: {mesh: yes-please}}]")
		v.lacks(cartService)
		v.lacks(cartRoute)
		s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {mesh: yes-please}}}")
		hasShop(t, v)
	})
	t.Run("objects of another revision are left out", func(t *testing.T) {
		rule := func(label string) {
			t.Helper()
			s.Apply(t, "{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: revised, namespace: shop, labels: {"+label+
				"}}, spec: {host: cart}}")
		}
		const key = "DestinationRule shop/revised"
		rule("istio.io/rev: canary")
		v.has(key, nil)
		rule("istio.io/rev: stable")
		v.lacks(key)
		rule("app: cart")
		v.has(key, func(r *configv1.Resource) bool { return r.GetIstioConfig().GetLabels()["app"] == "cart" })
	})
}
