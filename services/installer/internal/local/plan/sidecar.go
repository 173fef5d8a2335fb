package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/describe"
	"fairlead.dev/services/installer/internal/local/meshfile"
)

// ManagedByLabel marks the objects that `fairlead up` writes.
const (
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "fairlead-up"
)

// SidecarName is the name of the Pod's generated Sidecar.
func (p *Pod) SidecarName() string { return "fairlead-" + p.Name }

// userSidecar returns the Sidecar of the mesh files whose workloadSelector selects the Pod, the first in the order of
// the files; nil if there is none.
func userSidecar(m *meshfile.Mesh, p *Pod) *networkingv1.Sidecar {
	for _, s := range m.Sidecars {
		if s.Namespace == p.Namespace && selects(s.Spec.GetWorkloadSelector().GetLabels(), p.Labels) {
			return s
		}
	}
	return nil
}

// userEndpoint returns the defaultEndpoint that a user's Sidecar has for a port.
func userEndpoint(s *networkingv1.Sidecar, number uint16) (netip.AddrPort, bool) {
	for _, l := range s.Spec.GetIngress() {
		if l.GetPort().GetNumber() == uint32(number) {
			addr, err := netip.ParseAddrPort(l.GetDefaultEndpoint())
			return addr, err == nil
		}
	}
	return netip.AddrPort{}, false
}

// defaultEgress returns the egress hosts of a generated Sidecar: those of the user's Sidecar without workloadSelector
// in the namespace, else in the root namespace, else all.
func defaultEgress(m *meshfile.Mesh, namespace string) []string {
	for _, ns := range []string{namespace, contract.SystemNamespace} {
		for _, s := range m.Sidecars {
			if s.Namespace != ns || len(s.Spec.GetWorkloadSelector().GetLabels()) > 0 {
				continue
			}
			var hosts []string
			for _, l := range s.Spec.GetEgress() {
				hosts = append(hosts, l.GetHosts()...)
			}
			if len(hosts) > 0 {
				return hosts
			}
		}
	}
	return []string{"*/*"}
}

// sidecar generates the Sidecar of a Pod. No traffic is redirected here, so the Sidecar has listeners on the Pod's own
// address, and an HTTP forward proxy whose URL, the result, the application gets as HTTP_PROXY. If a user's Sidecar
// selects the Pod, nothing is generated.
func (w *planner) sidecar(p *Pod, targets []targetPort, appPorts map[uint16]netip.AddrPort) (proxyURL string, err error) {
	if own := userSidecar(w.mesh, p); own != nil {
		return userProxyURL(own, p), nil
	}
	spec := &networkingv1.Sidecar{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.istio.io/v1", Kind: "Sidecar"},
		ObjectMeta: metav1.ObjectMeta{
			Name: p.SidecarName(), Namespace: p.Namespace,
			Labels: map[string]string{ManagedByLabel: ManagedBy},
		},
	}
	spec.Spec.WorkloadSelector = &networkingv1alpha3.WorkloadSelector{Labels: map[string]string{InstanceLabel: p.Name}}
	for _, t := range targets {
		spec.Spec.Ingress = append(spec.Spec.Ingress, &networkingv1alpha3.IstioIngressListener{
			Port: &networkingv1alpha3.SidecarPort{Number: uint32(t.number), Name: cmp.Or(t.name, fmt.Sprintf("port-%d", t.number)),
				Protocol: t.protocol},
			Bind:            p.IP.String(),
			CaptureMode:     networkingv1alpha3.CaptureMode_NONE,
			DefaultEndpoint: appPorts[t.number].String(),
		})
	}
	spec.Spec.Egress = []*networkingv1alpha3.IstioEgressListener{{
		Port:        &networkingv1alpha3.SidecarPort{Number: ProxyPort, Name: "http-proxy", Protocol: "HTTP_PROXY"},
		Bind:        p.IP.String(),
		CaptureMode: networkingv1alpha3.CaptureMode_NONE,
		Hosts:       defaultEgress(w.mesh, p.Namespace),
	}}
	if p.Sidecar, err = json.Marshal(spec); err != nil {
		return "", fmt.Errorf("sidecar of %s: %w", p.ID(), err)
	}
	return "http://" + netip.AddrPortFrom(p.IP, ProxyPort).String(), nil
}

// example is a command that calls the first HTTP Service as the first Pod with a generated Sidecar.
func example(m *meshfile.Mesh, pods []*Pod) string {
	for _, p := range pods {
		for _, s := range m.Services {
			for _, port := range s.Spec.Ports {
				if p.Sidecar != nil && len(s.Spec.Selector) > 0 && describe.Protocol(port) == "HTTP" {
					return fmt.Sprintf("curl --proxy http://%s:%d http://%s.%s:%d/   (a call by Pod %s)", p.IP, ProxyPort, s.Name, s.Namespace, port.Port,
						p.ID())
				}
			}
		}
	}
	return ""
}

// userProxyURL is the URL of the forward proxy that a user's Sidecar opens; empty if it opens none.
func userProxyURL(s *networkingv1.Sidecar, p *Pod) string {
	for _, l := range s.Spec.GetEgress() {
		if strings.EqualFold(l.GetPort().GetProtocol(), "HTTP_PROXY") {
			return fmt.Sprintf("http://%s:%d", cmp.Or(l.GetBind(), p.IP.String()), l.GetPort().GetNumber())
		}
	}
	return ""
}
