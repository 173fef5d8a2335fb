package install

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestOperator runs one operator with an API server. Each part begins and ends with a cluster in which nothing is
// installed.
func TestOperator(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.does(t, 0, "operator", "init", "--operatorNamespace", "ops", "--watchedNamespaces", "mesh", "--wait=false")
	r.startOperator(t, r.kubeconfig)
	r.parts(t, []part{
		{"an IstioOperator is installed, and its deletion uninstalls it", testOperatorInstalls},
		{"what others change or delete is made again", testOperatorRepairs},
		{"an annotated resource is left alone, and the other revisions are not", testOperatorIgnores},
		{"a bad resource says which field, and changes nothing", testOperatorBadResource},
		{"a revision has one resource, and a resource one revision", testOperatorClaims},
		{"fields of others are a conflict that is named", testOperatorConflict},
		{"an installation of the command line is taken over without a write to a workload", testOperatorAdopts},
		{"a resource that is ignored and deleted leaves its installation to the command line", testOperatorReleases},
		{"the resource decides over a rollback, which says how", testOperatorRollback},
	})
}

func testOperatorInstalls(t *testing.T, r *rig) {
	r.ask(t, "main", env())
	r.becomes(t, "main", "RECONCILING", "Deployment mesh/server", `"Pilot":{"status":"RECONCILING","version":"1.4.0"}`,
		`"Base":{"status":"HEALTHY","version":"1.4.0"}`)
	if _, err := r.Client(t).AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "server-validator",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the webhook is there before the Deployment is ready: %v", err)
	}
	r.healthy(t, "main", "server")
	live := r.get(t, operators, "mesh", "main")
	if !slices.Contains(live.GetFinalizers(), "istio-finalizer.install.istio.io") {
		t.Errorf("finalizers %v", live.GetFinalizers())
	}
	out, _ := r.does(t, 0, "verify-install")
	says(t, out, "default")
	// A change of the resource is applied; while it is waited for, a newer one overtakes it.
	r.ask(t, "main", map[string]any{"hub": "example.com/broken"})
	r.becomes(t, "main", "RECONCILING", "Deployment mesh/server", `"type":"Ready"`, `"reason":"Reconciling"`)
	remove := r.unpullable(t)
	r.becomes(t, "main", "RECONCILING",
		"Pod mesh/server-unpullable, container main: ErrImagePull: no such image; check hub, tag and imagePullSecrets")
	remove()
	r.ask(t, "main", map[string]any{"hub": "example.com/new"})
	eventually(t, func() error {
		if text := fmt.Sprint(r.get(t, deployments, "mesh", "server").Object["spec"]); !strings.Contains(text, "example.com/new/") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	r.healthy(t, "main", "server")
	// Readiness is told without a change of the specification.
	r.patch(t, deployments, "mesh", "server", "kube-controller-manager", `{"status":{"availableReplicas":0,"readyReplicas":0}}`, "status")
	r.becomes(t, "main", "ERROR", "Deployment mesh/server is not ready: 0 of 2 Pods are ready", `"status":"ERROR","version":"1.4.0"`)
	r.healthy(t, "main", "server")
	r.becomes(t, "main", "HEALTHY", `"message":"everything is installed and ready"`, `"status":"True","type":"Ready"`)
	eventually(t, func() error {
		list, err := r.Client(t).CoreV1().Events("mesh").List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.kind=IstioOperator,involvedObject.name=main"})
		if err != nil {
			return err
		}
		told := map[string]string{}
		for _, e := range list.Items {
			told[e.Type+" "+e.Reason] = e.Message
		}
		if !strings.Contains(told["Warning Error"], "0 of 2 Pods are ready") || told["Normal Healthy"] == "" || told["Normal Reconciling"] == "" {
			return fmt.Errorf("events %q", told)
		}
		return nil
	})
	r.withdraw(t, "main")
	if _, err := r.Client(t).AppsV1().Deployments("mesh").Get(t.Context(), "server", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Deployment is still there: %v", err)
	}
}

// unpullable makes a Pod of Deployment server whose image cannot be pulled, until the function that it returns is
// called.
func (r *rig) unpullable(t *testing.T) (remove func()) {
	t.Helper()
	selector, _, _ := unstructured.NestedStringMap(r.get(t, deployments, "mesh", "server").Object, "spec", "selector", "matchLabels")
	pods := r.Client(t).CoreV1().Pods("mesh")
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "server-unpullable", Labels: selector},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "x"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: waiting}}
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return func() {
		now := int64(0) // no kubelet ends it
		if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Error(err)
		}
	}
}

func testOperatorRepairs(t *testing.T, r *rig) {
	r.ask(t, "main", env())
	r.healthy(t, "main", "server")
	eventually(t, func() error { // until the watches have begun, a repair may take until the next comparison
		err := r.dynamic.Resource(services).Namespace("mesh").Delete(t.Context(), "server", metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	eventually(t, func() error {
		_, err := r.dynamic.Resource(services).Namespace("mesh").Get(t.Context(), "server", metav1.GetOptions{})
		return err
	})
	// A label, a value, and a label of the user's.
	r.patch(t, configMaps, "mesh", "server", "kubectl-edit",
		`{"data":{"level":"trace"},"metadata":{"labels":{"mine":"stays","install.fairlead.dev/component":"other"}}}`)
	r.level(t, "server", "info")
	if got := r.get(t, configMaps, "mesh", "server").GetLabels()["install.fairlead.dev/component"]; got != "pilot" {
		t.Errorf("the label is %q", got)
	}
	if got := r.get(t, configMaps, "mesh", "server").GetLabels()["mine"]; got != "stays" {
		t.Errorf("the user's label is %q", got)
	}
	// The user's own autoscaler decides the replicas; the image is the installation's.
	r.Apply(t, "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: theirs, namespace: mesh}, spec: {maxReplicas: "+
		"9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: server}}}")
	r.patch(t, deployments, "mesh", "server", "kube-controller-manager", `{"spec":{"replicas":5}}`, "scale")
	r.patch(t, deployments, "mesh", "server", "kubectl-edit",
		`{"spec":{"template":{"spec":{"dnsPolicy":"Default"}}},"metadata":{"labels":{"install.fairlead.dev/component":null}}}`)
	eventually(t, func() error {
		u := r.get(t, deployments, "mesh", "server")
		replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
		if replicas != 5 || u.GetLabels()["install.fairlead.dev/component"] != "pilot" {
			return fmt.Errorf("%d replicas, labels %v", replicas, u.GetLabels())
		}
		return nil
	})
	r.healthy(t, "main", "server")
	r.withdraw(t, "main")
	if err := r.Client(t).AutoscalingV2().HorizontalPodAutoscalers("mesh").Delete(t.Context(), "theirs", deleteNow); err != nil {
		t.Fatal(err)
	}
}

func testOperatorIgnores(t *testing.T, r *rig) {
	r.ask(t, "main", env())
	r.healthy(t, "main", "server")
	r.patch(t, operators, "mesh", "main", "kubectl",
		`{"metadata":{"annotations":{"install.istio.io/ignoreReconcile":"true"}},"spec":{"values":{"pilot":{"env":{"LEVEL":"debug"}}}}}`)
	r.patch(t, configMaps, "mesh", "server", "kubectl-edit", `{"data":{"level":"mine"}}`)
	// What comes afterwards is done; so the annotated resource was looked at before.
	r.ask(t, "canary", with(env("LEVEL", "warn"), "canary"))
	r.healthy(t, "canary", "server-canary")
	r.patch(t, configMaps, "mesh", "server-canary", "kubectl-edit", `{"data":{"level":"mine"}}`)
	r.level(t, "server-canary", "warn")
	r.level(t, "server", "mine")
	r.patch(t, operators, "mesh", "main", "kubectl", `{"metadata":{"annotations":{"install.istio.io/ignoreReconcile":null}}}`)
	r.level(t, "server", "debug")
	r.becomes(t, "main", "HEALTHY")
	// Each revision takes its own with it.
	r.withdraw(t, "main")
	r.level(t, "server-canary", "warn")
	r.becomes(t, "canary", "HEALTHY")
	r.withdraw(t, "canary")
}

func testOperatorBadResource(t *testing.T, r *rig) {
	r.ask(t, "main", env())
	r.healthy(t, "main", "server")
	before := r.snapshot(t)
	for _, bad := range []struct {
		spec map[string]any
		says []string
	}{
		{map[string]any{"components": map[string]any{"pilot": map[string]any{"k8s": map[string]any{"replicaCnt": int64(3)}}}},
			[]string{"IstioOperator mesh/main: components.pilot.k8s.replicaCnt", "replicaCount"}},
		{map[string]any{"profile": "dafault"}, []string{"dafault", "default"}},
		{map[string]any{"components": "all"}, []string{"components"}},
	} {
		r.ask(t, "main", bad.spec)
		r.becomes(t, "main", "ERROR", append(bad.says, `"Pilot":{"status":"HEALTHY"`)...)
	}
	for _, id := range changed(before, r.snapshot(t)) {
		if id != "~IstioOperator mesh/main" {
			t.Errorf("a bad resource changed %s", id)
		}
	}
	r.ask(t, "main", env("LEVEL", "debug"))
	r.level(t, "server", "debug")
	r.becomes(t, "main", "HEALTHY")
	r.withdraw(t, "main")
	// One that was never good has installed nothing, and goes at once.
	r.ask(t, "main", map[string]any{"profile": "none"})
	r.becomes(t, "main", "ERROR")
	r.withdraw(t, "main")
}

func testOperatorClaims(t *testing.T, r *rig) {
	r.ask(t, "first", env("LEVEL", "debug"))
	r.healthy(t, "first", "server")
	r.ask(t, "second", env("LEVEL", "warn"))
	r.becomes(t, "second", "ERROR", "revision default is held by IstioOperator mesh/first")
	r.level(t, "server", "debug")
	// A resource does not leave its revision.
	r.ask(t, "first", with(env("LEVEL", "debug"), "canary"))
	r.becomes(t, "first", "ERROR", "it has installed revision default", "asks for revision canary")
	r.becomes(t, "second", "ERROR", "held by IstioOperator mesh/first")
	r.level(t, "server", "debug")
	// When it goes, the other one installs the revision.
	r.withdraw(t, "first")
	r.level(t, "server", "warn")
	r.healthy(t, "second", "server")
	r.withdraw(t, "second")
}

func testOperatorConflict(t *testing.T, r *rig) {
	_, err := r.dynamic.Resource(configMaps).Namespace("mesh").Apply(t.Context(), "server", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "server", "namespace": "mesh"},
		"data": map[string]any{"level": "theirs"},
	}}, metav1.ApplyOptions{FieldManager: "argocd"})
	if err != nil {
		t.Fatal(err)
	}
	r.ask(t, "main", env())
	r.becomes(t, "main", "ERROR", "nothing was changed", "ConfigMap mesh/server: .data.level is managed by argocd",
		"`fairlead install --force`")
	if _, err := r.Client(t).AppsV1().Deployments("mesh").Get(t.Context(), "server", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("something was installed: %v", err)
	}
	if err := r.dynamic.Resource(configMaps).Namespace("mesh").Delete(t.Context(), "server", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.healthy(t, "main", "server") // it is tried again by itself
	r.withdraw(t, "main")
}

func testOperatorAdopts(t *testing.T, r *rig) {
	r.install(t, "--set", "values.pilot.env.LEVEL=debug")
	r.ready(t, "mesh", "server")
	before := r.snapshot(t)
	r.ask(t, "main", env("LEVEL", "debug"))
	r.becomes(t, "main", "HEALTHY")
	if diff := changed(before, r.snapshot(t)); !slices.Equal(diff, []string{"+IstioOperator mesh/main"}) {
		t.Errorf("taking over changed %v", diff)
	}
	// It is the operator's now.
	_, said := r.install(t, "--set", "values.pilot.env.LEVEL=trace")
	says(t, said, "revision default is held by IstioOperator mesh/main")
	r.level(t, "server", "debug")
	r.becomes(t, "main", "HEALTHY")
	r.withdraw(t, "main")
}

func testOperatorReleases(t *testing.T, r *rig) {
	r.ask(t, "main", env())
	r.healthy(t, "main", "server")
	r.patch(t, operators, "mesh", "main", "kubectl", `{"metadata":{"annotations":{"install.istio.io/ignoreReconcile":"true"}}}`)
	before := r.snapshot(t)
	r.withdraw(t, "main")
	if diff := changed(before, r.snapshot(t)); !slices.Equal(diff, []string{"-IstioOperator mesh/main"}) {
		t.Errorf("changed: %v", diff)
	}
	_, said := r.install(t, "--set", "values.pilot.env.LEVEL=trace")
	if strings.Contains(said, "is held by") {
		t.Error(said)
	}
	r.level(t, "server", "trace")
}

func testOperatorRollback(t *testing.T, r *rig) {
	r.ask(t, "main", env("LEVEL", "one"))
	r.healthy(t, "main", "server")
	r.ask(t, "main", env("LEVEL", "two"))
	r.level(t, "server", "two")
	r.becomes(t, "main", "HEALTHY")
	_, said := r.does(t, 1, "rollback", "-d", r.manifests, "-y", "--wait=false")
	says(t, said, "revision default is held by IstioOperator mesh/main", "the resource decides", "Nothing was changed",
		"fairlead rollback --revision default --to 1 --print | kubectl replace -f -")
	r.level(t, "server", "two")
	out, _ := r.does(t, 0, "rollback", "--print")
	var u unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(out), &u.Object); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, func() error { // as kubectl replace does
		u.SetResourceVersion(r.get(t, operators, "mesh", "main").GetResourceVersion())
		_, err := r.dynamic.Resource(operators).Namespace("mesh").Update(t.Context(), &u, metav1.UpdateOptions{})
		return err
	})
	r.level(t, "server", "one")
	r.becomes(t, "main", "HEALTHY")
	r.withdraw(t, "main")
}

// TestOperatorLeads runs two operators: only one of them writes, and when it dies the other one goes on.
func TestOperatorLeads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	testOperatorCommands(t, r)
	first := r.startOperator(t, r.kubeconfig)
	eventually(t, func() error { // it has the lease
		if !slices.ContainsFunc(r.proxy.seen(), func(w string) bool { return strings.HasSuffix(w, "/leases") }) {
			return fmt.Errorf("no lease was made")
		}
		return nil
	})
	other := newProxy(t, r.Config)
	r.startOperator(t, writeKubeconfig(t, other.URL))
	r.ask(t, "main", env())
	r.healthy(t, "main", "server")
	for _, w := range other.seen() {
		if !strings.Contains(w, "/leases") {
			t.Errorf("the operator without the lease wrote: %s", w)
		}
	}
	first.Kill()
	if err := r.dynamic.Resource(services).Namespace("mesh").Delete(t.Context(), "server", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := r.dynamic.Resource(services).Namespace("mesh").Get(t.Context(), "server", metav1.GetOptions{})
		return err
	})
	if !slices.ContainsFunc(other.seen(), func(w string) bool { return strings.Contains(w, "/services") }) {
		t.Errorf("the second operator wrote %v", other.seen())
	}
	r.withdraw(t, "main")
}

// TestOperatorWithItsOwnRights installs and removes Fairlead's own package with the rights of the operator's chart.
func TestOperatorWithItsOwnRights(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.does(t, 0, "operator", "init", "--operatorNamespace", "ops", "--watchedNamespaces", "mesh", "--wait=false")
	kubeconfig := r.ServiceAccount(t, "ops", "fairlead-operator")
	var err error
	if r.manifests, err = filepath.Abs("../../../services/installer/manifests"); err != nil {
		t.Fatal(err)
	}
	before := contents(r.snapshot(t))
	r.startOperator(t, kubeconfig)
	r.ask(t, "main", map[string]any{
		"profile": "demo", "values": map[string]any{"global": map[string]any{"istioNamespace": "mesh"}},
		"components": map[string]any{"cni": map[string]any{"enabled": true, "namespace": "mesh"}},
	})
	eventually(t, func() error {
		list, err := r.Client(t).AppsV1().Deployments("mesh").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, d := range list.Items {
			r.ready(t, "mesh", d.Name)
		}
		sets, err := r.Client(t).AppsV1().DaemonSets("mesh").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, d := range sets.Items {
			d.Status.ObservedGeneration = d.Generation
			if _, err := r.Client(t).AppsV1().DaemonSets("mesh").UpdateStatus(t.Context(), &d, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		live, err := r.dynamic.Resource(operators).Namespace("mesh").Get(t.Context(), "main", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status, _, _ := unstructured.NestedString(live.Object, "status", "status"); status != "HEALTHY" {
			return fmt.Errorf("status %v", live.Object["status"])
		}
		return nil
	})
	r.becomes(t, "main", "HEALTHY", `"Ca":{`, `"ConfigWatcher":{`, `"XdsServer":{`, `"Pilot":{`, `"IngressGateways":{`)
	// What the mesh would refuse is refused here, by config-watcher's rules.
	r.ask(t, "main", map[string]any{"profile": "demo", "meshConfig": map[string]any{"rootNamespace": "A_b"}})
	r.becomes(t, "main", "ERROR", `meshConfig.rootNamespace: \"A_b\": not a namespace`)
	r.withdraw(t, "main")
	r.does(t, 0, "operator", "remove", "--operatorNamespace", "ops", "-y", "--timeout", "10s")
	claims := resource("", "v1", "persistentvolumeclaims")
	list, err := r.dynamic.Resource(claims).Namespace("mesh").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("volumes that are kept: %v, %v", list, err)
	}
	r.patch(t, claims, "mesh", list.Items[0].GetName(), "pvc-protection-controller",
		`{"metadata":{"finalizers":null}}`) // it does not run here
	r.purge(t)
	left := differing(contents(r.snapshot(t)), before)
	left = slices.DeleteFunc(left, func(id string) bool { return strings.Contains(id, "fairlead-operator") })
	if len(left) > 0 {
		t.Errorf("after the operator's removal and a purge the cluster is not as before: %v", left)
	}
}

// testOperatorCommands installs operators, and leaves one.
func testOperatorCommands(t *testing.T, r *rig) {
	t.Helper()
	init := []string{"operator", "init", "--operatorNamespace", "ops", "--wait=false"}
	out, _ := r.does(t, 0, append(init, "--dry-run")...)
	says(t, out, "create Namespace ops", "create CustomResourceDefinition istiooperators.install.istio.io",
		"create Deployment ops/fairlead-operator")
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		"{profile: demo}": "it is no IstioOperator of install.istio.io/v1alpha1",
		"{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, metadata: {name: x, namespace: other}, spec: {}}": "add it " +
			"to --watchedNamespaces",
		"{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, metadata: {name: x}, spec: {components: {pilot: {k9s: 1}}}}": "components.pilot.k9s",
	} {
		write(text)
		_, said := r.does(t, 3, append(init, "-f", file)...)
		says(t, said, want)
	}
	if all := r.snapshot(t); all["Namespace /ops"] != nil {
		t.Error("what was refused or only shown made a namespace")
	}
	write("{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, metadata: {name: kept}, spec: {profile: demo, values: {global: " +
		"{istioNamespace: mesh}}}}")
	r.does(t, 0, append(init, "--watchedNamespaces", "mesh,other", "--hub", "example.com/hub", "--tag", "7", "--imagePullSecrets", "key", "-f",
		file)...)
	d := fmt.Sprint(r.get(t, deployments, "ops", "fairlead-operator").Object["spec"])
	says(t, d, "example.com/hub/operator:7", "mesh,other", "key")
	if got := r.get(t, operators, "mesh", "kept"); got == nil {
		t.Error("the IstioOperator was not applied")
	}
	// Without a name it is called as its revision, as fairlead install takes it, too.
	write("{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, spec: {profile: demo, values: {global: {istioNamespace: mesh}}}}")
	out, _ = r.does(t, 0, append(init, "--watchedNamespaces", "mesh,other", "-f", file, "--dry-run")...)
	says(t, out, "apply IstioOperator mesh/default\n")
	// A namespace that is not watched any more loses its rights.
	roles := resource("rbac.authorization.k8s.io", "v1", "roles")
	r.get(t, roles, "other", "fairlead-operator-ops")
	r.does(t, 0, append(init, "--watchedNamespaces", "mesh")...)
	if _, err := r.dynamic.Resource(roles).Namespace("other").Get(t.Context(), "fairlead-operator-ops",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the role in a namespace that is not watched any more: %v", err)
	}
	// An operator of a revision is a further one.
	r.does(t, 0, append(init, "--watchedNamespaces", "mesh", "--revision", "canary")...)
	before := r.snapshot(t)
	_, said := r.does(t, 1, "operator", "remove", "-y")
	says(t, said, "no operator fairlead-operator is in namespace istio-operator")
	out, _ = r.does(t, 0, "operator", "remove", "--operatorNamespace", "ops", "--revision", "canary", "--dry-run")
	says(t, out, "delete Deployment ops/fairlead-operator-canary")
	r.does(t, 0, "operator", "remove", "--operatorNamespace", "ops", "--revision", "canary", "-y")
	for _, id := range changed(before, r.snapshot(t)) {
		if !strings.HasPrefix(id, "-") || !strings.Contains(id, "canary") {
			t.Errorf("the removal of one operator changed %s", id)
		}
	}
	if err := r.dynamic.Resource(operators).Namespace("mesh").Delete(t.Context(), "kept", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}
