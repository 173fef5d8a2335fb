package workload_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/installer/internal/inject"
	"fairlead.dev/services/installer/internal/inject/workload"
)

const template = `
metadata: {labels: {owner: "{{ .TypeMeta.Kind }}-{{ .DeploymentMeta.Name }}-{{ .DeploymentMeta.Namespace }}", uid: "u{{ .ProxyUID }}"}}
spec: {containers: [{name: istio-proxy, image: {{ .ProxyImage }}}]}
`

func injector(t *testing.T) *workload.Injector {
	t.Helper()
	mesh, err := inject.ParseMesh(nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := inject.ParseForFiles([]byte(template), []byte("global: {hub: h, tag: t}"), mesh, "")
	if err != nil {
		t.Fatal(err)
	}
	return &workload.Injector{Config: c}
}

const pod = `metadata: {labels: {a: b}}, spec: {containers: [{name: web, image: nginx}]}`

func TestEveryKindOfWorkloadIsInjected(t *testing.T) {
	for kind, text := range map[string]string{
		"Pod": `{apiVersion: v1, kind: Pod, metadata: {name: w, namespace: shop}, spec: {containers: [{name: web, image: nginx}]}}`,
		"ReplicationController": `{apiVersion: v1, kind: ReplicationController, metadata: {name: w, namespace: shop}, spec: {template: {` + pod +
			`}}}`,
		"Deployment": `{apiVersion: apps/v1, kind: Deployment, metadata: {name: w, namespace: shop}, spec: {template: {` + pod + `}}}`,
		"DaemonSet":  `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: w, namespace: shop}, spec: {template: {` + pod + `}}}`,
		"ReplicaSet": `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: w, namespace: shop}, spec: {template: {` + pod + `}}}`,
		"StatefulSet": `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: w, namespace: shop}, spec: {template: {` + pod +
			`}}}`,
		"Job":              `{apiVersion: batch/v1, kind: Job, metadata: {name: w, namespace: shop}, spec: {template: {` + pod + `}}}`,
		"CronJob":          `{apiVersion: batch/v1, kind: CronJob, metadata: {name: w, namespace: shop}, spec: {jobTemplate: {spec: {template: {` + pod + `}}}}}`,
		"DeploymentConfig": `{apiVersion: apps.openshift.io/v1, kind: DeploymentConfig, metadata: {name: w, namespace: shop}, spec: {unknown: kept, template: {` + pod + `}}}`,
	} {
		t.Run(kind, func(t *testing.T) {
			i := injector(t)
			i.Namespace = func(string) *corev1.Namespace {
				return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"openshift.io/sa.scc.uid-range": "5/5"}}}
			}
			out, err := i.Text([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"name: istio-proxy", "image: h/proxyv2:t", "owner: " + kind + "-w-shop", "name: web", "uid: u9"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if strings.Count(string(out), "namespace: shop\n") != 1 {
				t.Errorf("the template has got a namespace:\n%s", out)
			}
			if kind == "DeploymentConfig" && !strings.Contains(string(out), "unknown: kept") || len(i.Warnings) > 0 {
				t.Errorf("%v\n%s", i.Warnings, out)
			}
		})
	}
}

func TestOtherObjectsStayByteForByte(t *testing.T) {
	const text = "# a comment\napiVersion: v1\nkind: Service\nmetadata: {name:   s}\n---\napiVersion: example.com/v1\nkind: " +
		"Deployment\nspec: {template: 7}\n---\n"
	out, err := injector(t).Text([]byte(text))
	if err != nil || string(out) != text {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestListsAreInjectedItemByItem(t *testing.T) {
	out, err := injector(t).Text([]byte(`{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: s}},
  {apiVersion: v1, kind: List, items: [{apiVersion: apps/v1, kind: Deployment, metadata: {name: w}, spec: {template: {` + pod + `}}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []map[string]any }
	if err := yaml.Unmarshal([]byte(strings.TrimSuffix(string(out), "---\n")), &list); err != nil || len(list.Items) != 2 ||
		!strings.Contains(string(out), "istio-proxy") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestWhatIsNotInjectedIsSaid(t *testing.T) {
	i := injector(t)
	out, err := i.Text([]byte(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: w, namespace: kube-system}, spec: {replics: 2, template: {` + pod + `}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: host}, spec: {hostNetwork: true, containers: [{name: a}]}}`))
	if err != nil || strings.Contains(string(out), "istio-proxy") {
		t.Fatalf("%v\n%s", err, out)
	}
	said := strings.Join(i.Warnings, "\n")
	for _, want := range []string{`unknown field "spec.replics"`, "Deployment kube-system/w is not injected", "Pod host is not injected"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in %s", want, said)
		}
	}
}

func TestErrorsNameTheObject(t *testing.T) {
	for text, want := range map[string]string{
		"a: [": "document 1",
		`{apiVersion: apps/v1, kind: Deployment, metadata: {name: w, namespace: shop}, spec: {replicas: many}}`:                                                          "Deployment",
		`{apiVersion: v1, kind: ReplicationController, metadata: {name: w}}`:                                                                                             "ReplicationController w: spec.template is missing",
		`{apiVersion: apps.openshift.io/v1, kind: DeploymentConfig, metadata: {name: w}}`:                                                                                "DeploymentConfig w: spec.template is missing",
		"a: b\n---\n" + `{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: p, annotations: {sidecar.istio.io/proxyCPU: x}}, spec: {}}]}`: "document 2: items[0]: Pod p: annotation sidecar.istio.io/proxyCPU",
	} {
		out, err := injector(t).Text([]byte(text))
		if err == nil || out != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want one about %s", text, err, want)
		}
	}
}
