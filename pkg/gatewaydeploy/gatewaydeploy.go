// Package gatewaydeploy says what the Gateways of Kubernetes' Gateway API are deployed as: Classes and Controllers
// which are the mesh's, Wanted which of them, Name and Ports with which names and ports, Check which overlays are
// allowed. It reads and writes nothing. fairlead-gateways makes the objects by it, and config-watcher tells by it in a
// Gateway's status whether they can be made.
package gatewaydeploy

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// Labels and annotations, in Istio's and the Gateway API's words.
const (
	// ManagedLabel marks what is made for a Gateway; its value is ManagedValue.
	ManagedLabel = "gateway.istio.io/managed"
	// NameLabel and ClassLabel name the Gateway and its class by LabelValue. NameLabel is what selects a Gateway's
	// Pods.
	NameLabel  = gatewayv1.GatewayNameLabelKey
	ClassLabel = gatewayv1.GatewayClassNameLabelKey
	// DefaultsLabel of a ConfigMap in the root namespace names the class whose Gateways it has overlays for.
	DefaultsLabel = "gateway.istio.io/defaults-for-class"
	// ServiceTypeAnnotation of a Gateway is the type of its Service.
	ServiceTypeAnnotation = "networking.istio.io/service-type"
	// NameAnnotation of a Gateway is the name of its Deployment and Service, in place of Name's.
	NameAnnotation = "gateway.istio.io/name-override"
	// AccountAnnotation of a Gateway is the name of its service account, in place of its Deployment's.
	AccountAnnotation = "gateway.istio.io/service-account"
)

// StatusPort is the port that every Gateway's Service has beside those of its listeners: it tells load balancers
// whether a Pod is ready.
const StatusPort = 15021

// maxName is the longest name of a Service, and the longest value of a label.
const maxName = 63

// ManagedValue is the value of ManagedLabel by a class's controllerName.
func ManagedValue(controller gatewayv1.GatewayController) string {
	return strings.ReplaceAll(string(controller), "/", "-")
}

// Wanted reports whether a Gateway of a class that is Managed is deployed: it is not if spec.addresses names by
// Hostname a Service that is there already, or has more addresses than one.
func Wanted(gw *gatewayv1.Gateway) bool {
	switch len(gw.Spec.Addresses) {
	case 0:
		return true
	case 1:
		t := gw.Spec.Addresses[0].Type
		return t == nil || *t == gatewayv1.IPAddressType
	}
	return false
}

// Address is the IP address that a Gateway asks for; "" is none.
func Address(gw *gatewayv1.Gateway) string {
	if len(gw.Spec.Addresses) == 1 && Wanted(gw) {
		return gw.Spec.Addresses[0].Value
	}
	return ""
}

// Name is the name of a Gateway's Deployment and Service without NameAnnotation: GATEWAY-CLASS if a Service may have
// that name, and otherwise as much of it as fits with a hash of both.
func Name(gateway, class string) string {
	name := gateway + "-" + class
	if len(validation.IsDNS1035Label(name)) == 0 {
		return name
	}
	readable := strings.ReplaceAll(name, ".", "-")
	if readable[0] < 'a' || readable[0] > 'z' {
		readable = "gateway-" + readable
	}
	return cut(readable, gateway+"/"+class)
}

// LabelValue is the value of a label that has a name: the name itself if it fits, and otherwise as much of it as fits
// with a hash.
func LabelValue(name string) string {
	if len(name) <= maxName {
		return name
	}
	return cut(name, name)
}

// cut shortens a text and ends it with a hash of what it is about.
func cut(text, of string) string {
	sum := sha256.Sum256([]byte(of))
	end := "-" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:5]))
	return strings.TrimRight(text[:min(len(text), maxName-len(end))], "-.") + end
}

// Names are what the objects of a Gateway are called.
type Names struct {
	// Deployment is also the name of the Service, the HorizontalPodAutoscaler and the PodDisruptionBudget.
	Deployment, ServiceAccount string
}

// NamesOf returns the names of a Gateway's objects, by its annotations if it has them.
func NamesOf(gw *gatewayv1.Gateway) (Names, error) {
	name := Name(gw.Name, string(gw.Spec.GatewayClassName))
	n := Names{Deployment: cmp.Or(gw.Annotations[NameAnnotation], name), ServiceAccount: cmp.Or(gw.Annotations[AccountAnnotation], name)}
	if problems := validation.IsDNS1035Label(n.Deployment); len(problems) > 0 {
		return n, fmt.Errorf("annotation %s: %q is no name of a Service: %s; choose another", NameAnnotation, n.Deployment, problems[0])
	}
	if problems := validation.IsDNS1123Subdomain(n.ServiceAccount); len(problems) > 0 {
		return n, fmt.Errorf("annotation %s: %q is no name of a service account: %s; choose another", AccountAnnotation, n.ServiceAccount,
			problems[0])
	}
	for annotation, name := range map[string]string{NameAnnotation: n.Deployment, AccountAnnotation: n.ServiceAccount} {
		// Templates write names as they are.
		var read any
		if err := yaml.Unmarshal([]byte(name), &read); err != nil || read != any(name) {
			return n, fmt.Errorf("annotation %s: %q means something else in YAML; choose another", annotation, name)
		}
	}
	return n, nil
}

// serviceTypes are those that a Gateway's Service may have.
var serviceTypes = []string{
	string(corev1.ServiceTypeLoadBalancer),
	string(corev1.ServiceTypeNodePort),
	string(corev1.ServiceTypeClusterIP),
}

// ServiceType is the type of a Gateway's Service, LoadBalancer unless its annotation says otherwise. An overlay may
// change it.
func ServiceType(gw *gatewayv1.Gateway) (corev1.ServiceType, error) {
	t := cmp.Or(gw.Annotations[ServiceTypeAnnotation], serviceTypes[0])
	if !slices.Contains(serviceTypes, t) {
		return "", fmt.Errorf("annotation %s: %q is not one of %s; choose one of these", ServiceTypeAnnotation, t,
			strings.Join(serviceTypes, ", "))
	}
	return corev1.ServiceType(t), nil
}

// CheckGateway says what of a Gateway, beside the ConfigMaps that Check judges, keeps it from being deployed; nil if
// nothing does.
func CheckGateway(gw *gatewayv1.Gateway) error {
	if _, err := NamesOf(gw); err != nil {
		return err
	}
	if _, err := ServiceType(gw); err != nil {
		return err
	}
	_, err := Parameters(gw)
	return err
}

// Parameters is the name of the ConfigMap with a Gateway's overlays, in its namespace; "" if it has none.
func Parameters(gw *gatewayv1.Gateway) (string, error) {
	if gw.Spec.Infrastructure == nil || gw.Spec.Infrastructure.ParametersRef == nil {
		return "", nil
	}
	ref := gw.Spec.Infrastructure.ParametersRef
	if ref.Group != "" || ref.Kind != "ConfigMap" {
		kind := string(ref.Kind)
		if ref.Group != "" {
			kind += "." + string(ref.Group)
		}
		return "", fmt.Errorf(
			`spec.infrastructure.parametersRef: kind %s is none that parameters are read from; use group "" and kind ConfigMap`,
			kind,
		)
	}
	return ref.Name, nil
}

// ConfigMaps are those with a Gateway's overlays, in the order in which they are laid on: defaults, if that is not the
// zero name, and the Gateway's own. CheckGateway has passed the Gateway.
func ConfigMaps(gw *gatewayv1.Gateway, defaults types.NamespacedName) (out []types.NamespacedName) {
	if defaults != (types.NamespacedName{}) {
		out = append(out, defaults)
	}
	if own, err := Parameters(gw); err == nil && own != "" {
		out = append(out, types.NamespacedName{Namespace: gw.Namespace, Name: own})
	}
	return out
}

// CheckConfigMap judges one of ConfigMaps by its name as Check does; found is false if it is not there.
func CheckConfigMap(name types.NamespacedName, data map[string]string, found bool) error {
	if !found {
		return fmt.Errorf("spec.infrastructure.parametersRef: there is no ConfigMap %s; create it, or remove the reference", name)
	}
	return Check("ConfigMap "+name.String(), data)
}

// Allows reports whether a Gateway takes the listeners of ListenerSets of a namespace with these labels.
func Allows(gw *gatewayv1.Gateway, namespace string, of map[string]string) bool {
	allowed := gw.Spec.AllowedListeners
	if allowed == nil || allowed.Namespaces == nil || allowed.Namespaces.From == nil {
		return false
	}
	switch *allowed.Namespaces.From {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return namespace == gw.Namespace
	case gatewayv1.NamespacesFromSelector:
		selector, err := metav1.LabelSelectorAsSelector(allowed.Namespaces.Selector)
		return err == nil && allowed.Namespaces.Selector != nil && selector.Matches(labels.Set(of))
	}
	return false
}

// Parent is the Gateway of a ListenerSet, and whether it names one.
func Parent(set *gatewayv1.ListenerSet) (namespace, name string, ok bool) {
	ref := set.Spec.ParentRef
	if ref.Group != nil && *ref.Group != gatewayv1.GroupName || ref.Kind != nil && *ref.Kind != "Gateway" {
		return "", "", false
	}
	namespace = set.Namespace
	if ref.Namespace != nil {
		namespace = string(*ref.Namespace)
	}
	return namespace, string(ref.Name), true
}

// Ports are those of a Gateway's Service: StatusPort, and one for each port and transport of the listeners of the
// Gateway and of the ListenerSets, which the caller has asked Allows about. A listener of a protocol that nothing here
// serves has none.
func Ports(gw *gatewayv1.Gateway, sets []*gatewayv1.ListenerSet) []corev1.ServicePort {
	var out []corev1.ServicePort
	names, taken := map[string]bool{}, map[string]bool{}
	add := func(name string, port int32, transport corev1.Protocol, application string) {
		if key := fmt.Sprint(port, transport); !taken[key] {
			taken[key] = true
			out = append(out, corev1.ServicePort{Name: portName(name, port, names), Port: port, Protocol: transport, AppProtocol: &application})
		}
	}
	listener := func(name gatewayv1.SectionName, port gatewayv1.PortNumber, protocol gatewayv1.ProtocolType) {
		switch protocol {
		case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType, gatewayv1.TCPProtocolType:
			add(string(name), port, corev1.ProtocolTCP, strings.ToLower(string(protocol)))
		case gatewayv1.UDPProtocolType:
			add(string(name), port, corev1.ProtocolUDP, "udp")
		}
	}
	add("status-port", StatusPort, corev1.ProtocolTCP, "tcp")
	for _, l := range gw.Spec.Listeners {
		listener(l.Name, l.Port, l.Protocol)
	}
	for _, set := range byAge(sets) {
		for _, l := range set.Spec.Listeners {
			listener(l.Name, l.Port, l.Protocol)
		}
	}
	return out
}

// byAge sorts ListenerSets as the Gateway API ranks them.
func byAge(sets []*gatewayv1.ListenerSet) []*gatewayv1.ListenerSet {
	return slices.SortedFunc(slices.Values(sets), func(a, b *gatewayv1.ListenerSet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// portName is a listener's name as a Service may have it, which no other port has.
func portName(listener string, port int32, taken map[string]bool) string {
	name := strings.Trim(strings.ReplaceAll(listener, ".", "-"), "-")
	if len(name) > maxName {
		name = strings.TrimRight(name[:maxName], "-")
	}
	if name == "" || taken[name] {
		end := fmt.Sprintf("-%d", port)
		name = strings.Trim(name[:min(len(name), maxName-len(end)-len("-udp"))], "-") + end
		name = strings.TrimLeft(name, "-")
	}
	for suffix := ""; ; suffix += "x" {
		if !taken[name+suffix] {
			taken[name+suffix] = true
			return name + suffix
		}
	}
}
