package commands

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

// install writes an installation of Istio to an API server, and returns it.
func install(t *testing.T, s *kubeapi.Server, istioctl, manifests string, a ...string) string {
	t.Helper()
	text, said, code := run(t, istioctl, s.Kubeconfig, "", append([]string{"manifest", "generate", "-d", manifests}, a...)...)
	if code != 0 {
		t.Fatal(said)
	}
	for _, o := range decode(t, text) {
		if o.GetKind() == "CustomResourceDefinition" {
			continue // they are the same in every installation, and slow
		}
		if err := kubeapi.Apply(t.Context(), s.Config, o); err != nil && o.GetKind() != "EnvoyFilter" {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	return text
}

// TestARunningIstioIsMigrated writes installations of Istio to an API server. The migrated IstioOperator gives the
// objects that are there, or were there before somebody changed them by hand in a way that is known to be kept.
func TestARunningIstioIsMigrated(t *testing.T) {
	istioctl, manifests := istio(t)
	s := start(t)
	dir := t.TempDir()
	operator := func(name, spec string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: "+spec), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	before := map[string]string{
		"default": install(t, s, istioctl, manifests, "-f",
			operator("default.yaml", `{meshConfig: {accessLogFile: /dev/stdout}, values: {global: {logging: {level: 'default:debug'}}}, components: {
  egressGateways: [{name: istio-egressgateway, enabled: true}],
  ingressGateways: [{name: istio-ingressgateway, enabled: true, k8s: {service: {type: NodePort}}}, {name: edge, namespace: shop, enabled: true, label: {istio: edge}}]}}`)),
		"canary": install(t, s, istioctl, manifests, "-f",
			operator("canary.yaml", `{profile: minimal, revision: canary, hub: example.com/mesh, tag: 1.2.3,
  values: {pilot: {autoscaleEnabled: false, replicaCount: 3, env: {A: b}}}}`)),
	}
	if _, said := does(t, s, 1, "manifest", "migrate", "-d", manifests); !strings.Contains(said,
		"several revisions, canary, default; name one with --revision") {
		t.Errorf("several revisions: %q", said)
	}
	if _, said := does(t, s, 1, "manifest", "migrate", "-d", manifests, "-i", "shop"); !strings.Contains(said,
		"namespace shop has no istiod") {
		t.Errorf("another namespace: %q", said)
	}
	for revision, original := range before {
		t.Run(revision, func(t *testing.T) {
			migrated, said := does(t, s, 0, "manifest", "migrate", "-d", manifests, "-r", revision)
			if strings.Contains(said, "older form") {
				t.Errorf("warnings of what was migrated: %s", said)
			}
			files := map[string]string{"original": original, "migrated": migrated}
			for name, text := range files {
				files[name] = filepath.Join(dir, revision+"-"+name+".yaml")
				if err := os.WriteFile(files[name], []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			generated, said, code := run(t, fairlead(t), s.Kubeconfig, "", "manifest", "migrate", "-d", manifests, "-f", files["migrated"])
			if code != 0 || generated != migrated {
				t.Errorf("what was migrated is migrated to something else: %s%s", generated, said)
			}
			after := filepath.Join(dir, revision+"-after.yaml")
			offline(t, "manifest", "generate", "-d", manifests, "-f", files["migrated"], "-o", after)
			// Amounts such as 2048Mi come back as 2Gi, and two ConfigMaps say which values were set. The gateways of
			// the cluster, of whichever revision, are part of what is migrated. Ports of nodes are kept where the
			// Service is of type NodePort, because people dial them.
			ignored := "ConfigMap::values*,ConfigMap::istio-sidecar-injector*"
			if revision == "canary" {
				ignored += ",*:*:istio-ingressgateway*,*:*:istio-egressgateway*,*:*:edge*"
			}
			out, _, _ := plain(t, "manifest", "diff", files["original"], after, "--ignore", ignored)
			for line := range strings.Lines(out) {
				heading := !strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "+")
				if !heading && !strings.Contains(line, ".resources.") && !strings.Contains(line, "].nodePort: 3") {
					t.Errorf("the migrated installation differs:\n%s", out)
					break
				}
			}
		})
	}
}

// plain runs fairlead without a cluster.
func plain(t *testing.T, a ...string) (out, said string, code int) {
	t.Helper()
	return program(t, fairlead(t), "", a...)
}

// offline is plain that must succeed.
func offline(t *testing.T, a ...string) {
	t.Helper()
	if out, said, code := plain(t, a...); code != 0 {
		t.Fatalf("fairlead %v: %d\n%s%s", a, code, out, said)
	}
}

func TestAnIstioOperatorOfAClusterIsMigrated(t *testing.T) {
	_, manifests := istio(t)
	s := start(t)
	definition := filepath.Join(t.TempDir(), "istiooperators.yaml")
	if err := os.WriteFile(definition, []byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: istiooperators.install.istio.io}
spec:
  group: install.istio.io
  scope: Namespaced
  names: {kind: IstioOperator, plural: istiooperators, singular: istiooperator, listKind: IstioOperatorList}
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.ApplyCRDs(t, definition)
	s.Apply(t, `{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, metadata: {name: mesh, namespace: istio-system}, spec: {values: {global: {hub: example.com/a}}}}`)
	out, _ := does(t, s, 0, "manifest", "migrate", "-d", manifests)
	if !strings.Contains(out, "spec:\n  hub: example.com/a\n") {
		t.Errorf("the migrated IstioOperator is %s", out)
	}
	s.Apply(t, `{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, metadata: {name: other, namespace: istio-system}, spec: {hub: example.com/b}}`)
	if _, said := does(t, s, 2, "manifest", "migrate", "-d", manifests); !strings.Contains(said, "mesh, other; name one with --operator") {
		t.Errorf("two IstioOperators: %q", said)
	}
	if out, _ = does(t, s, 0, "manifest", "migrate", "-d", manifests, "--operator", "other"); !strings.Contains(out, "example.com/b") {
		t.Errorf("the chosen IstioOperator is %s", out)
	}
}
