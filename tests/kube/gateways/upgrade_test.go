package gateways

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// TestAnUpgradeFromThePreviousRelease: `fairlead install` of this release over that of the previous one, without a
// conflict, leaves the Gateway API's definitions and objects and deploys the Gateways that are there; that of the
// previous one takes fairlead-gateways away, and leaves what it has made. PREVIOUS_BIN has the programs of `make skew`.
func TestAnUpgradeFromThePreviousRelease(t *testing.T) {
	t.Parallel()
	previous := os.Getenv("PREVIOUS_BIN")
	if previous == "" {
		t.Skip("PREVIOUS_BIN names no directory with the programs of the previous release: run `make skew`")
	}
	r := &rig{Server: kubeapi.Start(t, kubeapi.Options{Controllers: []string{"namespace-controller"}}), t: t}
	install := func(program string) {
		t.Helper()
		process.MustDo(t, exec.CommandContext(t.Context(), program, "install", "-y", "--wait=false", "--set", "profile=minimal", //nolint:gosec // under test
			"--kubeconfig", r.Kubeconfig))
	}
	older, newer := filepath.Join(previous, "fairlead"), binaries.Built(t, "fairlead")
	install(older)
	definitions := []string{"gatewayclasses.gateway.networking.k8s.io", "gateways.gateway.networking.k8s.io"}
	r.Established(t, definitions...)
	r.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+apart+"}}\n---\n{apiVersion: gateway.networking.k8s.io/v1, "+
		"kind: GatewayClass, metadata: {name: istio}, spec: {controllerName: istio.io/gateway-controller}}\n---\n"+gateway(apart, "web", "", ""))

	install(newer)
	r.prepare()
	before := r.get("Gateway", apart, "web").GetUID()
	d := r.start()
	r.has(apart, "web-istio", standard...)
	if n := d.metric(t, "fairlead_gateways_watch_failures_total"); n != 0 {
		t.Errorf("with the definitions of the previous release %v watches have failed", n)
	}
	testkit.NoError(t, d.Stop(patience))
	install(newer)

	install(older)
	r.has(apart, "web-istio", standard...)
	if now := r.get("Gateway", apart, "web"); now == nil || now.GetUID() != before {
		t.Errorf("the Gateway is %v", now)
	}
	for _, name := range []string{"gateways", "ca"} {
		_, err := r.Client(t).AppsV1().Deployments(system).Get(t.Context(), name, metav1.GetOptions{})
		if there := err == nil; there != (name == "ca") {
			t.Errorf("after a downgrade Deployment %s is there: %v (%v)", name, there, err)
		}
	}
}
