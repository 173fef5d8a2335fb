package install

import (
	"encoding/base64"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var deleteNow = metav1.DeleteOptions{}

// takeOver applies a document on the server's side, as another manager that takes everything over.
func (r *rig) takeOver(t *testing.T, manager, document string) {
	t.Helper()
	r.kubectl(t, document, "apply", "--server-side", "--force-conflicts", "--field-manager", manager)
}

func testPrune(t *testing.T, r *rig) {
	r.install(t, "--set", "values.pilot.env.EXTRA=x", "--set", "profile=full")
	before := r.snapshot(t)
	out, _ := r.install(t)
	says(t, out, "10 unchanged, 2 deleted")
	if diff := changed(before, r.snapshot(t)); !slices.Equal(diff, []string{"-ConfigMap mesh/server-extra", "-DaemonSet mesh/agent"}) {
		t.Errorf("changed: %v", diff)
	}

	for name, take := range map[string]func(){
		"argocd applies it": func() {
			r.takeOver(t, "argocd", "{apiVersion: v1, kind: ConfigMap, metadata: {name: server-extra, namespace: mesh}, data: {extra: theirs}}")
		},
		"it is of the Helm release other": func() {
			r.patch(t, configMaps, "mesh", "server-extra", "helm", `{"metadata":{"annotations":{"meta.helm.sh/release-name":"other"}}}`)
		},
		"Thing owner controls it": func() {
			r.patch(t, configMaps, "mesh", "server-extra", "thing-controller",
				`{"metadata":{"ownerReferences":[{"apiVersion":"example.com/v1","kind":"Thing","name":"owner","uid":"x","controller":true}]}}`)
		},
		"it was made again by another": func() {
			if err := r.Client(t).CoreV1().ConfigMaps("mesh").Delete(t.Context(), "server-extra", deleteNow); err != nil {
				t.Fatal(err)
			}
			r.Apply(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: server-extra, namespace: mesh}}")
			r.patch(t, configMaps, "mesh", "server-extra", "test", `{"metadata":{"managedFields":[{}]}}`)
		},
	} {
		r.install(t, "--set", "values.pilot.env.EXTRA=x")
		take()
		out, said := r.install(t)
		says(t, out, "10 unchanged\n")
		says(t, said, "ConfigMap mesh/server-extra is not deleted: "+name)
		r.get(t, configMaps, "mesh", "server-extra")
		// It is not the installation's any more: neither a later one nor an uninstall knows it.
		_, said = r.install(t)
		if strings.Contains(said, "server-extra") {
			t.Errorf("%s: the next installation says %q", name, said)
		}
		if err := r.Client(t).CoreV1().ConfigMaps("mesh").Delete(t.Context(), "server-extra", deleteNow); err != nil {
			t.Fatal(err)
		}
	}
}

func testDefinitionKept(t *testing.T, r *rig) {
	r.install(t)
	r.Apply(t, "{apiVersion: example.com/v1, kind: Thing, metadata: {name: mine, namespace: default}, spec: {size: 7}}")
	with := r.manifests
	r.manifests = writePackage(t, map[string]string{
		"charts/base/templates/all.yaml": "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: reader, namespace: {{ .Release.Namespace " +
			"}}}\n",
		"charts/server/templates/all.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: server, namespace: {{ .Release.Namespace }}}\n",
	})
	defer func() { r.manifests = with }()
	// The Thing of the installation goes; the user's would go with the definition.
	_, said := r.install(t)
	says(t, said, "CustomResourceDefinition things.example.com is not deleted: objects of its kind would be lost, such as Thing "+
		"default/mine; there are 1")
	r.get(t, things, "default", "mine")
	_, said = r.does(t, 0, "uninstall", "--revision", "default", "-y")
	says(t, said, "keep   CustomResourceDefinition things.example.com: objects of its kind would be lost, such as Thing default/mine; there "+
		"are 1", "keep   Namespace mesh: what else is in it would be lost")
	r.get(t, things, "default", "mine")
	// What is kept is known: an uninstall with --purge, which each part ends with, removes it.
	out, _ := r.does(t, 0, "verify-install")
	says(t, out, "revision default in namespace mesh: 2 objects are left of an uninstall")
}

// testDataKept: a volume is lost by --purge alone.
func testDataKept(t *testing.T, r *rig) {
	r.install(t, "--set", "values.global.logAsJson=true")
	_, said := r.install(t)
	says(t, said, "PersistentVolumeClaim mesh/root is not deleted: its data would be lost")
	_, said = r.does(t, 0, "uninstall", "--revision", "default", "-y")
	says(t, said, "keep   PersistentVolumeClaim mesh/root: its data would be lost")
	claims := resource("", "v1", "persistentvolumeclaims")
	r.get(t, claims, "mesh", "root")
	_, said = r.does(t, 1, "uninstall", "--purge", "--with-contents", "-y", "--timeout", "700ms") // nobody removes its finalizer here
	says(t, said, "PersistentVolumeClaim mesh/root is still being deleted; run this again, or raise --timeout")
	r.patch(t, claims, "mesh", "root", "test", `{"metadata":{"finalizers":null}}`)
}

func testConflict(t *testing.T, r *rig) {
	r.install(t)
	r.patch(t, configMaps, "mesh", "server", "alice", `{"data":{"level":"warning"}}`)
	r.patch(t, deployments, "mesh", "server", "scaler", `{"spec":{"replicas":7}}`)
	before := r.snapshot(t)
	_, said := r.does(t, 1, r.installing()...)
	says(t, said, "nothing was changed: 2 fields have other values, which others manage:\n",
		"ConfigMap mesh/server: .data.level is managed by alice\n", "Deployment mesh/server: .spec.replicas is managed by scaler\n",
		"take them over with --force")
	out, _ := r.does(t, 4, "diff", "-d", r.manifests)
	says(t, out, "ConfigMap mesh/server\n    .data.level is managed by alice: only install --force takes it over\n",
		"-    data.level: warning\n", "+    data.level: info\n", "    .spec.replicas is managed by scaler: only install --force takes it over\n")
	out, _ = r.does(t, 1, "verify-install", "-d", r.manifests, "--set", "profile=default")
	says(t, out, "ConfigMap mesh/server: it differs in data.level (.data.level is managed by alice); fairlead diff shows each\n")
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	// The same value is no conflict.
	r.install(t, "--set", "values.pilot.env.LEVEL=warning", "--set", "components.pilot.k8s.replicaCount=7")
	out, _ = r.install(t, "--force")
	says(t, out, "2 configured")
	if level := r.get(t, configMaps, "mesh", "server").Object["data"]; !reflect.DeepEqual(level,
		map[string]any{"level": "info", "hub": "example.com/mesh"}) {
		t.Errorf("data: %v", level)
	}
}

func testYield(t *testing.T, r *rig) {
	scaled := []string{"--set", "values.pilot.env.SCALED=yes"}
	r.install(t, scaled...)
	r.patch(t, deployments, "mesh", "server", "kube-controller-manager", `{"spec":{"replicas":5}}`, "scale")
	hook := resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")
	u := r.get(t, hook, "", "server-validator")
	webhooks := u.Object["webhooks"].([]any)
	one := webhooks[0].(map[string]any)
	one["failurePolicy"] = "Fail"
	one["clientConfig"].(map[string]any)["caBundle"] = base64.StdEncoding.EncodeToString(r.Config.CAData)
	if _, err := r.dynamic.Resource(hook).Update(t.Context(), u, metav1.UpdateOptions{FieldManager: "control-plane"}); err != nil {
		t.Fatal(err)
	}
	before := r.snapshot(t)
	out, _ := r.install(t, scaled...)
	says(t, out, "11 unchanged")
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	// Without the autoscaler, which goes first, the replicas are the installation's again.
	r.proxy.watch(nil)
	out, _ = r.install(t)
	says(t, out, "1 configured", "1 deleted")
	writes := r.proxy.seen()
	gone := slices.IndexFunc(writes, func(w string) bool { return strings.HasPrefix(w, "DELETE /apis/autoscaling/") })
	if set := slices.Index(writes, "PATCH /apis/apps/v1/namespaces/mesh/deployments/server"); gone < 0 || set < gone {
		t.Errorf("%q", writes)
	}
	if n := r.get(t, deployments, "mesh", "server").Object["spec"].(map[string]any)["replicas"]; n != int64(2) {
		t.Errorf("%v replicas", n)
	}
	// Those that another's autoscaler has set are not.
	r.patch(t, deployments, "mesh", "server", "kube-controller-manager", `{"spec":{"replicas":5}}`, "scale")
	r.Apply(t, "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: theirs, namespace: mesh}, spec: {maxReplicas: "+
		"9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: server}}}")
	_, said := r.does(t, 1, r.installing()...)
	says(t, said, "Deployment mesh/server: .spec.replicas is managed by kube-controller-manager (scale)")
	if err := r.Client(t).AutoscalingV2().HorizontalPodAutoscalers("mesh").Delete(t.Context(), "theirs", deleteNow); err != nil {
		t.Fatal(err)
	}
}

func testRevisions(t *testing.T, r *rig) {
	r.install(t, "--set", "values.pilot.env.EXTRA=x")
	out, _ := r.install(t, "--revision", "canary", "--set", "values.pilot.env.EXTRA=x")
	says(t, out, "revision canary is installed in namespace mesh", "8 created, 3 unchanged")
	before := r.snapshot(t)
	r.install(t, "--revision", "canary")
	if diff := changed(before, r.snapshot(t)); !slices.Equal(diff, []string{"-ConfigMap mesh/server-canary-extra"}) {
		t.Errorf("changed: %v", diff)
	}
	before = r.snapshot(t)
	out, said := r.does(t, 0, "uninstall", "--revision", "canary", "-y")
	says(t, out, "uninstalled")
	says(t, said, "keep   CustomResourceDefinition things.example.com: revision default in mesh has it too",
		"delete Deployment mesh/server-canary\n")
	for _, id := range changed(before, r.snapshot(t)) {
		if !strings.HasPrefix(id, "-") || !strings.Contains(id, "-canary") {
			t.Errorf("changed: %s", id)
		}
	}
	out, _ = r.does(t, 0, "uninstall", "--revision", "default", "-y", "--dry-run")
	says(t, out, "delete CustomResourceDefinition things.example.com\n")
	_, said = r.does(t, 1, r.installing("-i", "elsewhere")...)
	says(t, said, "revision default is installed in namespace mesh")
}
