package gateways

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

var standard = []string{"ServiceAccount", "Deployment", "Service"}

// TestAGatewayHasWhatItNeeds: its objects come, follow its listeners and overlays, and are made again if somebody
// deletes or changes them.
func TestAGatewayHasWhatItNeeds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start()
	long := strings.Repeat("a", 253)
	r.Apply(
		t,
		gateway(
			apart,
			"web",
			"",
			"",
		)+gateway(
			apart,
			"other",
			"",
			"{gatewayClassName: istio-remote, listeners: [{name: http, port: 80, protocol: HTTP}]}",
		)+
			gateway(
				apart,
				"host",
				"",
				"{gatewayClassName: istio, addresses: [{type: Hostname, value: web-istio}], listeners: [{name: http, port: 80, protocol: HTTP}]}",
			)+
			gateway(
				apart,
				"own",
				", annotations: {networking.istio.io/service-type: ClusterIP}",
				"{gatewayClassName: fairlead, listeners: [{name: dns, port: 53, protocol: UDP}]}",
			)+
			gateway(
				apart,
				long,
				"",
				"",
			),
	)
	r.has(apart, "web-istio", standard...)
	r.has(apart, "own-fairlead", standard...)
	r.hasPorts(apart, "web-istio", "15021/TCP", "80/TCP")
	r.hasPorts(apart, "own-fairlead", "15021/TCP", "53/UDP")
	var dep appsv1.Deployment
	r.into("Deployment", apart, "web-istio", &dep)
	if dep.Labels["gateway.istio.io/managed"] != "istio.io-gateway-controller" || len(dep.OwnerReferences) != 1 ||
		dep.OwnerReferences[0].Name != "web" ||
		dep.Spec.Template.Spec.ServiceAccountName != "web-istio" {
		t.Errorf("%v %v %v", dep.Labels, dep.OwnerReferences, dep.Spec.Template.Spec.ServiceAccountName)
	}
	testkit.Eventually(t, patience, func() error {
		list, err := r.Client(t).AppsV1().Deployments(apart).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) != 3 {
			err = fmt.Errorf("%d Deployments, not those of web, own and the Gateway with the longest name", len(list.Items))
		}
		return err
	})

	r.namespace("team-b", nil)
	// Listeners come and go; a ListenerSet counts while it is allowed.
	r.Apply(
		t,
		gateway(
			apart,
			"web",
			"",
			`{gatewayClassName: istio, allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {shared: "yes"}}}},
  listeners: [{name: https, port: 443, protocol: TLS, tls: {mode: Passthrough}}, {name: dns, port: 53, protocol: UDP}]}`,
		)+`
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {namespace: team-b, name: more}
spec: {parentRef: {name: web, namespace: team-a}, listeners: [{name: http, port: 8080, protocol: HTTP}]}
`,
	)
	r.hasPorts(apart, "web-istio", "15021/TCP", "443/TCP", "53/UDP")
	r.label("team-b", `{"shared":"yes"}`)
	r.hasPorts(apart, "web-istio", "15021/TCP", "443/TCP", "53/UDP", "8080/TCP")
	r.label("team-b", `{"shared":null}`)
	r.hasPorts(apart, "web-istio", "15021/TCP", "443/TCP", "53/UDP")

	// Overlays, first those of the class.
	r.Apply(
		t,
		strings.Replace(
			configMap(
				system,
				"defaults",
				map[string]string{"deployment": "spec: {replicas: 2}", "podDisruptionBudget": "spec: {minAvailable: 1}"},
			),
			"name: defaults",
			"name: defaults, labels: {gateway.istio.io/defaults-for-class: istio}",
			1,
		),
	)
	r.has(apart, "web-istio", append(slices.Clone(standard), "PodDisruptionBudget")...)
	r.replicas("web-istio", 2)
	r.Apply(t, configMap(apart, "options", map[string]string{"deployment": "spec: {replicas: 3}", "horizontalPodAutoscaler": ""})+
		gateway(
			apart,
			"web",
			"",
			"{gatewayClassName: istio, infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: options}}, "+
				"listeners: [{name: http, port: 80, protocol: HTTP}]}",
		))
	r.has(apart, "web-istio", made...)
	r.Apply(t, configMap(apart, "options", map[string]string{"deployment": "spec: {replicas: 3}"}))
	r.has(apart, "web-istio", append(slices.Clone(standard), "PodDisruptionBudget")...)
	r.replicas("web-istio", 3)

	// What somebody else changes or deletes.
	before := d.metric(t, "fairlead_gateways_repaired_objects_total")
	r.remove("Service", apart, "own-fairlead")
	r.has(apart, "own-fairlead", standard...)
	_, err := r.Client(t).AppsV1().Deployments(apart).Patch(t.Context(), "web-istio", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"istio-proxy","image":"evil"}]}}}}`), metav1.PatchOptions{})
	testkit.NoError(t, err)
	testkit.Eventually(t, patience, func() error {
		var dep appsv1.Deployment
		r.into("Deployment", apart, "web-istio", &dep)
		if image := dep.Spec.Template.Spec.Containers[0].Image; image == "evil" {
			return fmt.Errorf("the image is %s", image)
		}
		if got := d.metric(t, "fairlead_gateways_repaired_objects_total"); got < before+2 {
			return fmt.Errorf("%v repairs", got-before)
		}
		return nil
	})

	// The values of the installation.
	r.installed("next")
	testkit.Eventually(t, patience, func() error {
		var dep appsv1.Deployment
		r.into("Deployment", apart, "own-fairlead", &dep)
		if image := dep.Spec.Template.Spec.Containers[0].Image; !strings.HasSuffix(image, ":next") {
			return fmt.Errorf("the image is %s", image)
		}
		return nil
	})

	// A Gateway that names a Service gives up its own.
	r.Apply(
		t,
		gateway(
			apart,
			"own",
			"",
			"{gatewayClassName: fairlead, addresses: [{type: Hostname, value: web-istio}], listeners: [{name: dns, port: 53, protocol: UDP}]}",
		),
	)
	r.has(apart, "own-fairlead")
}

// TestObjectsOfOthersAreLeftAlone: what was not made for a Gateway is not changed, and its Pods get no account that was
// not made for them.
func TestObjectsOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Apply(t, `
apiVersion: v1
kind: Service
metadata: {namespace: team-a, name: web-istio, labels: {owner: somebody}}
spec: {ports: [{port: 1234}]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: team-a, name: admin}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: team-a, name: pay-istio, labels: {gateway.istio.io/managed: istio.io-gateway-controller}}
`)
	r.start()
	r.Apply(t, gateway(apart, "web", "", "")+gateway(apart, "thief", ", annotations: {gateway.istio.io/service-account: admin}", "")+
		gateway(apart, "pay", "", "")+gateway(apart, "first", ", annotations: {gateway.istio.io/service-account: shared}", ""))
	r.event(apart, "web", "ObjectOfAnotherOwner", "Service web-istio was not made for this Gateway")
	r.event(apart, "thief", "ObjectOfAnotherOwner", "ServiceAccount admin was not made for this Gateway")
	r.event(apart, "pay", "ObjectOfAnotherOwner", "ServiceAccount pay-istio was not made for this Gateway")
	r.has(apart, "web-istio", standard...)
	r.hasPorts(apart, "web-istio", "1234/TCP")
	r.has(apart, "thief-istio")
	r.has(apart, "pay-istio", "ServiceAccount")
	r.has(apart, "first-istio", "Deployment", "Service")
	// The account of one Gateway is none for another.
	r.Apply(t, gateway(apart, "second", ", annotations: {gateway.istio.io/service-account: shared}", ""))
	r.event(apart, "second", "ObjectOfAnotherOwner", "ServiceAccount shared was not made for this Gateway")
	r.has(apart, "second-istio")
}

// TestDefinitionsMayComeLater: a cluster without the Gateway API is no trouble, and neither is one whose definitions
// go.
func TestDefinitionsMayComeLater(t *testing.T) {
	t.Parallel()
	r := &rig{Server: kubeapi.Start(t, kubeapi.Options{}), t: t}
	r.Apply(t, r.fairlead("manifest", "generate", "--set", "profile=minimal"))
	r.prepare()
	d := r.start()
	r.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "standard"))
	r.classes()
	r.Apply(t, gateway(apart, "web", "", ""))
	r.has(apart, "web-istio", standard...)
	if n := d.metric(t, "fairlead_gateways_watch_failures_total"); n != 0 {
		t.Errorf("%v watches have failed", n)
	}
	if log := d.Log(); strings.Contains(log, `"level":"WARN"`) || strings.Contains(log, `"level":"ERROR"`) {
		t.Errorf("the log warns:\n%s", log)
	}
}

// replicas waits until a Deployment has so many.
func (r *rig) replicas(name string, want int32) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		var dep appsv1.Deployment
		r.into("Deployment", apart, name, &dep)
		if got := *dep.Spec.Replicas; got != want {
			return fmt.Errorf("%s has %d replicas, want %d", name, got, want)
		}
		return nil
	})
}

// label changes the labels of a namespace, which it makes if there is none.
func (r *rig) label(namespace, patch string) {
	r.t.Helper()
	r.namespace(namespace, nil)
	_, err := r.Client(r.t).CoreV1().Namespaces().Patch(r.t.Context(), namespace, types.MergePatchType,
		[]byte(`{"metadata":{"labels":`+patch+`}}`), metav1.PatchOptions{})
	testkit.NoError(r.t, err)
}
