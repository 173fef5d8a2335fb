package install

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// TestBesideIstio installs Fairlead in a cluster in which an Istio runs that istioctl has installed: it changes none of
// Istio's objects, in whichever way it ends.
func TestBesideIstio(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.manifests = "" // Fairlead's own
	istio := process.MustDo(t, exec.CommandContext(t.Context(), binaries.Built(t, "fairlead"), "manifest", "generate", "-d",
		binaries.IstioManifests(t), "--set", "profile=minimal")) //nolint:gosec // the program under test
	r.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system, labels: {team: mesh}}}")
	r.takeOver(t, "istio-operator", istio)
	before := r.snapshot(t)
	unchanged := func(t *testing.T) {
		t.Helper()
		if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
			t.Errorf("changed: %v", diff)
		}
	}
	beside := []string{"--revision", "fairlead", "--set", "values.global.trustBundleName=fairlead-ca-root-cert"}

	_, said := r.does(t, 1, r.installing()...)
	says(t, said, "nothing was changed: Deployment istio-system/istiod, the control plane of an Istio, keeps root-cert.pem of ConfigMap "+
		"istio-ca-root-cert in every namespace",
		"--revision fairlead --set values.global.trustBundleName=fairlead-ca-root-cert", "--force")
	_, said = r.does(t, 1, r.installing(beside[2:]...)...)
	says(t, said, "ConfigMap istio-system/istio: .data.mesh is managed by istio-operator\n",
		"Service istio-system/istiod: .spec.selector is managed by istio-operator\n", "another --revision")
	_, said = r.does(t, 1, r.installing("--revision", "fairlead")...)
	says(t, said, "To run beside it: --set values.global.trustBundleName=fairlead-ca-root-cert")
	_, said = r.does(t, 0, r.installing("-i", "fairlead-system", "--dry-run", "--set",
		"values.global.trustBundleName=fairlead-ca-root-cert")...)
	says(t, said, "warning: Deployment istio-system/istiod serves revision default, too", "choose another with --revision")
	_, said = r.does(t, 0, r.installing("--revision", "fairlead", "--dry-run", "--force")...)
	says(t, said, "warning: Deployment istio-system/istiod, the control plane of an Istio, keeps root-cert.pem")
	unchanged(t)
	out, _, _ := r.run(t, r.kubeconfig, "precheck", "--revision", "fairlead")
	says(t, out, "Error [RootsOfIstio] (Deployment istio-system/istiod) it keeps its roots in ConfigMap istio-ca-root-cert of every namespace",
		"--set values.global.trustBundleName=fairlead-ca-root-cert")
	if out, _, _ = r.run(t, r.kubeconfig, append([]string{"precheck"}, beside...)...); strings.Contains(out, "RootsOfIstio") {
		t.Errorf("precheck says %q", out)
	}

	_, said = r.install(t, beside...)
	says(t, said, "warning: Namespace istio-system was there before and keeps its labels; to hold all that is in it to what the "+
		"installation needs: "+
		"kubectl label namespace istio-system istio-injection=disabled pod-security.kubernetes.io/enforce=restricted")
	installed := r.snapshot(t)
	for _, id := range changed(before, installed) {
		if !strings.HasPrefix(id, "+") {
			t.Errorf("changed: %s", id)
		}
	}
	for _, id := range []string{"Deployment istio-system/ca", "Service istio-system/istiod-fairlead",
		"CustomResourceDefinition /identitybans.fairlead.dev"} {
		if installed[id] == nil {
			t.Errorf("%s is not installed", id)
		}
	}
	if args := containerArgs(installed["Deployment istio-system/ca"]); !slices.Contains(args, "--root-configmap=fairlead-ca-root-cert") {
		t.Errorf("the ca has the flags %q", args)
	}
	r.proxy.watch(nil)
	r.install(t, beside...)
	if writes := r.proxy.seen(); len(writes) > 0 {
		t.Errorf("the second installation wrote %q", writes)
	}

	t.Run("the compact control plane is alone", func(t *testing.T) {
		_, said := r.does(t, 1, r.installing("--set", "profile=compact", "--revision", "two", "--set", "values.global.trustBundleName=x")...)
		says(t, said, "nothing was changed: component compact has the ca in the Pod of its revision",
			"revision fairlead is installed in namespace istio-system: uninstall that first, or choose a profile without compact")
		r.install(t, append(beside, "--set", "profile=compact")...)
		with := r.snapshot(t)
		_, said = r.does(t, 1, r.installing("--revision", "two", "--set", "values.global.trustBundleName=x")...)
		says(t, said, "revision fairlead in namespace istio-system has it: uninstall that first, or install it with a profile without compact")
		if diff := changed(with, r.snapshot(t)); len(diff) > 0 {
			t.Errorf("changed: %v", diff)
		}
	})
	t.Run("who may not look for an Istio is told", func(t *testing.T) { r.testUnknownIstio(t, beside) })

	r.uninstallVolume(t)
	unchanged(t)
}

// uninstallVolume removes everything. Nobody removes the finalizer of a volume's claim here.
func (r *rig) uninstallVolume(t *testing.T) {
	t.Helper()
	r.does(t, 1, "uninstall", "--purge", "--with-contents", "-y", "--timeout", "3s")
	r.patch(t, resource("", "v1", "persistentvolumeclaims"), "istio-system", "ca-root", "test", `{"metadata":{"finalizers":null}}`)
	r.purge(t)
}

func (r *rig) testUnknownIstio(t *testing.T, beside []string) {
	alice := r.User(t, "alice")
	r.Grant(t, kubeapi.UserSubject("alice"), kubeapi.Rule("*", []string{"*"}, "get", "create", "patch", "update", "delete", "bind",
		"escalate"), kubeapi.Rule("", []string{"secrets"}, "list"))
	defer func() {
		const granted = "test:User::alice"
		if err := errors.Join(r.Client(t).RbacV1().ClusterRoles().Delete(t.Context(), granted, deleteNow),
			r.Client(t).RbacV1().ClusterRoleBindings().Delete(t.Context(), granted, deleteNow)); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, func() error {
		_, said, code := r.run(t, alice, r.installing(append(beside, "--dry-run")...)...)
		if code != 0 || !strings.Contains(said,
			"whether an Istio runs in the cluster, and keeps its roots in ConfigMap fairlead-ca-root-cert, is not known") {
			return errors.New(said)
		}
		return nil
	})
}

func containerArgs(u *unstructured.Unstructured) []string {
	if u == nil {
		return nil
	}
	containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	args, _, _ := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
	return args
}
