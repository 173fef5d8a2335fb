package install

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// operator writes a file with an IstioOperator and returns its name.
func operator(t *testing.T, spec string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	testkit.WriteFile(t, file, []byte("{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, spec: "+spec+"}\n"))
	return file
}

// testUninstallFile: what an IstioOperator makes goes, and the rest of the revision stays and is known.
func testUninstallFile(t *testing.T, r *rig) {
	whole := operator(t, "{profile: full, values: {pilot: {env: {EXTRA: x}}}}")
	agent := operator(t, "{profile: full, components: {base: {enabled: false}, pilot: {enabled: false}}}")
	r.install(t, "-f", whole)
	r.install(t, "-f", whole, "--revision", "canary")
	before := r.snapshot(t)
	uninstall := func(code int, a ...string) (out, said string) {
		return r.does(t, code, append([]string{"uninstall", "-d", r.manifests, "-y"}, a...)...)
	}

	_, said := uninstall(2, "-f", agent, "--revision", "default")
	says(t, said, "--revision REVISION for one, or --purge for all, or -f FILE for what an IstioOperator makes")
	uninstall(2, "-f", agent, "--purge")
	uninstall(2, "--revision", "default") // -d without -f
	_, said = uninstall(3, "-f", operator(t, "{profle: full}"))
	says(t, said, `profle: unknown field; did you mean "profile"`)
	_, said = uninstall(1, "-f", operator(t, "{revision: nope}"))
	says(t, said, "revision nope is not installed; installed: canary, default")
	_, said = uninstall(1, "-f", agent, "-i", "elsewhere")
	says(t, said, "revision default is installed in namespace mesh, and not in elsewhere")
	out, _ := uninstall(0, "-f", agent, "--dry-run")
	says(t, out, "keep   DaemonSet mesh/agent: revision canary in mesh has it too")
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	r.does(t, 0, "uninstall", "--revision", "canary", "-y")

	before = r.snapshot(t)
	out, _ = uninstall(0, "-f", agent)
	says(t, out, "uninstalled")
	if diff := changed(before, r.snapshot(t)); !slices.Equal(diff, []string{"-DaemonSet mesh/agent"}) {
		t.Errorf("changed: %v", diff)
	}
	r.ready(t, "mesh", "server")
	out, _ = r.does(t, 0, "verify-install")
	says(t, out, "revision default in namespace mesh: 11 objects are there and ready")
	uninstall(0, "-f", agent) // again: nothing is left of it
	uninstall(0, "-f", whole)
	if left := r.snapshot(t); left["Deployment mesh/server"] != nil || left["ConfigMap mesh/server-extra"] != nil ||
		left["CustomResourceDefinition /things.example.com"] != nil {
		t.Error("objects of the file are left")
	}
	_, said = r.does(t, 1, "verify-install", "--revision", "default")
	says(t, said, "revision default is not installed")
}

// testVerifyFile: what an IstioOperator makes is compared with the cluster, whoever has applied it.
func testVerifyFile(t *testing.T, r *rig) {
	file := operator(t, "{values: {pilot: {env: {LEVEL: debug}}}}")
	verify := func(code int, a ...string) (out, said string) {
		return r.does(t, code, append([]string{"verify-install", "-d", r.manifests, "-f", file}, a...)...)
	}
	out, said := verify(1)
	says(t, out, "Deployment mesh/server: it is not there\n", "ConfigMap mesh/server: it is not there\n")
	says(t, said, "problems")
	r.install(t, "--set", "values.pilot.env.EXTRA=x")
	before := r.snapshot(t)
	out, said = verify(1)
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	says(t, out, "ConfigMap mesh/server: it differs in data.level; fairlead diff shows each\n",
		"Deployment mesh/server: Deployment mesh/server is not ready",
		"ConfigMap mesh/server-extra: it is of the installation, and not of what the files make\n")
	says(t, said, "3 problems")
	r.ready(t, "mesh", "server")
	r.install(t, "-f", file)
	r.ready(t, "mesh", "server")
	out, _ = verify(0)
	says(t, out, "revision default in namespace mesh: 10 objects are there and ready")
	if out, _ = verify(0, "-o", "json"); !strings.Contains(out, `"problems": []`) {
		t.Errorf("%s", out)
	}
	_, said = verify(1, "--revision", "canary")
	says(t, said, "problems")
}

// testPurgeOfWhatIsLeft: --purge after the last revision was removed.
func testPurgeOfWhatIsLeft(t *testing.T, r *rig) {
	r.install(t)
	r.does(t, 0, "uninstall", "--revision", "default", "-y")
	r.Apply(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: istio-ca-root-cert, namespace: default, labels: "+
		"{app.kubernetes.io/managed-by: fairlead-ca}}}")
	_, said := r.does(t, 0, "uninstall", "--purge", "--with-contents", "-y")
	says(t, said, "delete ConfigMap default/istio-ca-root-cert\n")
	_, said = r.does(t, 0, "uninstall", "--purge", "--with-contents", "-y")
	says(t, said, "nothing is installed")
}

// testPurgeKeeps: what others have in the namespace, and of a kind, is lost by a flag alone.
func testPurgeKeeps(t *testing.T, r *rig) {
	r.install(t)
	r.Apply(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs, namespace: mesh}}")
	r.Apply(t, "{apiVersion: example.com/v1, kind: Thing, metadata: {name: mine, namespace: default}}")
	r.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio-injection: enabled}}}")
	_, said := r.does(t, 2, "uninstall", "--purge") // nobody answers
	says(t, said, "0 proxies and 1 namespaces (shop) use revision default", "What goes is in use. Proceed? [y/N]")
	_, said = r.does(t, 0, "uninstall", "--purge", "-y")
	says(t, said, "keep   Namespace mesh: objects that no installation has made would be lost, such as ConfigMap mesh/theirs; there are 1; "+
		"--with-contents",
		"keep   CustomResourceDefinition things.example.com: objects of its kind would be lost, such as Thing default/mine; there are 1; "+
			"--with-contents",
		"delete Deployment mesh/server\n")
	r.get(t, configMaps, "mesh", "theirs")
	r.get(t, things, "default", "mine")
	for _, gone := range []func() error{
		func() error {
			return r.dynamic.Resource(things).Namespace("default").Delete(t.Context(), "mine", deleteNow)
		},
		func() error {
			return r.dynamic.Resource(configMaps).Namespace("mesh").Delete(t.Context(), "theirs", deleteNow)
		},
		func() error { return r.Client(t).CoreV1().Namespaces().Delete(t.Context(), "shop", deleteNow) },
	} {
		if err := gone(); err != nil {
			t.Fatal(err)
		}
	}
	r.does(t, 0, "uninstall", "--purge", "-y")
	r.gone(t, "mesh")
	r.gone(t, "shop")
}
