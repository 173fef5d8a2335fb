package manifests_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/services/installer/internal/install/profile"
)

// eastWest is an IstioOperator with the fields of those that Istio's gen-eastwest-gateway.sh writes. Its real output is
// what tests/oracle/install installs.
const eastWest = `
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
metadata: {name: eastwest}
spec:
  revision: ""
  profile: empty
  components:
    ingressGateways:
      - name: istio-eastwestgateway
        label: {istio: eastwestgateway, app: istio-eastwestgateway, topology.istio.io/network: n1}
        enabled: true
        k8s:
          env: [{name: ISTIO_META_REQUESTED_NETWORK_VIEW, value: n1}]
          service:
            ports:
              - {name: status-port, port: 15021, targetPort: 15021}
              - {name: tls, port: 15443, targetPort: 15443}
              - {name: tls-istiod, port: 15012, targetPort: 15012}
              - {name: tls-webhook, port: 15017, targetPort: 15017}
  values:
    gateways: {istio-ingressgateway: {injectionTemplate: gateway}}
    global: {network: n1}
`

// renderedSpec are the objects of an IstioOperator.
func renderedSpec(t *testing.T, pkg *profile.Package, spec string) []runtime.Object {
	t.Helper()
	file := filepath.Join(t.TempDir(), "operator.yaml")
	if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	result := generate(t, pkg, "", []string{file})
	if len(result.Warnings) > 0 {
		t.Errorf("warnings %q", result.Warnings)
	}
	objects, err := decode(text(t, withoutCRDs(result.Objects)))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// find returns the object of a type and name.
func find[T interface {
	runtime.Object
	GetName() string
}](t *testing.T, objects []runtime.Object, name string) T {
	t.Helper()
	for _, o := range objects {
		if found, ok := o.(T); ok && found.GetName() == name {
			return found
		}
	}
	var none T
	t.Fatalf("no %T %s", none, name)
	return none
}

// TestEastWestGateway holds the gateway that Istio's script describes: of a network, or of a single cluster.
func TestEastWestGateway(t *testing.T) {
	pkg := open(t)
	for name, spec := range map[string]string{
		"network": eastWest,
		"single cluster": strings.NewReplacer(", topology.istio.io/network: n1", "", "global: {network: n1}", "global: {}",
			"env: [{name: ISTIO_META_REQUESTED_NETWORK_VIEW, value: n1}]", "env: []").Replace(eastWest),
	} {
		t.Run(name, func(t *testing.T) {
			objects := renderedSpec(t, pkg, spec)
			service, deployment := find[*corev1.Service](t, objects, "istio-eastwestgateway"),
				find[*appsv1.Deployment](t, objects, "istio-eastwestgateway")
			labels := map[string]string{"istio": "eastwestgateway", "app": "istio-eastwestgateway"}
			network := ""
			if name == "network" {
				labels["topology.istio.io/network"], network = "n1", "n1"
			}
			if !maps.Equal(service.Spec.Selector, labels) || service.Labels["topology.istio.io/network"] != network {
				t.Errorf("the Service selects %v and is of network %q, want %v", service.Spec.Selector, service.Labels["topology.istio.io/network"],
					labels)
			}
			var ports []int32
			for _, p := range service.Spec.Ports {
				ports = append(ports, p.Port)
			}
			if service.Spec.Type != corev1.ServiceTypeLoadBalancer || !slices.Equal(ports, []int32{15021, 15443, 15012, 15017}) {
				t.Errorf("the Service is %s with ports %v", service.Spec.Type, ports)
			}
			variables := map[string]string{}
			for _, e := range deployment.Spec.Template.Spec.Containers[0].Env {
				variables[e.Name] = e.Value
			}
			if variables["ISTIO_META_NETWORK"] != network || variables["ISTIO_META_REQUESTED_NETWORK_VIEW"] != network {
				t.Errorf("variables %v", variables)
			}
		})
	}
}

// TestAnIngressGatewayIsNoNetworkGateway: global.network says where a gateway is, and a label what it leads into.
func TestAnIngressGatewayIsNoNetworkGateway(t *testing.T) {
	objects := renderedSpec(t, open(t), "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {profile: empty, components: "+
		"{ingressGateways: [{name: edge, enabled: true}]}, values: {global: {network: n1}}}\n")
	if labels := find[*corev1.Service](t, objects, "edge").Labels; labels["topology.istio.io/network"] != "" {
		t.Errorf("labels %v", labels)
	}
	if labels := find[*appsv1.Deployment](t, objects, "edge").Spec.Template.Labels; labels["topology.istio.io/network"] != "n1" {
		t.Errorf("labels of the Pods %v", labels)
	}
}

// TestOtherInjectionTemplatesAreRefused: a gateway of the chart is made without one.
func TestOtherInjectionTemplatesAreRefused(t *testing.T) {
	_, err := try(open(t), "empty", strings.Replace(eastWest, "injectionTemplate: gateway", "injectionTemplate: own", 1))
	if err == nil || !strings.Contains(err.Error(), "inject.istio.io/templates") {
		t.Errorf("error %v", err)
	}
}

// TestServiceIstiodLeadsToTheInjector: expose-istiod.yaml sends API servers of other clusters to port 443 of Service
// istiod. Kubernetes gives a Pod the ports that it has by name.
func TestServiceIstiodLeadsToTheInjector(t *testing.T) {
	pkg := open(t)
	for _, p := range []struct{ profile, server, suffix, set string }{
		{"minimal", "xds-server", "", "revision="}, {"minimal", "xds-server-canary", "-canary", "revision=canary"},
		{"compact", "fairlead", "", "revision="},
	} {
		objects, err := decode(text(t, withoutCRDs(generate(t, pkg, p.profile, nil, p.set).Objects)))
		if err != nil {
			t.Fatal(err)
		}
		istiod := find[*corev1.Service](t, objects, "istiod"+p.suffix)
		leads := map[int32][]string{}
		for _, o := range objects {
			d, ok := o.(*appsv1.Deployment)
			if !ok || !selects(istiod.Spec.Selector, d.Spec.Template.Labels) {
				continue
			}
			for _, port := range istiod.Spec.Ports {
				for _, c := range d.Spec.Template.Spec.Containers {
					if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.TargetPort.StrVal }) {
						leads[port.Port] = append(leads[port.Port], d.Name+"/"+c.Name)
					}
				}
			}
		}
		server := []string{p.server + "/xds-server"}
		want := map[int32][]string{443: {"injector" + p.suffix + "/injector"}, 15012: server, 15014: server}
		if !maps.EqualFunc(leads, want, slices.Equal) {
			t.Errorf("%s%s: Service istiod leads to %v, want %v", p.profile, p.suffix, leads, want)
		}
	}
	apart, err := decode(text(t, withoutCRDs(generate(t, pkg, "minimal", nil, "components.injector.namespace=apart").Objects)))
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range find[*corev1.Service](t, apart, "istiod").Spec.Ports {
		if port.Port == 443 {
			t.Error("Service istiod has a port for an injector in another namespace, which it cannot lead to")
		}
	}
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}
