package gatewaydeploy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
)

func gateway(change func(*gatewayv1.Gateway)) *gatewayv1.Gateway {
	gw := &gatewayv1.Gateway{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec:       gatewayv1.GatewaySpec{GatewayClassName: "istio"},
	}
	if change != nil {
		change(gw)
	}
	return gw
}

func TestNamesAreIstiosOrFitAndDiffer(t *testing.T) {
	if got := gatewaydeploy.Name("web", "istio"); got != "web-istio" {
		t.Errorf("got %s", got)
	}
	long := strings.Repeat("a", 253)
	seen := map[string]string{}
	for _, name := range []string{
		"web", "a.b", "a-b", "1web", long, long[:252] + "b", strings.Repeat("a.", 100) + "a", strings.Repeat("a", 57),
		strings.Repeat("a", 58)} {
		for _, class := range []string{"istio", "fairlead", "a.class"} {
			got := gatewaydeploy.Name(name, class)
			if problems := validation.IsDNS1035Label(got); len(problems) > 0 {
				t.Errorf("Name(%s, %s) = %s: %v", name, class, got, problems)
			}
			if other, taken := seen[got]; taken {
				t.Errorf("%s is the name of %s and of %s/%s", got, other, name, class)
			}
			seen[got] = name + "/" + class
		}
		if problems := validation.IsValidLabelValue(gatewaydeploy.LabelValue(name)); len(problems) > 0 {
			t.Errorf("LabelValue(%s): %v", name, problems)
		}
	}
	if got := gatewaydeploy.LabelValue("a.b"); got != "a.b" {
		t.Errorf("LabelValue(a.b) = %s", got)
	}
	if gatewaydeploy.LabelValue(long) == gatewaydeploy.LabelValue(long[:252]+"b") {
		t.Error("two names have one label")
	}
}

func TestAnnotationsNameObjectsThatKubernetesCouldHave(t *testing.T) {
	with := func(key, value string) *gatewayv1.Gateway {
		return gateway(func(gw *gatewayv1.Gateway) { gw.Annotations = map[string]string{key: value} })
	}
	names, err := gatewaydeploy.NamesOf(with(gatewaydeploy.NameAnnotation, "edge"))
	if want := (gatewaydeploy.Names{Deployment: "edge", ServiceAccount: "web-istio"}); err != nil || names != want {
		t.Errorf("%v, %v", names, err)
	}
	names, err = gatewaydeploy.NamesOf(with(gatewaydeploy.AccountAnnotation, "edge"))
	if want := (gatewaydeploy.Names{Deployment: "web-istio", ServiceAccount: "edge"}); err != nil || names != want {
		t.Errorf("%v, %v", names, err)
	}
	for _, gw := range []*gatewayv1.Gateway{
		with(gatewaydeploy.NameAnnotation, "a.b"), with(gatewaydeploy.NameAnnotation, strings.Repeat("a", 64)),
		with(gatewaydeploy.AccountAnnotation, "A"), with(gatewaydeploy.NameAnnotation, "null"), with(gatewaydeploy.AccountAnnotation, "1e3"),
		with(gatewaydeploy.ServiceTypeAnnotation, "ExternalName"),
		gateway(func(gw *gatewayv1.Gateway) {
			gw.Spec.Infrastructure = &gatewayv1.GatewayInfrastructure{ParametersRef: &gatewayv1.LocalParametersReference{Kind: "Secret", Name: "a"}}
		})} {
		if err := gatewaydeploy.CheckGateway(gw); err == nil {
			t.Errorf("%v %v is accepted", gw.Annotations, gw.Spec.Infrastructure)
		}
	}
	if err := gatewaydeploy.CheckGateway(with(gatewaydeploy.ServiceTypeAnnotation, "NodePort")); err != nil {
		t.Error(err)
	}
}

func TestAGatewayWithTheHostnameOfAServiceIsNotDeployed(t *testing.T) {
	ip, host := gatewayv1.IPAddressType, gatewayv1.HostnameAddressType
	at := func(all ...gatewayv1.GatewaySpecAddress) *gatewayv1.Gateway {
		return gateway(func(gw *gatewayv1.Gateway) { gw.Spec.Addresses = all })
	}
	for want, all := range map[bool][]*gatewayv1.Gateway{
		true: {at(), at(gatewayv1.GatewaySpecAddress{Value: "192.0.2.1"}), at(gatewayv1.GatewaySpecAddress{Type: &ip, Value: "192.0.2.1"})},
		false: {at(gatewayv1.GatewaySpecAddress{Type: &host, Value: "edge"}),
			at(gatewayv1.GatewaySpecAddress{Type: &ip, Value: "192.0.2.1"}, gatewayv1.GatewaySpecAddress{Type: &ip, Value: "192.0.2.2"})},
	} {
		for _, gw := range all {
			if got := gatewaydeploy.Wanted(gw); got != want {
				t.Errorf("%v: %v", gw.Spec.Addresses, got)
			}
		}
	}
	if got := gatewaydeploy.Address(at(gatewayv1.GatewaySpecAddress{Value: "192.0.2.1"})); got != "192.0.2.1" {
		t.Errorf("address %q", got)
	}
	for controller, want := range map[gatewayv1.GatewayController]bool{
		"istio.io/gateway-controller": true, "fairlead.dev/gateway-controller": true,
		"istio.io/unmanaged-gateway": false, "example.com/other": false} {
		if gatewaydeploy.Managed(controller) != want {
			t.Errorf("Managed(%s) is %v", controller, !want)
		}
	}
}

func TestListenerSetsAreAllowedByTheirNamespace(t *testing.T) {
	of := func(from gatewayv1.FromNamespaces, selector *metav1.LabelSelector) *gatewayv1.Gateway {
		return gateway(func(gw *gatewayv1.Gateway) {
			gw.Spec.AllowedListeners = &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{From: &from, Selector: selector}}
		})
	}
	team := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	for _, c := range []struct {
		gw        *gatewayv1.Gateway
		namespace string
		labels    map[string]string
		want      bool
	}{
		{gateway(nil), "ns", nil, false},
		{of(gatewayv1.NamespacesFromNone, nil), "ns", nil, false},
		{of(gatewayv1.NamespacesFromSame, nil), "ns", nil, true},
		{of(gatewayv1.NamespacesFromSame, nil), "other", nil, false},
		{of(gatewayv1.NamespacesFromAll, nil), "other", nil, true},
		{of(gatewayv1.NamespacesFromSelector, team), "other", map[string]string{"team": "a"}, true},
		{of(gatewayv1.NamespacesFromSelector, team), "other", nil, false},
		{of(gatewayv1.NamespacesFromSelector, nil), "other", nil, false},
	} {
		if got := gatewaydeploy.Allows(c.gw, c.namespace, c.labels); got != c.want {
			t.Errorf("%v from %s %v: %v", c.gw.Spec.AllowedListeners, c.namespace, c.labels, got)
		}
	}
}

func TestEachPortOfAListenerIsOnceAmongThePorts(t *testing.T) {
	listener := func(name string, port int32, protocol gatewayv1.ProtocolType) gatewayv1.Listener {
		return gatewayv1.Listener{Name: gatewayv1.SectionName(name), Port: port, Protocol: protocol}
	}
	gw := gateway(func(gw *gatewayv1.Gateway) {
		gw.Spec.Listeners = []gatewayv1.Listener{listener("http", 80, "HTTP"), listener("also", 80, "HTTP"), listener("dns", 53, "UDP"),
			listener("dns.tcp", 53, "TCP"), listener("status", 15021, "HTTP"), listener("dns-tcp", 54, "TCP"),
			listener(strings.Repeat("a", 70), 55, "TLS"), listener(strings.Repeat("a", 71), 56, "HTTPS"), listener("no", 57, "example.com/own")}
	})
	set := func(name string, age time.Duration, port int32) *gatewayv1.ListenerSet {
		return &gatewayv1.ListenerSet{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1000, 0).Add(-age))},
			Spec:       gatewayv1.ListenerSetSpec{Listeners: []gatewayv1.ListenerEntry{{Name: "http", Port: port, Protocol: "HTTP"}}},
		}
	}
	var got []string
	names := map[string]bool{}
	for _, p := range gatewaydeploy.Ports(gw, []*gatewayv1.ListenerSet{set("young", 0, 9000), set("old", time.Hour, 9001)}) {
		got = append(got, fmt.Sprintf("%d/%s/%s", p.Port, p.Protocol, *p.AppProtocol))
		if problems := validation.IsDNS1123Label(p.Name); len(problems) > 0 || names[p.Name] {
			t.Errorf("name %s: %v %v", p.Name, problems, names[p.Name])
		}
		names[p.Name] = true
	}
	want := []string{"15021/TCP/tcp", "80/TCP/http", "53/UDP/udp", "53/TCP/tcp", "54/TCP/tcp", "55/TCP/tls", "56/TCP/https", "9001/TCP/http",
		"9000/TCP/http"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, name := range []string{"status-port", "http", "dns", "dns-tcp", "dns-tcp-54"} {
		if !names[name] {
			t.Errorf("no port is called %s: %v", name, slices.Sorted(maps.Keys(names)))
		}
	}
}

func TestInfrastructureGoesBeforeTheGatewaysOwnLabels(t *testing.T) {
	gw := gateway(func(gw *gatewayv1.Gateway) {
		gw.Labels = map[string]string{"own": "1", "istio.io/rev": "canary", "gateway.networking.k8s.io/gateway-name": "other"}
		gw.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "1",
			gatewaydeploy.ServiceTypeAnnotation: "ClusterIP"}
	})
	if got := gatewaydeploy.InfrastructureLabels(gw, gatewaydeploy.Pod); !maps.Equal(got, map[string]string{"own": "1"}) {
		t.Errorf("labels of Pods: %v", got)
	}
	if got := gatewaydeploy.InfrastructureAnnotations(gw, gatewaydeploy.Pod); !maps.Equal(got, map[string]string{"note": "1"}) {
		t.Errorf("annotations of Pods: %v", got)
	}
	gw.Spec.Infrastructure = &gatewayv1.GatewayInfrastructure{
		Labels: map[gatewayv1.LabelKey]gatewayv1.LabelValue{
			"team":                      "a",
			"sidecar.istio.io/inject":   "true",
			"topology.istio.io/network": "n",
		},
		Annotations: map[gatewayv1.AnnotationKey]gatewayv1.AnnotationValue{
			"eks.amazonaws.com/role-arn":    "admin",
			"service.beta.kubernetes.io/lb": "x",
		},
	}
	if got := gatewaydeploy.InfrastructureLabels(gw, gatewaydeploy.Pod); !maps.Equal(got, map[string]string{"team": "a",
		"topology.istio.io/network": "n"}) {
		t.Errorf("labels of Pods: %v", got)
	}
	if got := gatewaydeploy.InfrastructureAnnotations(gw, gatewaydeploy.Object); !maps.Equal(
		got,
		map[string]string{"service.beta.kubernetes.io/lb": "x"},
	) {
		t.Errorf("annotations of the Service: %v", got)
	}
	if got := gatewaydeploy.ReservedInfrastructure(gw); !slices.Equal(
		got,
		[]string{"eks.amazonaws.com/role-arn", "service.beta.kubernetes.io/lb",
			"sidecar.istio.io/inject"},
	) {
		t.Errorf("left out: %v", got)
	}
}
