package cni

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/cni/kube"
	"fairlead.dev/services/node-agent/internal/cni/plugin"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/redirect"
)

// What injection writes.
const (
	proxyContainer   = "istio-proxy"
	initContainer    = "istio-init"
	statusAnnotation = "sidecar.istio.io/status"
	disabled         = "DISABLE_ENVOY"
)

// decide says whether a Pod gets rules, as Istio's plugin does, and which; if it gets none, why. It returns an error if
// what the Pod says of its rules is wrong.
func decide(p *kube.Pod, nameservers []netip.Addr) (answer plugin.Answer, why string, err error) {
	containers := slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
	named := func(name string) int {
		return slices.IndexFunc(containers, func(c kube.Container) bool { return c.Name == name })
	}
	inject := p.Metadata.Labels[contract.InjectLabel]
	if _, found := p.Metadata.Labels[contract.InjectLabel]; !found {
		inject = p.Metadata.Annotations[contract.InjectLabel]
	}
	at := named(proxyContainer)
	switch {
	case p.Spec.HostNetwork:
		return answer, "it is in the node's network", nil
	case named(initContainer) >= 0:
		return answer, "its container " + initContainer + " writes rules", nil
	case at < 0:
		return answer, "it has no container " + proxyContainer, nil
	}
	proxy := containers[at]
	if len(proxy.Args) > 1 && proxy.Args[0] == "proxy" && proxy.Args[1] != "sidecar" {
		return answer, "its proxy is a " + proxy.Args[1], nil
	}
	if on, err := strconv.ParseBool(inject); err == nil && !on {
		return answer, contract.InjectLabel + " is false", nil
	}
	if _, found := p.Metadata.Annotations[statusAnnotation]; !found {
		return answer, "it has no annotation " + statusAnnotation, nil
	}
	w := config.Workload{Annotations: p.Metadata.Annotations, Nameservers: nameservers}
	for _, e := range proxy.Env {
		if off, err := strconv.ParseBool(e.Value); e.Name == disabled && err == nil && off {
			return answer, disabled + " is true", nil
		}
		w.Environ = append(w.Environ, e.Name+"="+e.Value)
	}
	id := func(own, pods *int64) int64 { return *cmp.Or(own, pods, new(int64)) }
	w.UID = id(proxy.SecurityContext.RunAsUser, p.Spec.SecurityContext.RunAsUser)
	w.GID = id(proxy.SecurityContext.RunAsGroup, p.Spec.SecurityContext.RunAsGroup)
	raw, err := config.RedirectOf(w)
	if err != nil {
		return answer, "", fmt.Errorf("annotations or environment of the Pod: %w", err)
	}
	if _, err := redirect.Parse(raw); err != nil {
		return answer, "", fmt.Errorf("annotations or environment of the Pod, which stand for the flags of node-agent init: %w", err)
	}
	return plugin.Answer{Redirect: true, Options: raw}, "", nil
}
