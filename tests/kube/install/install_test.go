package install

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}

// part is a part of TestInstall.
type part struct {
	name string
	test func(t *testing.T, r *rig)
}

// TestInstall installs again and again in one API server; each part begins and ends with a cluster in which nothing is
// installed.
func TestInstall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.parts(t, []part{ // the installation makes the namespace, and an uninstall deletes it
		{"what was installed is not written to again", testReinstall},
		{"what nobody answers changes nothing", testConfirmation},
		{"a definition with objects is not pruned", testDefinitionKept},
		{"a stuck finalizer is named", testStuckFinalizer},
		{"a purge keeps what others have", testPurgeKeeps},
	})
}

// TestInstallIntoANamespace is the same with a namespace that is there before, and stays: its deletion would take 5 s.
func TestInstallIntoANamespace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: mesh}}")
	r.parts(t, []part{
		{"one value changes the objects that it touches", testOneValue},
		{"upgrade and downgrade give what a fresh installation gives", testUpgrade},
		{"what is not installed any more is pruned unless it has another owner", testPrune},
		{"a volume is lost by purge alone", testDataKept},
		{"a conflict names manager and field", testConflict},
		{"the control plane and the autoscaler keep their fields", testYield},
		{"an installation that is interrupted after any write is completed by the next", testInterrupted},
		{"a missing permission is named before anything is written", testForbidden},
		{"an admission webhook that is down is named", testWebhookDown},
		{"a definition that was deleted comes back", testDefinitionDeleted},
		{"a definition of others stays theirs", testDefinitionOfOthers},
		{"two revisions prune each its own", testRevisions},
		{"a diff shows fields and changes nothing", testDiff},
		{"Kubernetes that is too old is refused", testOldKubernetes},
		{"an installation waits for each component", testWaits},
		{"an installation that does not become ready says why", testNotReady},
		{"an inventory is checked", testInventory},
		{"a large inventory is divided", testLargeInventory},
		{"an uninstall of a file removes what it makes", testUninstallFile},
		{"a file is compared with what is there", testVerifyFile},
		{"gateways with a name are an installation of their own", testNamedGateways},
		{"a purge finds what the removal of the last revision has left", testPurgeOfWhatIsLeft},
		{"of two installations at once one says that it was overtaken", testTwoAtOnce},
		{"of two first installations at once, too", testFirstTwoAtOnce},
		{"an installation that loses its API server is completed by the next", testAway},
		{"upgrade is eligible by one minor version, and rollback brings the last specification back", testUpgradeCommand},
		{"what cannot be changed is made anew where that is asked for", testRecreate},
		{"a change that failed is recorded, and rolled back", testRollbackOfWhatFailed},
		{"a rollback goes to any specification that is kept, shows it first, and is kept itself", testRollback},
	})
}

func (r *rig) parts(t *testing.T, parts []part) {
	t.Helper()
	before := contents(r.snapshot(t))
	for _, p := range parts {
		if t.Failed() {
			return // the next would begin with what is left
		}
		t.Run(p.name, func(t *testing.T) {
			p.test(t, r)
			r.purge(t)
			if left := differing(contents(r.snapshot(t)), before); len(left) > 0 {
				t.Errorf("after uninstall --purge the cluster is not as before: %v", left)
			}
		})
	}
}

func testReinstall(t *testing.T, r *rig) {
	r.install(t)
	first := r.snapshot(t)
	for _, id := range []string{
		"Namespace /mesh", "CustomResourceDefinition /things.example.com", "ClusterRole /mesh-reader", "Thing mesh/server",
		"Deployment mesh/server",
		"ValidatingWebhookConfiguration /server-validator", "Secret mesh/fairlead-installation-default",
	} {
		if first[id] == nil {
			t.Errorf("%s is not installed", id)
		}
	}
	r.proxy.watch(nil)
	out, _ := r.install(t)
	says(t, out, "revision default is installed in namespace mesh: 11 unchanged")
	if writes := r.proxy.seen(); len(writes) > 0 {
		t.Errorf("the second installation wrote %q", writes)
	}
	second := r.snapshot(t)
	if diff := changed(first, second); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	if a, b := first["Secret mesh/fairlead-installation-default"],
		second["Secret mesh/fairlead-installation-default"]; a.GetResourceVersion() != b.GetResourceVersion() {
		t.Error("the inventory was written again")
	}
	if out, _ = r.does(t, 0, "diff", "-d", r.manifests); out != "" {
		t.Errorf("diff prints %q", out)
	}
}

func testOneValue(t *testing.T, r *rig) {
	r.install(t)
	before := r.snapshot(t)
	out, _ := r.install(t, "--set", "values.pilot.env.LEVEL=debug")
	says(t, out, "1 configured, 9 unchanged")
	if diff := changed(before, r.snapshot(t)); !slices.Equal(diff, []string{"~ConfigMap mesh/server"}) {
		t.Errorf("changed: %v", diff)
	}
}

func testUpgrade(t *testing.T, r *rig) {
	old := r.manifests
	fresh := writePackage(t, map[string]string{
		"charts/server/templates/all.yaml": strings.NewReplacer("kind: ConfigMap\nmetadata: {name: {{ $name }},",
			"kind: ConfigMap\nmetadata: {name: {{ $name }}-config,",
			"replicas: 2\n", "replicas: 3\n  revisionHistoryLimit: 4\n").Replace(charts["charts/server/templates/all.yaml"]),
		"charts/base/templates/all.yaml": strings.Replace(charts["charts/base/templates/all.yaml"], "size: {type: integer, default: 1}",
			"size: {type: integer}, colour: {type: string}", 1),
	})
	defer func() { r.manifests = old }()
	wanted := map[string]map[string]any{}
	for _, dir := range []string{old, fresh} {
		r.manifests = dir
		r.install(t)
		wanted[dir] = contents(r.snapshot(t))
		r.purge(t)
	}
	for _, dir := range []string{old, fresh, old} {
		r.manifests = dir
		r.install(t)
		got := contents(r.snapshot(t))
		for id := range wanted[dir] {
			if !reflect.DeepEqual(got[id], wanted[dir][id]) {
				t.Errorf("%s is\n%v, fresh it is\n%v", id, got[id], wanted[dir][id])
			}
		}
		if len(got) != len(wanted[dir]) {
			t.Errorf("%d objects, fresh there are %d", len(got), len(wanted[dir]))
		}
	}
}

func testConfirmation(t *testing.T, r *rig) {
	before := r.snapshot(t)
	_, said := r.does(t, 2, "install", "-d", r.manifests)
	says(t, said, "Revision default, profile default, will be installed in namespace mesh", "11 created. Proceed? [y/N]",
		"--skip-confirmation answers yes")
	out, _ := r.does(t, 0, "install", "-d", r.manifests, "--dry-run")
	says(t, out, "create Namespace mesh\n", "create Deployment mesh/server\n", "11 created")
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	_, said = r.does(t, 2, "uninstall")
	says(t, said, "--revision REVISION for one, or --purge for all")
	_, said = r.does(t, 1, "uninstall", "--revision", "none", "-y")
	says(t, said, "revision none is not installed")
	_, said = r.does(t, 1, "verify-install")
	says(t, said, "nothing is installed")
	r.Apply(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: ca, namespace: default, labels: {app.kubernetes.io/part-of: "+
		"fairlead}, "+
		"annotations: {meta.helm.sh/release-name: fairlead-ca, meta.helm.sh/release-namespace: default}}, "+
		"spec: {selector: {matchLabels: {app: ca}}, template: {metadata: {labels: {app: ca}}, spec: {containers: [{name: a, image: a}]}}}}")
	_, said = r.does(t, 1, "verify-install")
	says(t, said, "whose mesh is of the Helm releases default/fairlead-ca: helm status tells of each")
	if err := r.Client(t).AppsV1().Deployments("default").Delete(t.Context(), "ca", deleteNow); err != nil {
		t.Fatal(err)
	}
}

func testInventory(t *testing.T, r *rig) {
	r.install(t)
	out, said := r.does(t, 1, "verify-install")
	says(t, out, "Deployment mesh/server is not ready")
	says(t, said, "1 problems")
	r.ready(t, "mesh", "server")
	out, _ = r.does(t, 0, "verify-install")
	says(t, out, "revision default in namespace mesh: 10 objects are there and ready")
	// Others may apply a definition too; any other object is then theirs.
	r.patch(t, crds, "", "things.example.com", "helm", `{"metadata":{"annotations":{"meta.helm.sh/release-name":"istio-base"}}}`)
	r.does(t, 0, "verify-install")
	if err := r.Client(t).CoreV1().ServiceAccounts("mesh").Delete(t.Context(), "reader", deleteNow); err != nil {
		t.Fatal(err)
	}
	out, _ = r.does(t, 1, "verify-install", "-o", "json")
	var all []struct {
		Revision string
		Problems []struct{ Object, Problem string }
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 || len(all[0].Problems) != 1 ||
		all[0].Problems[0].Object != "ServiceAccount mesh/reader" {
		t.Errorf("%v, %s", err, out)
	}
	// A broken inventory is an error, not an installation without objects.
	r.patch(t, resource("", "v1", "secrets"), "mesh", "fairlead-installation-default", "test", `{"data":{"record":"AAAA"}}`)
	for _, a := range [][]string{{"verify-install"}, {"uninstall", "--purge", "--with-contents", "-y"}, r.installing()} {
		_, said = r.does(t, 1, a...)
		says(t, said, "Secret mesh/fairlead-installation-default, the inventory of an installation, cannot be read: its hash is wrong")
	}
	if err := r.Client(t).CoreV1().Secrets("mesh").Delete(t.Context(), "fairlead-installation-default", deleteNow); err != nil {
		t.Fatal(err)
	}
	r.install(t)
	r.patch(t, crds, "", "things.example.com", "helm", `{"metadata":{"annotations":{"meta.helm.sh/release-name":null}}}`)
	out, _ = r.does(t, 0, "uninstall", "--purge", "--dry-run", "-o", "json")
	var fates []struct{ Object, Action string }
	if err := json.Unmarshal([]byte(out), &fates); err != nil || len(fates) != 10 {
		t.Errorf("%v, %s", err, out)
	}
	for _, f := range fates {
		if f.Action != "delete" {
			t.Errorf("%s: %s", f.Object, f.Action)
		}
	}
}

// testLargeInventory: an inventory takes as many Secrets as it needs, and one that is too large is refused.
func testLargeInventory(t *testing.T, r *rig) {
	large := func(bytes int) string {
		noise := make([]byte, bytes)
		_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // always returns nil
		file := filepath.Join(t.TempDir(), "large.yaml")
		testkit.WriteFile(t, file, fmt.Appendf(nil,
			"{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, spec: {values: {pilot: {env: {NOISE: %s}}}}}",
			base64.StdEncoding.EncodeToString(noise)))
		return file
	}
	secrets := func() (names []string) {
		for id := range r.snapshot(t) {
			if name, ok := strings.CutPrefix(id, "Secret mesh/fairlead-installation-default"); ok {
				names = append(names, name)
			}
		}
		return names
	}
	before := r.snapshot(t)
	_, said := r.does(t, 1, r.installing("-f", large(4400<<10))...)
	says(t, said, "nothing was changed: the inventory of revision default takes",
		"are the most that are kept in the cluster: make the IstioOperator smaller")
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	r.install(t, "-f", large(1200<<10))
	if n := len(secrets()); n != 3 {
		t.Errorf("an inventory of 1.2 MB takes %d Secrets", n)
	}
	r.proxy.watch(nil)
	r.install(t, "-f", large(1200<<10))
	if writes := r.proxy.seen(); len(writes) > 0 {
		t.Errorf("the second installation wrote %q", writes)
	}
	r.install(t)
	r.ready(t, "mesh", "server")
	r.does(t, 0, "verify-install")
}

// testTwoAtOnce: an installation that another one overtakes says so, and deletes nothing of the other's.
func testTwoAtOnce(t *testing.T, r *rig) {
	r.install(t)
	r.proxy.watch(func(n int) {
		if n != 2 { // the first write is the inventory
			return
		}
		if out, said, code := r.run(t, r.Kubeconfig, r.installing("--set", "values.pilot.env.EXTRA=theirs")...); code != 0 {
			t.Errorf("the other installation: %s%s", out, said)
		}
	})
	_, said := r.does(t, 1, r.installing("--set", "values.pilot.env.LEVEL=debug")...)
	r.proxy.watch(nil)
	says(t, said, "the inventory of revision default in mesh was changed by another installation that runs now")
	r.get(t, configMaps, "mesh", "server-extra")
	r.install(t)
}

func testDiff(t *testing.T, r *rig) {
	r.install(t, "--set", "values.pilot.env.EXTRA=x")
	before := r.snapshot(t)
	out, _ := r.does(t, 4, "diff", "-d", r.manifests, "--set", "values.pilot.env.LEVEL=debug", "--set", "profile=full")
	for _, line := range []string{"ConfigMap mesh/server\n-    data.level: info\n+    data.level: debug\n", "+ DaemonSet mesh/agent\n",
		"- ConfigMap mesh/server-extra\n"} {
		says(t, out, line)
	}
	if n := strings.Count(out, "\n"); n != 5 {
		t.Errorf("%d lines:\n%s", n, out)
	}
	out, _ = r.does(t, 4, "diff", "-d", r.manifests, "-o", "json")
	if want := fmt.Sprintf("%q", "ConfigMap mesh/server-extra"); !json.Valid([]byte(out)) || !strings.Contains(out, want) {
		t.Errorf("%s is not in %s", want, out)
	}
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
}

func testOldKubernetes(t *testing.T, r *rig) {
	r.proxy.set(func(p *proxy) { p.version = "v1.29.9" })
	defer r.proxy.set(func(p *proxy) { p.version = "" })
	before := r.snapshot(t)
	_, said := r.does(t, 1, r.installing()...)
	says(t, said, "is Kubernetes v1.29.9; 1.30 is the oldest that can be installed on: upgrade the cluster first")
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
}
