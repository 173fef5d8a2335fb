package install

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/tests/internal/kubeapi"
)

// testInterrupted ends a change of an installation before each of its writes in turn, as Ctrl-C does, and completes it.
func testInterrupted(t *testing.T, r *rig) {
	change := []string{"--set", "values.pilot.env.LEVEL=debug", "--set", "values.pilot.env.EXTRA=x", "--set", "profile=full"}
	r.install(t)
	before := contents(r.snapshot(t))
	r.proxy.watch(nil)
	r.install(t, change...)
	writes := len(r.proxy.seen())
	wanted := contents(r.snapshot(t))
	r.install(t)
	if got := contents(r.snapshot(t)); !reflect.DeepEqual(got, before) {
		t.Fatal("the change cannot be taken back")
	}
	all := map[string]bool{}
	for stop := 1; stop <= writes; stop++ {
		r.interrupt(t, stop, change...)
		all[r.state(t)] = true
		r.install(t, change...)
		if got := contents(r.snapshot(t)); !reflect.DeepEqual(got, wanted) {
			t.Errorf("interrupted at write %d and completed, the cluster differs: %v", stop, differing(got, wanted))
		}
		if stop%2 == 0 {
			r.install(t)
			continue
		}
		// The way back prunes what only the interrupted run had written.
		r.interrupt(t, stop, nil...)
		r.install(t)
		if got := contents(r.snapshot(t)); !reflect.DeepEqual(got, before) {
			t.Errorf("the way back interrupted at write %d and completed, the cluster differs: %v", stop, differing(got, before))
		}
	}
	if writes < 5 || !all["1 problems"] {
		t.Errorf("%d writes; states %v", writes, all)
	}
	r.purge(t)
	// The same for a first installation.
	r.proxy.watch(nil)
	r.install(t)
	writes = len(r.proxy.seen())
	wanted = contents(r.snapshot(t))
	r.purge(t)
	for stop := 1; stop <= writes; stop += 3 {
		r.interrupt(t, stop)
		r.install(t)
		if got := contents(r.snapshot(t)); !reflect.DeepEqual(got, wanted) {
			t.Errorf("first installation interrupted at write %d and completed, the cluster differs: %v", stop, differing(got, wanted))
		}
		r.interrupted(t, stop, "uninstall", "--purge", "--with-contents", "-y")
		r.purge(t)
		if left := r.snapshot(t); left["CustomResourceDefinition /things.example.com"] != nil || left["Deployment mesh/server"] != nil {
			t.Errorf("an uninstall interrupted at write %d and completed leaves the definition or the Deployment", stop)
		}
	}
}

func differing(a, b map[string]any) (ids []string) {
	for id := range a {
		if !reflect.DeepEqual(a[id], b[id]) {
			ids = append(ids, id)
		}
	}
	for id := range b {
		if _, ok := a[id]; !ok {
			ids = append(ids, id)
		}
	}
	return sorted(ids)
}

// interrupt signals an installation when it is about to make its n-th write.
func (r *rig) interrupt(t *testing.T, n int, a ...string) {
	t.Helper()
	r.interrupted(t, n, r.installing(a...)...)
}

func (r *rig) interrupted(t *testing.T, n int, a ...string) {
	t.Helper()
	var said bytes.Buffer
	cmd := r.command(t, r.kubeconfig, a...)
	cmd.Stderr = &said
	hit := false
	ended := make(chan struct{})
	r.proxy.watch(func(write int) {
		if write == n {
			hit = true
			_ = cmd.Process.Signal(syscall.SIGINT)
			<-ended // the write is lost: the command gives it up
		}
	})
	defer r.proxy.watch(nil)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	close(ended)
	if !hit {
		if err != nil {
			t.Errorf("fairlead %v, which makes fewer than %d writes: %v %s", a, n, err, said.String())
		}
		return
	}
	if code := cmd.ProcessState.ExitCode(); code != 1 ||
		!strings.Contains(said.String(), "interrupted\nWhat was done so far is in the inventory; run the same command again to complete it") {
		t.Errorf("interrupted at write %d: exit code %d, %v, %s", n, code, err, said.String())
	}
}

// state is what verify-install says of the only revision, with ready Pods.
func (r *rig) state(t *testing.T) string {
	t.Helper()
	out, _, _ := r.run(t, r.kubeconfig, "verify-install")
	if strings.Contains(out, "an installation was cut short") {
		return "1 problems"
	}
	return out
}

func testForbidden(t *testing.T, r *rig) {
	alice := r.User(t, "alice")
	rules := []rbacv1.PolicyRule{
		kubeapi.Rule("", []string{"namespaces", "secrets", "serviceaccounts", "configmaps"}, "get", "list", "create", "patch", "update",
			"delete"),
		kubeapi.Rule("apiextensions.k8s.io", []string{"customresourcedefinitions"}, "get", "list", "create", "patch"),
		kubeapi.Rule("rbac.authorization.k8s.io", []string{"clusterroles", "clusterrolebindings"}, "*"),
		kubeapi.Rule("admissionregistration.k8s.io", []string{"validatingwebhookconfigurations"}, "get", "create", "patch"),
		kubeapi.Rule("example.com", []string{"things"}, "get", "create", "patch"),
		kubeapi.Rule("apps", []string{"deployments"}, "get"),
	}
	r.Grant(t, kubeapi.UserSubject("alice"), rules...)
	before := r.snapshot(t)
	var said string
	eventually(t, func() error {
		var code int
		_, said, code = r.run(t, alice, r.installing()...)
		if code != 1 || strings.Contains(said, "configmaps") {
			return fmt.Errorf("exit code %d: %s", code, said)
		}
		return nil
	})
	says(t, said, "nothing was changed: ", "Deployment mesh/server: ",
		`User "alice" cannot patch resource "deployments" in API group "apps" in the namespace "mesh"`,
		`Service mesh/server: `, `cannot get resource "services"`, "grant it by RBAC, or use a kubeconfig that may")
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	const granted = "test:User::alice"
	if err := r.Client(t).RbacV1().ClusterRoles().Delete(t.Context(), granted, deleteNow); err != nil {
		t.Fatal(err)
	}
	if err := r.Client(t).RbacV1().ClusterRoleBindings().Delete(t.Context(), granted, deleteNow); err != nil {
		t.Fatal(err)
	}
}

// gone waits until a namespace is gone.
func (r *rig) gone(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, func() error {
		list, err := r.Client(t).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		if err == nil && slices.ContainsFunc(list.Items, func(ns corev1.Namespace) bool { return ns.Name == namespace }) {
			err = fmt.Errorf("namespace %s is there", namespace)
		}
		return err
	})
}

func testWebhookDown(t *testing.T, r *rig) {
	r.install(t)
	r.Apply(t, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: guard}
webhooks:
- name: guard.example.com
  sideEffects: None
  admissionReviewVersions: [v1]
  failurePolicy: Fail
  timeoutSeconds: 1
  clientConfig: {url: "https://127.0.0.1:1/guard"}
  rules: [{apiGroups: [example.com], apiVersions: ["*"], operations: ["*"], resources: [things]}]
`)
	defer func() {
		if err := r.Client(t).AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "guard", deleteNow); err != nil {
			t.Error(err)
		}
		r.install(t) // completes what the webhook has stopped
	}()
	var said string
	eventually(t, func() error { // the API server hears of the webhook a moment later
		var code int
		if _, said, code = r.run(t, r.kubeconfig, r.installing("--set", "values.pilot.env.SIZE=9")...); code == 1 {
			return nil
		}
		r.install(t)
		return fmt.Errorf("exit code %d", code)
	})
	says(t, said, "component pilot: Thing mesh/server: admission webhook guard.example.com of ValidatingWebhookConfiguration guard does not "+
		"answer",
		"kubectl delete validatingwebhookconfiguration.admissionregistration.k8s.io/guard", "run the same command again to complete it")
}

func testDefinitionDeleted(t *testing.T, r *rig) {
	r.install(t)
	before := contents(r.snapshot(t))
	if err := r.dynamic.Resource(crds).Delete(t.Context(), "things.example.com", deleteNow); err != nil {
		t.Fatal(err)
	}
	// It may still be going: the installation waits for its end.
	out, _ := r.install(t)
	says(t, out, "2 created, 8 unchanged")
	if got := contents(r.snapshot(t)); !reflect.DeepEqual(got, before) {
		t.Errorf("it differs: %v", differing(got, before))
	}
}

func testStuckFinalizer(t *testing.T, r *rig) {
	r.install(t)
	r.patch(t, configMaps, "mesh", "server", "test", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	r.Apply(t, "{apiVersion: example.com/v1, kind: Thing, metadata: {name: mine, namespace: default, finalizers: [example.com/keep]}}")
	_, said := r.does(t, 1, "uninstall", "--purge", "--with-contents", "-y", "--timeout", "1s")
	says(t, said, "ConfigMap mesh/server is not deleted while it has the finalizer example.com/hold; start the controller that removes it, "+
		"or remove it yourself: kubectl patch configmap/server -n mesh --type=merge",
		"run the same command again")
	r.patch(t, configMaps, "mesh", "server", "test", `{"metadata":{"finalizers":null}}`)
	_, said = r.does(t, 1, "uninstall", "--purge", "--with-contents", "-y", "--timeout", "1s")
	says(t, said, "CustomResourceDefinition things.example.com is not gone: Thing default/mine is not deleted while it has the finalizer "+
		"example.com/keep")
	r.patch(t, things, "default", "mine", "test", `{"metadata":{"finalizers":null}}`)
	eventually(t, func() error { // the API server tries the clean-up again after a while
		_, err := r.dynamic.Resource(crds).Get(t.Context(), "things.example.com", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the definition is there: %w", err)
	})
	// A namespace is held up by what somebody else has in it.
	r.Apply(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs, namespace: mesh, finalizers: [example.com/theirs]}}")
	r.does(t, 1, "uninstall", "--purge", "--with-contents", "-y", "--timeout", "1s")
	eventually(t, func() error { // the namespace controller begins after 5 s
		if r.get(t, configMaps, "mesh", "theirs").GetDeletionTimestamp() == nil {
			return errors.New("the namespace is not being cleaned up")
		}
		return nil
	})
	_, said = r.does(t, 1, "uninstall", "--purge", "--with-contents", "-y", "--timeout", "1s")
	says(t, said, "Namespace mesh is not gone: ConfigMap mesh/theirs is not deleted while it has the finalizer example.com/theirs")
	r.patch(t, configMaps, "mesh", "theirs", "test", `{"metadata":{"finalizers":null}}`)
	r.gone(t, "mesh")
}
