package install

import (
	"path/filepath"
	"slices"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// testNamedGateways: gateways alone of an IstioOperator with a name, as Istio's gen-eastwest-gateway.sh writes it, are
// an installation beside the control plane, with whose image and global values they are made.
func testNamedGateways(t *testing.T, r *rig) {
	old := r.manifests
	defer func() { r.manifests = old }()
	r.manifests = writePackage(t, map[string]string{
		"components.yaml": charts["components.yaml"] +
			"- {name: ingressGateways, list: true, chart: charts/gateway, root: gateways.x, flatten: true, " +
			"workload: {kind: Deployment, name: '${name}', container: proxy}}\n",
		"profiles/empty.yaml":       "{spec: {components: {base: {enabled: false}, pilot: {enabled: false}}}}",
		"charts/gateway/Chart.yaml": "{apiVersion: v2, name: gateway, version: 1.0.0, appVersion: 1.4.0}",
		"charts/gateway/templates/all.yaml": "{apiVersion: v1, kind: ConfigMap, " +
			"metadata: {name: {{ .Values.name }}, namespace: {{ .Release.Namespace }}}, data: {image: {{ .Values.hub }}/proxy, " +
			"cluster: {{ (.Values.global.multiCluster | default dict).clusterName | quote }}, network: {{ .Values.global.network | quote }}}}\n",
	})
	const gateways = "{profile: empty, components: {ingressGateways: [{name: eastwest, enabled: true}]}, values: {global: {network: n1}}}"
	named := filepath.Join(t.TempDir(), "eastwest.yaml")
	testkit.WriteFile(t, named, []byte("{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, metadata: {name: eastwest}, spec: "+
		gateways+"}"))

	r.install(t, "--set", "hub=example.org/own", "--set", "values.global.multiCluster.clusterName=east", "--set", "values.global.network=n2")
	before := r.snapshot(t)
	out, _ := r.install(t, "-f", named)
	says(t, out, "installation eastwest of revision default is installed in namespace mesh: 1 created")
	diff := changed(before, r.snapshot(t))
	if !slices.Equal(diff, []string{"+ConfigMap mesh/eastwest"}) {
		t.Errorf("changed: %v", diff)
	}
	data, _ := r.get(t, configMaps, "mesh", "eastwest").Object["data"].(map[string]any)
	if data["image"] != "example.org/own/proxy" || data["cluster"] != "east" || data["network"] != "n1" {
		t.Errorf("the gateway is made of %v", data)
	}
	// Each is changed by itself.
	r.install(t, "--set", "hub=example.org/own", "--set", "values.global.multiCluster.clusterName=east", "--set", "values.pilot.env.LEVEL=debug")
	r.get(t, configMaps, "mesh", "eastwest")
	r.does(t, 0, "diff", "-d", r.manifests, "-f", named)
	r.ready(t, "mesh", "server")
	out, _ = r.does(t, 0, "verify-install")
	says(t, out, "revision default in namespace mesh: 10 objects are there and ready",
		"installation eastwest of revision default in namespace mesh: 1 objects are there and ready")
	r.does(t, 0, "rollback", "-d", r.manifests, "-y", "--wait=false")
	r.get(t, configMaps, "mesh", "eastwest")
	with := r.snapshot(t)
	r.does(t, 0, "uninstall", "-d", r.manifests, "-f", named, "-y")
	if diff := changed(with, r.snapshot(t)); !slices.Equal(diff, []string{"-ConfigMap mesh/eastwest"}) {
		t.Errorf("changed: %v", diff)
	}

	// Gateways that were once the revision's own, as of earlier releases, stay that.
	r.purge(t)
	r.install(t, "-f", operator(t, gateways))
	r.install(t, "-f", named)
	if all := r.snapshot(t); all["Secret mesh/fairlead-installation-default.eastwest"] != nil || all["ConfigMap mesh/eastwest"] == nil {
		t.Error("gateways of the revision are another installation")
	}
}
