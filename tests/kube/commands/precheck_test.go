package commands

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

// found is a finding of `fairlead precheck -o json`.
type found struct {
	Code, Name, Level, Origin, Message, Remedy string
}

// prechecks runs precheck with a kubeconfig, and returns the findings without those of the analysis that are about the
// test's own namespaces.
func prechecks(t *testing.T, kubeconfig string, code int, a ...string) []found {
	t.Helper()
	_, manifests := istio(t)
	out, said, got := run(t, fairlead(t), kubeconfig, "",
		append([]string{"precheck", "-d", manifests, "-o", "json", "--output-threshold", "info"}, a...)...)
	if got != code {
		t.Fatalf("precheck %v: exit code %d, expected %d\n%s%s", a, got, code, out, said)
	}
	var list []found
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return list
}

func names(list []found, level string) []string {
	var all []string
	for _, f := range list {
		if f.Level == level {
			all = append(all, f.Name)
		}
	}
	return slices.Compact(all)
}

// finds asserts one finding by its name, origin and a part of its message.
func finds(t *testing.T, list []found, level, name, origin, says string) {
	t.Helper()
	for _, f := range list {
		if f.Level == level && f.Name == name && f.Origin == origin && strings.Contains(f.Message, says) {
			if f.Remedy == "" && level != "Info" {
				t.Errorf("%s of %s has no remedy", name, origin)
			}
			return
		}
	}
	t.Errorf("no %s %s of %q that says %q in %+v", level, name, origin, says, list)
}

func TestWhatHindersAnInstallationIsFound(t *testing.T) {
	s := start(t)
	s.ApplyCRDs(t)
	clean := prechecks(t, s.Kubeconfig, 0)
	if errors := names(clean, "Error"); len(errors) > 0 {
		t.Errorf("errors in a cluster without a mesh: %v", errors)
	}
	finds(t, clean, "Warning", "InjectionLabelsConflict", "Namespace both", "istio-injection=enabled as well")

	if out, said, code := run(t, fairlead(t), s.Kubeconfig, "", "x", "precheck", "--skip-controlplane", "-n", "both"); code != 0 ||
		!strings.Contains(out, "[IST0123 InjectionLabelsConflict]") {
		t.Errorf("x precheck of one namespace: %d, %s%s", code, out, said)
	}

	definitions := filepath.Join(t.TempDir(), "former.yaml")
	if err := os.WriteFile(definitions, []byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rbacconfigs.rbac.istio.io}
spec:
  group: rbac.istio.io
  scope: Cluster
  names: {kind: RbacConfig, plural: rbacconfigs, singular: rbacconfig, listKind: RbacConfigList}
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.ApplyCRDs(t, definitions)
	s.Apply(t, "{apiVersion: rbac.istio.io/v1alpha1, kind: RbacConfig, metadata: {name: old}, spec: {mode: 'ON'}}")
	s.Apply(t, strings.ReplaceAll(injector("default"), "namespace: istio-system", "namespace: shop"))
	_, second, _ := strings.Cut(injector("default"), "---")
	s.Apply(t, strings.NewReplacer("name: istio-sidecar-injector", "name: second", "name: istiod,", "name: gone,").Replace(second))
	s.Apply(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: istiod-canary, namespace: istio-system, labels: {app: istiod, istio.io/rev: canary}}
spec: {selector: {matchLabels: {app: istiod}}, template: {metadata: {labels: {app: istiod}}, spec: {containers: [{name: discovery, image: x}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: istiod, namespace: bank, labels: {app: istiod}}
spec: {selector: {matchLabels: {app: istiod}}, template: {metadata: {labels: {app: istiod}}, spec: {containers: [{name: discovery, image: x}]}}}
`)
	list := prechecks(t, s.Kubeconfig, 1)
	finds(t, list, "Warning", "FormerKind", "CustomResourceDefinition rbacconfigs.rbac.istio.io", "there is old")
	finds(t, list, "Error", "WebhookDown", "MutatingWebhookConfiguration second", "Service istio-system/gone, which does not exist")
	finds(t, list, "Error", "TwoInjectors", "MutatingWebhookConfiguration second", "injects for revision default, too")
	finds(t, list, "Error", "RevisionElsewhere", "MutatingWebhookConfiguration istio-sidecar-injector", "from namespace shop")
	finds(t, list, "Error", "RevisionElsewhere", "Deployment bank/istiod", "runs in namespace bank")
	finds(t, list, "Info", "RevisionBeside", "Deployment istio-system/istiod-canary", "revision canary")
	if canary := prechecks(t, s.Kubeconfig, 1, "--revision", "canary"); slices.Contains(names(canary, "Error"), "RevisionElsewhere") {
		t.Error("another revision is said to be in the way of canary")
	} else {
		finds(t, canary, "Warning", "ReplacesControlPlane", "Deployment istio-system/istiod-canary", "writes it anew")
	}
	finds(t, prechecks(t, s.Kubeconfig, 1, "--from-version", "1.28"), "Warning", "DefaultChanged", "", "in 1.28")
	// Fairlead's own package has components without a chart, and knows no changes of Istio's defaults.
	if out, said := does(t, s, 1, "precheck", "--from-version", "1.29"); !strings.Contains(out, "WebhookDown") {
		t.Errorf("with the own package: %s%s", out, said)
	}
	_, manifests := istio(t)
	for _, version := range []string{"1.2", "latest"} {
		if _, said := does(t, s, 2, "precheck", "-d", manifests, "--from-version", version); !strings.Contains(said, "--from-version") {
			t.Errorf("--from-version %s: %q", version, said)
		}
	}
}

func TestWhatAnInstallationRefusesIsFound(t *testing.T) {
	s := start(t)
	s.ApplyCRDs(t)
	s.Apply(t, "{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: unused, namespace: both}, spec: {host: nobody, "+
		"subsets: [{name: v9, labels: {version: v9}}]}}\n---\n"+
		"{apiVersion: v1, kind: Service, metadata: {name: nobody, namespace: both}, spec: {selector: {app: nobody}, ports: [{port: 80, name: "+
		"http}]}}")
	finds(t, prechecks(t, s.Kubeconfig, 0), "Error", "SubsetSelectsNothing", "DestinationRule both/unused", "")
	if out, said, code := run(t, fairlead(t), s.Kubeconfig, "", "precheck", "--skip-controlplane"); code != 1 {
		t.Errorf("of the mesh's objects alone: %d, %s%s", code, out, said)
	}

	_, manifests := istio(t)
	does(t, s, 0, "install", "-d", manifests, "-y", "--wait=false")
	list := prechecks(t, s.Kubeconfig, 0, "--set", "components.pilot.k8s.service.clusterIP=None")
	finds(t, list, "Warning", "ObjectMadeAnew", "Service istio-system/istiod", "cannot be changed")

	s.Apply(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'rootNamespace: mine'}}")
	finds(t, prechecks(t, s.Kubeconfig, 1), "Error", "InstallationRefused", "", "ConfigMap istio-system/istio: .data.mesh is managed by")
}

func TestMissingRightsAreNamed(t *testing.T) {
	s := start(t)
	s.ApplyCRDs(t)
	user := s.User(t, "installer")
	s.Grant(t, kubeapi.UserSubject("installer"), kubeapi.Rule("", []string{"services", "pods", "configmaps", "serviceaccounts"}, "*"),
		kubeapi.Rule("apps", []string{"deployments"}, "get", "list", "create", "patch"))
	list := prechecks(t, user, 1)
	finds(t, list, "Error", "RightMissing", "", "the user may not delete deployments.apps in namespace istio-system")
	finds(t, list, "Error", "RightMissing", "", "may not create, delete, get, patch clusterroles.rbac.authorization.k8s.io")
	finds(t, list, "Error", "RightMissing", "", "may not create, get, patch namespaces")
	finds(t, list, "Error", "RightMissing", "", "mutatingwebhookconfigurations.admissionregistration.k8s.io")
	finds(t, list, "Warning", "RolesMayBeRefused", "", "grant only what the user may do")
	finds(t, list, "Warning", "NotRead", "", "webhook configurations cannot be read")
	for _, f := range list {
		if f.Name == "RightMissing" && strings.Contains(f.Message, " services ") {
			t.Errorf("a right that the user has is said to be missing: %s", f.Message)
		}
	}
}

func TestAnAPIServerThatIsAwayIsNamed(t *testing.T) {
	_, manifests := istio(t)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: " +
		"[{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: x}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, a := range [][]string{{"precheck", "-d", manifests}, {"tag", "list"}, {"manifest", "migrate", "-d", manifests}} {
		if _, said, code := run(t, fairlead(t), file, "", a...); code != 1 || !strings.Contains(said, "the API server does not answer") {
			t.Errorf("%v: %d, %q", a, code, said)
		}
	}
}
