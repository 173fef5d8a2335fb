package meshfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/services/installer/internal/local/meshfile"
	"fairlead.dev/services/installer/internal/objectfile"
)

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: web, command: [web]}
`

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "b.yaml", "# a comment\n---\n"+deployment+
		"---\n# only a comment\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: quiet, labels: {istio-injection: disabled}}\n")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "sub/a.json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"shop"},"spec":{"ports":[{"port":80}]}}`)
	write(t, dir, ".hidden.yaml", "not: [yaml")
	write(t, dir, "notes.txt", "not yaml either")

	m, err := meshfile.Load([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Files) != 2 || len(m.Objects) != 3 {
		t.Fatalf("files %v, %d objects", m.Files, len(m.Objects))
	}
	d := m.Deployments[0]
	if d.Namespace != objectfile.DefaultNamespace || d.Source.Line != 3 || filepath.Base(d.Source.File) != "b.yaml" {
		t.Errorf("deployment in %q from %s:%d", d.Namespace, d.Source.File, d.Source.Line)
	}
	if m.Services[0].Namespace != "shop" {
		t.Errorf("service in %q", m.Services[0].Namespace)
	}
	if m.Namespaces["quiet"]["istio-injection"] != "disabled" {
		t.Errorf("namespaces %v", m.Namespaces)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		content string
		want    []string // all of them, in one error
	}{
		"broken YAML": {"apiVersion: v1\nkind: [", []string{"mesh.yaml:2", "not valid YAML", "correct the syntax"}},
		"tab": {"apiVersion: v1\nkind: Service\nmetadata:\n\tname: x\n",
			[]string{"mesh.yaml:4", "not valid YAML", "with spaces"}},
		"unknown field": {strings.Replace(deployment, "selector:", "selektor:", 1),
			[]string{"mesh.yaml:1", "Deployment default/web", `"spec.selektor"`}},
		"wrong Istio type": {"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec: {servers: 3}\n",
			[]string{"Gateway default/g", "spec"}},
		"no kind": {"apiVersion: v1\nmetadata: {name: x}\n", []string{"mesh.yaml:1", "kind", "is empty"}},
		"no name": {"apiVersion: v1\nkind: Service\n", []string{"metadata.name", "is empty"}},
		"twice": {deployment + "---\n" + deployment,
			[]string{"mesh.yaml:12", "Deployment default/web", "twice", "mesh.yaml:1", "remove or rename"}},
		"kind that is not run": {"apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db}\n",
			[]string{"StatefulSet default/db", "write it as a Deployment"}},
		"unserved version": {strings.Replace(deployment, "apps/v1", "apps/v9", 1),
			[]string{"mesh.yaml:1", "Deployment default/web", "apiVersion", "use apps/v1"}},
		"broken MeshConfig": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"a: [\"}\n",
			[]string{"ConfigMap istio-system/istio", "data.mesh"}},
		"all errors at once": {"apiVersion: v1\nkind: Service\n---\nkind: Service\n", []string{"metadata.name", "apiVersion"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, t.TempDir(), "mesh.yaml", tc.content)
			_, err := meshfile.Load([]string{path})
			if err == nil {
				t.Fatal("was accepted")
			}
			var bad *objectfile.Error
			if !errors.As(err, &bad) {
				t.Errorf("is no *objectfile.Error: %T", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
}

func TestProxyConfig(t *testing.T) {
	path := write(t, t.TempDir(), "mesh.yaml", `apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    trustDomain: example.org
    rootNamespace: mesh-root
    defaultConfig: {concurrency: 2, proxyMetadata: {A: a, B: b}}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, concurrency: 4, environmentVariables: {C: selected}, onDemand: true}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: all, namespace: mesh-root}
spec: {environmentVariables: {D: root}}
---
`+deployment)
	m, err := meshfile.Load([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	if m.Config.TrustDomain != "example.org" {
		t.Errorf("trust domain %q", m.Config.TrustDomain)
	}
	web := map[string]string{"app": "web"}
	got, err := m.ProxyConfig(m.Deployments[0].Source, web,
		map[string]string{proxyconfig.Annotation: "concurrency: 3\nproxyMetadata: {B: own}\nstatusPort: 1"})
	if err != nil {
		t.Fatal(err)
	}
	want := proxyconfig.Config{
		"concurrency": int64(4), "proxyMetadata": map[string]any{"A": "a", "B": "own", "C": "selected", "D": "root"}, "statusPort": float64(1),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if again, _ := m.ProxyConfig(m.Deployments[0].Source, nil, nil); again["concurrency"] != float64(2) {
		t.Errorf("a workload that is not selected: %v", again)
	}
	if _, err := m.ProxyConfig(m.Deployments[0].Source, web, map[string]string{proxyconfig.Annotation: "a: ["}); err == nil ||
		!strings.Contains(err.Error(), proxyconfig.Annotation) {
		t.Errorf("broken annotation: %v", err)
	}
}

func TestLoadRunsTheDeploymentOfAList(t *testing.T) {
	item := "- " + strings.ReplaceAll(strings.TrimSpace(deployment), "\n", "\n  ") + "\n"
	m, err := meshfile.Load([]string{write(t, t.TempDir(), "mesh.yaml", "kind: List\nitems:\n"+item)})
	if err != nil || len(m.Deployments) != 1 || m.Deployments[0].Spec.Template.Spec.Containers[0].Command[0] != "web" {
		t.Errorf("%+v, %v", m, err)
	}
}
