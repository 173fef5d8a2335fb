package gather

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/pkg/nearest"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/describe"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
)

// service describes the Service.
func (g *gatherer) service(ctx context.Context) error {
	services, err := g.model.Services(g.d.Namespace)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(services, func(s describe.Service) bool { return s.Name == g.d.Name })
	if i < 0 {
		return g.noService(ctx, services)
	}
	return g.describeService(ctx, services[i])
}

// noService is the error about a Service that its namespace has not: where one of this name is, or the nearest name.
func (g *gatherer) noService(ctx context.Context, services []describe.Service) error {
	var elsewhere, near []string
	for _, s := range services {
		near = append(near, s.Name)
	}
	// Who may not read all namespaces gets the answer without the others.
	_ = g.cfg.Mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) error {
		res, err := client.List(ctx, &configv1.ListRequest{Kind: "Service", InForce: true})
		for _, o := range res.GetObjects() {
			if o.GetKey().GetName() == g.d.Name {
				elsewhere = append(elsewhere, o.GetKey().GetNamespace())
			}
		}
		return err
	})
	text := fmt.Sprintf("no Service %s in namespace %s", g.d.Name, g.d.Namespace)
	if len(elsewhere) > 0 {
		slices.Sort(elsewhere)
		return fmt.Errorf("%s; there is one in %s: name it with -n", text, strings.Join(elsewhere, ", "))
	}
	return fmt.Errorf("%s%s; `fairlead config get services -A` lists those of a mesh on one machine, kubectl those of a cluster", text,
		nearest.Hint(g.d.Name, near))
}

// describeService adds a Service to the description.
func (g *gatherer) describeService(ctx context.Context, s describe.Service) error {
	out := Service{Namespace: s.Namespace, Name: s.Name, Host: s.Host, Location: s.Location, Pods: []PodRow{},
		Ports: []Port{}}
	g.relate("Service", s.Namespace, s.Name)
	var behind []runningPod
	var workloads []describe.Workload
	sidecars := 0
	for _, p := range g.pods {
		if !s.Selects(p.workload) {
			continue
		}
		behind, workloads = append(behind, p), append(workloads, p.workload)
		row := PodRow{Name: p.workload.Name, Kind: p.kind}
		if p.kind != "plain" {
			sidecars++
			row.Proxy = "not connected"
			if g.connected(p.workload) != nil {
				row.Proxy = "connected"
			}
		}
		if out.Pods = append(out.Pods, row); g.d.Kind == "Service" && row.Proxy == "not connected" && p.kind != meshclient.Proxyless {
			g.find("error", "ProxyNotConnected", "Pod "+p.workload.Namespace+"/"+p.workload.Name,
				"its proxy is not connected to the control plane; see the log of container istio-proxy")
		}
	}
	object := "Service " + kinds.FullName(s.Namespace, s.Name)
	if g.d.Kind == "Service" && sidecars < len(behind) {
		g.find("warning", "PodWithoutProxy", object, fmt.Sprintf("%d of its %d Pods have no proxy", len(behind)-sidecars, len(behind)))
	}
	if g.view != nil {
		out.SeenBy = g.view.Name()
	}
	var rules []string
	for _, p := range s.Ports {
		port := Port{Port: p.Port, Name: p.Name, TargetPort: p.TargetPort.String(), Protocol: describe.Protocol(p)}
		port.Rules, port.PassedOver = g.rules(ctx, s.Host, p.Port)
		var own []string
		for _, r := range port.Rules {
			if r.Kind == "DestinationRule" {
				own = append(own, nameOf(r))
			}
		}
		rules = append(rules, own...)
		rule, from, err := g.model.ClientTLS(own, uint32(p.Port)) //nolint:gosec // a valid port
		if err != nil {
			return err
		}
		target := targetPort(p, behind)
		var modes []string
		for _, b := range behind {
			all, _, err := g.model.Modes(b.workload)
			if err != nil {
				return err
			}
			mode := describe.ModeOf(all, uint32(target)).Mode //nolint:gosec // a valid port
			if b.kind == "plain" {
				mode = "none"
			}
			if !slices.Contains(modes, mode) {
				modes = append(modes, mode)
			}
			if text := describe.Conflict(mode, rule, b.kind != "plain"); text != "" {
				g.find("error", "MutualTLSConflict", object, fmt.Sprintf("port %d, Pod %s (%s), DestinationRule %s (%s): %s", p.Port, b.workload.Name,
					mode, from, rule, text))
			}
		}
		port.Server, port.ClientFrom = strings.Join(modes, ", "), from
		if len(modes) > 0 {
			port.Client = describe.ClientMode(rule, modes[0], sidecars > 0)
		}
		out.Ports = append(out.Ports, port)
	}
	slices.Sort(rules)
	var err error
	if out.Subsets, err = g.model.Subsets(slices.Compact(rules), workloads); err != nil {
		return err
	}
	for _, sub := range out.Subsets {
		if sub.Pods == 0 {
			g.find("error", "SubsetSelectsNothing", "DestinationRule "+sub.Rule,
				fmt.Sprintf("subset %s selects none of the Pods of %s: requests to it are answered 503; correct its labels, or those of the Pods",
					sub.Name, s.Host))
		}
	}
	if out.Gateways, err = g.model.Exposures(s.Host); err != nil {
		return err
	}
	for _, e := range out.Gateways {
		ns, name, _ := strings.Cut(e.Gateway, "/")
		g.relate("Gateway", ns, name)
		ns, name, _ = strings.Cut(e.VirtualService, "/")
		g.relate("VirtualService", ns, name)
	}
	if out.Routes, err = g.model.Routes(s); err != nil {
		return err
	}
	for _, r := range out.Routes {
		for _, p := range r.Problems {
			g.d.Findings = append(g.d.Findings, Finding{p.Level, p.Code, r.Kind + " " + kinds.FullName(r.Namespace, r.Name), p.Field, p.Message})
		}
	}
	g.d.Services = append(g.d.Services, out)
	return nil
}

// rules asks the viewing proxy's xds-server what routes and clusters of a port were made from.
func (g *gatherer) rules(ctx context.Context, host string, port int32) (from, passed []contract.ExplainedObject) {
	from = []contract.ExplainedObject{}
	if g.view == nil {
		return from, nil
	}
	seen := map[string]bool{}
	add := func(list *[]contract.ExplainedObject, o contract.ExplainedObject) {
		if id := o.Kind + " " + nameOf(o); !seen[id] {
			seen[id] = true
			*list = append(*list, o)
			g.relate(o.Kind, o.Namespace, o.Name)
		}
	}
	var answers []contract.Explanation
	for kind, name := range map[string]string{"virtualhosts": fmt.Sprintf("%s:%d", host, port),
		"clusters": fmt.Sprintf("outbound|%d||%s", port, host)} {
		var e contract.Explanation
		if err := g.view.Ask(ctx, "/debug/why", url.Values{"type": {kind}, "name": {name}}, &e); err != nil {
			if kind == "clusters" {
				g.unknown(fmt.Sprintf("rules of port %d", port), err)
			}
			continue // a TCP port has no virtual host
		}
		answers = append(answers, e)
	}
	shown := func(o contract.ExplainedObject) bool {
		return slices.Contains(describedKinds, o.Kind) || o.Kind == "ServiceEntry"
	}
	for _, e := range answers {
		for _, o := range e.MadeFrom {
			if shown(o) && (o.Kind != "Sidecar" || e.Sidecar == nameOf(o)) {
				add(&from, o)
			}
		}
	}
	for _, e := range answers {
		for _, o := range e.PassedOver {
			if shown(o) {
				add(&passed, o)
			}
		}
	}
	order := func(a, b contract.ExplainedObject) int {
		return strings.Compare(a.Kind+nameOf(a), b.Kind+nameOf(b))
	}
	slices.SortFunc(from, order)
	slices.SortFunc(passed, order)
	return from, passed
}

// targetPort resolves the port of a Pod that a Service's port leads to; 0 if it is not known.
func targetPort(p corev1.ServicePort, pods []runningPod) int32 {
	switch {
	case p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal > 0:
		return p.TargetPort.IntVal
	case p.TargetPort.Type == intstr.Int:
		return p.Port
	}
	for _, pod := range pods {
		if n := pod.ports[p.TargetPort.StrVal]; n > 0 {
			return n
		}
	}
	return 0
}
