package migrate

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/installer/internal/install/tree"
)

const istiod = `
metadata: {name: istiod, namespace: istio-system, labels: {app: istiod, istio.io/rev: default}}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: istiod}}
    spec:
      nodeSelector: {disk: ssd}
      containers: [{name: discovery, image: 'example.com/mesh/pilot:1.2.3', resources: {requests: {cpu: 500m}}}]
`

const gateway = `
metadata: {name: NAME, namespace: NAMESPACE, labels: {LABELS}}
spec:
  replicas: 2
  selector: {matchLabels: {istio: NAME}}
  template:
    metadata: {labels: {istio: NAME}, annotations: {inject.istio.io/templates: gateway, mine: x}}
    spec: {containers: [{name: istio-proxy, image: auto}]}
`

func typed[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// cluster is a small installation; the data are those of ConfigMaps values and istio.
func cluster(t *testing.T, values, mesh string) Objects {
	t.Helper()
	o := Objects{Namespace: "istio-system", Deployments: []appsv1.Deployment{typed[appsv1.Deployment](t, istiod)}}
	for name, data := range map[string]map[string]string{"values": {"original-values": values}, "istio": {"mesh": mesh}} {
		c := corev1.ConfigMap{Data: data}
		c.Name, c.Namespace = name, o.Namespace
		o.ConfigMaps = append(o.ConfigMaps, c)
	}
	return o
}

func with(t *testing.T, o Objects, name, namespace, labels string) Objects {
	t.Helper()
	text := strings.NewReplacer("NAMESPACE", namespace, "NAME", name, "LABELS", labels).Replace(gateway)
	o.Deployments = append(o.Deployments, typed[appsv1.Deployment](t, text))
	return o
}

func TestClusters(t *testing.T) {
	written := "defaultConfig: {discoveryAddress: 'istiod.istio-system.svc:15012'}\nenablePrometheusMerge: true\ntrustDomain: cluster.local\n"
	plain := func() Objects { return cluster(t, "{}", written) }
	for _, tc := range []struct {
		name          string
		objects       Objects
		path, want    string
		warns, errors string
	}{
		{"hub and tag are those of the image", plain(), "hub", "example.com/mesh", "", ""},
		{"a control plane without an autoscaler has a number of replicas", plain(), "components.pilot.k8s.replicaCount", "3", "", ""},
		{"scheduling is read", plain(), "components.pilot.k8s.nodeSelector.disk", "ssd", "", ""},
		{"values are those that it was installed with", cluster(t, `{"traceSampling": 7}`, written), "values.pilot.traceSampling", "7", "", ""},
		{"what the chart writes into the mesh configuration is not said again", plain(), "meshConfig", "", "", ""},
		{"a mesh configuration that was changed by hand counts",
			cluster(t, `{"meshConfig": {"accessLogFile": "a"}}`, written+"accessLogFile: b\n"), "meshConfig.accessLogFile", "b",
			"mesh: accessLogFile is not as the values of the installation say; what is in force counts", ""},
		{"a field of it that was added by hand counts", cluster(t, "{}", written+"outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n"),
			"meshConfig.outboundTrafficPolicy.mode", "REGISTRY_ONLY", "outboundTrafficPolicy", ""},
		{"gateways of all namespaces", with(t, plain(), "edge", "shop", ""), "components.ingressGateways[name:edge].namespace", "shop",
			"has no Service", ""},
		{"annotations of people are kept", with(t, plain(), "edge", "shop", ""), "components.ingressGateways[name:edge].k8s.podAnnotations.mine",
			"x", "", ""},
		{"a label that the selector has", with(t, plain(), "edge", "shop", ""), "components.ingressGateways[name:edge].label.istio", "edge", "",
			""},
		{"a label that the selector lacks is left out", with(t, plain(), "edge", "shop", ""), "components.ingressGateways[name:edge].label",
			"app: \"\"\nistio: edge", "", ""},
		{"egress gateways", with(t, plain(), "out", "istio-system", "operator.istio.io/component: EgressGateways"),
			"components.egressGateways[name:out].k8s.replicaCount", "2", "", ""},
		{"gateways that a Gateway makes are left to it", with(t, plain(), "edge", "shop", "gateway.networking.k8s.io/gateway-name: g"),
			"components.ingressGateways", "", "makes it for the Gateway g", ""},
		{"no control plane", Objects{Namespace: "x"}, "", "", "", "namespace x has no istiod"},
		{"no values", Objects{Namespace: "istio-system", Deployments: plain().Deployments}, "", "", "",
			"neither ConfigMap values nor istio-sidecar-injector"},
		{"a revision that is not there", Objects{Namespace: "istio-system", Revision: "r", Deployments: plain().Deployments}, "", "", "",
			`no istiod of revision "r"; there are default`},
		{"values that are no values", cluster(t, "[1]", written), "", "", "",
			"ConfigMap istio-system/values: original-values: the document is a list"},
		{"a mesh configuration that is none", cluster(t, "{}", "["), "", "", "", "ConfigMap istio-system/istio: mesh: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := Cluster(tc.objects, small(t))
			if tc.errors != "" {
				if err == nil || !strings.Contains(err.Error(), tc.errors) {
					t.Errorf("error %v, want %q", err, tc.errors)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			path, err := tree.ParsePath(tc.path)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if v, err := tree.Select(r.Spec, path); err == nil {
				got = text(v)
			}
			if got != tc.want {
				t.Errorf("%s is %q, want %q in %v", tc.path, got, tc.want, r.Spec)
			}
			if all := strings.Join(r.Warnings, "\n"); !strings.Contains(all, tc.warns) {
				t.Errorf("warnings %q lack %q", all, tc.warns)
			}
		})
	}
}

func TestGatewaysThatScaleDifferentlyAreNamed(t *testing.T) {
	o := with(t, with(t, cluster(t, "{}", ""), "a", "shop", ""), "b", "shop", "")
	o.HPAs = []autoscalingv2.HorizontalPodAutoscaler{typed[autoscalingv2.HorizontalPodAutoscaler](t,
		"{metadata: {name: a, namespace: shop}, spec: {scaleTargetRef: {kind: Deployment, name: a}, maxReplicas: 9}}")}
	r, err := Cluster(o, small(t))
	if err != nil || !strings.Contains(strings.Join(r.Warnings, "\n"), "Deployment shop/b has no HorizontalPodAutoscaler, others have") {
		t.Errorf("%v, %+v", err, r)
	}
}

// FuzzHelm migrates any values: there is no panic, and what comes out is an IstioOperator.
func FuzzHelm(f *testing.F) {
	for _, text := range []string{"{}", "{pilot: 1, global: [a]}", "{components: {pilot: null}}", "{gateways: {istio-ingressgateway: 3}}",
		"{service: {ports: 1}, labels: [x], env: {A: [1]}}"} {
		for _, chart := range Charts {
			f.Add(chart, text)
		}
	}
	pkg := small(f)
	f.Fuzz(func(t *testing.T, chart, text string) {
		values, err := tree.ParseMap([]byte(text))
		if err != nil {
			return
		}
		c, err := ParseChart(chart)
		if err != nil {
			return
		}
		r, err := Helm([]Values{{File: "f", Chart: c, Tree: values}}, pkg)
		if err != nil {
			return
		}
		out, err := r.Text()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tree.ParseMap(out); err != nil {
			t.Fatal(err)
		}
	})
}
