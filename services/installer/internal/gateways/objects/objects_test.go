package objects_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/gateways/objects"
)

// values are those of an installation.
const values = `
global: {hub: example.com/mesh, tag: v1, istioNamespace: istio-system}
meshConfig: {trustDomain: cluster.local}
`

func build(t *testing.T, gw *gatewayv1.Gateway, overlays ...map[string]string) []objects.Object {
	t.Helper()
	return buildWith(t, values, gw, overlays...)
}

// deploymentOf returns the Deployment of the objects.
func deploymentOf(t *testing.T, made []objects.Object) (d appsv1.Deployment) {
	t.Helper()
	for _, o := range made {
		if o.Kind.Kind == "Deployment" {
			testkit.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d))
		}
	}
	return d
}

func buildWith(t *testing.T, values string, gw *gatewayv1.Gateway, overlays ...map[string]string) []objects.Object {
	t.Helper()
	b, err := objects.NewBuilder([]byte(values), "")
	testkit.NoError(t, err)
	out, err := b.Build(
		objects.Input{Gateway: gw, Controller: gatewaydeploy.IstioController, Ports: gatewaydeploy.Ports(gw, nil), Overlays: overlays},
	)
	testkit.NoError(t, err)
	return out
}

func named(name string, listeners ...gatewayv1.Listener) *gatewayv1.Gateway {
	return &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "0-1"},
		Spec: gatewayv1.GatewaySpec{GatewayClassName: "istio", Listeners: listeners}}
}

// TestObjects has the objects of each Gateway of testdata/in, with the overlays of the ConfigMaps beside it, in
// testdata/out.
func TestObjects(t *testing.T) {
	files, err := filepath.Glob("testdata/in/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(strings.TrimSuffix(name, ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			testkit.NoError(t, err)
			gw := &gatewayv1.Gateway{}
			var overlays []map[string]string
			for doc := range strings.SplitSeq(string(text), "\n---\n") {
				into, isMap := any(gw), strings.Contains(doc, "\nkind: ConfigMap")
				cm := &corev1.ConfigMap{}
				if isMap {
					into = cm
				}
				testkit.NoError(t, yaml.UnmarshalStrict([]byte(doc), into))
				if isMap {
					testkit.NoError(t, gatewaydeploy.Check("ConfigMap "+cm.Name, cm.Data))
					overlays = append(overlays, cm.Data)
				}
			}
			var got bytes.Buffer
			for _, o := range build(t, gw, overlays...) {
				text, err := yaml.Marshal(o.Object)
				testkit.NoError(t, err)
				got.WriteString("---\n" + string(text))
			}
			testkit.Golden(t, filepath.Join("testdata", "out", name), got.Bytes())
		})
	}
}

func TestEveryRequestIsOfAContainerThatIsTheGateways(t *testing.T) {
	d := deploymentOf(t, build(t, named(strings.Repeat("a", 253), gatewayv1.Listener{Name: "a", Port: 80, Protocol: "HTTP"})))
	if len(d.Name) > 63 || d.Spec.Template.Labels[gatewaydeploy.NameLabel] != d.Spec.Selector.MatchLabels[gatewaydeploy.NameLabel] ||
		len(d.Spec.Selector.MatchLabels) != 1 {
		t.Errorf("%s selects %v of %v", d.Name, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels)
	}
	if d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 {
		t.Errorf("an update ends Pods before there are others: %v", d.Spec.Strategy)
	}
}

func TestResourcesOfProxiesAreThoseOfGateways(t *testing.T) {
	d := deploymentOf(t, buildWith(t, "global: {istioNamespace: istio-system, proxy: {resources: {requests: {cpu: 10m}}}}", named("web")))
	requests := d.Spec.Template.Spec.Containers[0].Resources.Requests
	if requests.Cpu().String() != "10m" || requests.Memory().String() != "128Mi" {
		t.Errorf("requests are %v, wanted 10m CPU of the installation and 128Mi memory of the chart", requests)
	}
}

func TestAnAutoscalerAloneSaysHowManyPodsThereAre(t *testing.T) {
	out := build(t, named("web"), map[string]string{"deployment": "spec: {replicas: 3}"},
		map[string]string{"horizontalPodAutoscaler": "spec: {minReplicas: 2}"})
	var kinds []string
	for _, o := range out {
		kinds = append(kinds, o.Kind.Kind)
		if spec, _ := o.Object["spec"].(map[string]any); o.Kind.Kind == "Deployment" && spec["replicas"] != nil {
			t.Errorf("spec.replicas is %v beside an autoscaler", spec["replicas"])
		}
	}
	if !slices.Equal(kinds, []string{"ServiceAccount", "Deployment", "Service", "HorizontalPodAutoscaler"}) {
		t.Errorf("made %v", kinds)
	}
}

// TestWhatCheckWouldMissIsRefused: an overlay that nobody has judged gives a Pod no other rights.
func TestWhatCheckWouldMissIsRefused(t *testing.T) {
	b, err := objects.NewBuilder([]byte(values), "")
	testkit.NoError(t, err)
	for _, spec := range []string{"{hostNetwork: true}", "{serviceAccountName: other}", "{containers: [{name: other, image: a}]}",
		"{containers: [{name: istio-proxy, image: a}]}", "{volumes: [{name: a, hostPath: {path: /}}]}", "{$patch: replace}",
		"{securityContext: {runAsUser: 0}}"} {
		_, err := b.Build(objects.Input{Gateway: named("web"), Controller: gatewaydeploy.IstioController,
			Overlays: []map[string]string{{"deployment": "spec: {template: {spec: " + spec + "}}"}}})
		if err == nil {
			t.Errorf("%s is applied", spec)
		}
	}
}
