package gateways

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// TestAnInstallationGetsGatewaysAndLosesThem: `fairlead install` over an installation of before fairlead-gateways,
// which also brought the Gateway API's definitions, leaves these with their objects, and deploys the Gateways that are
// there, without a conflict. Without the component it takes fairlead-gateways with its rights away, and leaves what
// that has made.
func TestAnInstallationGetsGatewaysAndLosesThem(t *testing.T) {
	t.Parallel()
	r := &rig{Server: kubeapi.Start(t, kubeapi.Options{Controllers: []string{"namespace-controller"}}), t: t}
	install := func(args ...string) {
		t.Helper()
		r.fairlead(append([]string{"install", "-y", "--wait=false", "--set", "profile=minimal", "--kubeconfig", r.Kubeconfig}, args...)...)
	}
	before := []string{"--set", "components.gatewayDeployments.enabled=false", "--set", "values.base.enableGatewayAPICRDs=true"}
	install(before...)
	r.Established(t, "gatewayclasses.gateway.networking.k8s.io", "gateways.gateway.networking.k8s.io")
	r.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+apart+"}}\n---\n{apiVersion: gateway.networking.k8s.io/v1, "+
		"kind: GatewayClass, metadata: {name: istio}, spec: {controllerName: istio.io/gateway-controller}}\n---\n"+gateway(apart, "web", "", ""))

	install()
	r.prepare()
	d := r.start()
	r.has(apart, "web-istio", standard...)
	if n := d.metric(t, "fairlead_gateways_watch_failures_total"); n != 0 {
		t.Errorf("%v watches have failed", n)
	}
	testkit.NoError(t, d.Stop(patience))

	install(before...)
	r.has(apart, "web-istio", standard...)
	if r.get("Gateway", apart, "web") == nil {
		t.Error("the Gateway is gone")
	}
	api := r.Client(t)
	for what, get := range map[string]func() error{
		"Deployment": func() error {
			_, err := api.AppsV1().Deployments(system).Get(t.Context(), "gateways", metav1.GetOptions{})
			return err
		},
		"ServiceAccount": func() error {
			_, err := api.CoreV1().ServiceAccounts(system).Get(t.Context(), "gateways", metav1.GetOptions{})
			return err
		},
		"ClusterRoleBinding": func() error {
			_, err := api.RbacV1().ClusterRoleBindings().Get(t.Context(), "fairlead-gateways", metav1.GetOptions{})
			return err
		},
		"ValidatingAdmissionPolicyBinding": func() error {
			_, err := api.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Get(t.Context(), "fairlead-gateways", metav1.GetOptions{})
			return err
		},
	} {
		if err := get(); !apierrors.IsNotFound(err) {
			t.Errorf("%s of fairlead-gateways: %v", what, err)
		}
	}
}
