package gatewaystatus

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/authz"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/object"
)

// closedPorts finds listeners of UDP that take no datagrams because AuthorizationPolicies decide about them.
func (a *analysis) closedPorts(cfg Config, resources map[object.Key]*configv1.GatewayAPIConfig) {
	var policies []*object.Object
	for _, k := range slices.SortedFunc(maps.Keys(a.objects), object.Key.Compare) {
		if _, ok := a.objects[k].Body.(*security.AuthorizationPolicy); ok {
			policies = append(policies, a.objects[k])
		}
	}
	if len(policies) == 0 {
		return
	}
	for _, k := range slices.SortedFunc(maps.Keys(resources), object.Key.Compare) {
		list := resources[k].GetListeners()
		for _, l := range list.GetListeners() {
			if protocolOf(l) != udp {
				continue
			}
			for _, s := range list.GetSelections() {
				port := a.targetPort(s, l.GetPort())
				by := rulesOf(cfg, policies, s).Datagrams(port)
				if len(by) == 0 {
					continue
				}
				a.at = a.objects[k]
				a.add(finding.DatagramsDropped, listenerField(a.at, l.GetName()),
					fmt.Sprintf("AuthorizationPolicy %s decides about datagrams to port %d of the workloads, and policies cannot be applied to UDP",
						strings.Join(by, ", "), port), "limit its rules to other ports, or allow all to this one")
				break
			}
		}
	}
}

// rulesOf are the rules of the policies that apply to the workloads of a selection, by the labels that all have.
func rulesOf(cfg Config, policies []*object.Object, s *configv1.WorkloadSelection) *authz.Set {
	w := authz.Workload{Namespace: s.GetNamespace(), Labels: s.GetLabels(), RootNamespace: cfg.MeshNamespace}
	all := []authz.Workload{w}
	for _, known := range cfg.Workloads {
		if known.Namespace == s.GetNamespace() && object.HasLabels(known.Labels, s.GetLabels()) {
			w.Labels = known.Labels
			all = append(all, w)
		}
	}
	var apply []authz.Policy
	for _, o := range policies {
		spec := o.Body.(*security.AuthorizationPolicy)
		if slices.ContainsFunc(all, func(w authz.Workload) bool { return w.Applies(o.Key.Namespace, spec) }) {
			apply = append(apply, authz.Policy{Namespace: o.Key.Namespace, Name: o.Key.Name, Spec: spec, DryRun: authz.DryRun(o.Annotations)})
		}
	}
	return authz.Compile(apply, authz.Options{}).Connections()
}

// targetPort is the port that the workloads of a selection listen on for a port of UDP of a Service that selects them.
func (a *analysis) targetPort(s *configv1.WorkloadSelection, number uint32) uint32 {
	for _, o := range a.objects {
		service, ok := o.Body.(*corev1.Service)
		if !ok || o.Key.Namespace != s.GetNamespace() || !maps.Equal(service.Spec.Selector, s.GetLabels()) {
			continue
		}
		for _, p := range service.Spec.Ports {
			if p.Protocol == corev1.ProtocolUDP && uint32(p.Port) == number && p.TargetPort.IntVal > 0 { //nolint:gosec // a port
				return uint32(p.TargetPort.IntVal) //nolint:gosec // a port
			}
		}
	}
	return number
}
