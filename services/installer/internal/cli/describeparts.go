package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"fairlead.dev/pkg/nearest"
	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/describe"
)

// expiresSoon is how long before its end a workload's certificate that has not been renewed is a finding: it is renewed
// after half of its life.
const expiresSoon = 30 * time.Minute

// pod describes the Pod and the Services that lead to it.
func (g *describer) pod(ctx context.Context) error {
	i := slices.IndexFunc(g.pods, func(p runningPod) bool { return p.workload.Name == g.d.Name })
	if i < 0 {
		return fmt.Errorf("no Pod %s in namespace %s; `fairlead proxy-status` lists the connected proxies", g.d.Name, g.d.Namespace)
	}
	p := g.pods[i]
	g.relate("Pod", g.d.Namespace, g.d.Name)
	g.relate("Namespace", "", g.d.Namespace)
	out := &podDescription{ServiceAccount: p.account, Identity: p.identity, Labels: p.workload.Labels, Kind: p.kind}
	g.d.Pod = out
	modes, from, err := g.model.Modes(p.workload)
	if err != nil {
		return err
	}
	policies, err := g.model.Policies(p.workload)
	if err != nil {
		return err
	}
	out.MutualTLS, out.Policies = modes, append(from, policies...)
	for _, a := range out.Policies {
		g.relate(a.Kind, a.Namespace, a.Name)
	}
	g.proxy(ctx, p, out)
	for _, text := range p.bypassing {
		g.find("warning", "ProxyBypassed", "Pod "+fullName(g.d.Namespace, g.d.Name), text)
	}
	services, err := g.model.Services(g.d.Namespace)
	if err != nil {
		return err
	}
	for _, s := range services {
		if s.Selects(p.workload) {
			if err := g.describeService(ctx, s); err != nil {
				return err
			}
		}
	}
	if len(g.d.Services) == 0 && p.kind != "gateway" {
		g.find("info", "PodWithoutService", "Pod "+fullName(g.d.Namespace, g.d.Name),
			"no Service of the namespace selects its labels: others reach it by its address alone, and its inbound listeners know no protocol")
	}
	return nil
}

// proxy describes the Pod's proxy and its certificate, and finds what is wrong with them.
func (g *describer) proxy(ctx context.Context, p runningPod, out *podDescription) {
	object := "Pod " + fullName(g.d.Namespace, g.d.Name)
	status := g.connected(p.workload)
	if status == nil {
		switch p.kind {
		case "plain":
			why, remedy := "", "label its namespace or the Pod for injection, and restart it"
			if p.uninjected != "" {
				why = ", because " + p.uninjected
			}
			if p.asked != "" {
				if text := nobodys(p.asked, g.revisionsAndTags(ctx)); text != "" {
					why, remedy = ", because "+text, "let the label name one of these, or make the tag, and restart the Pod"
				}
			}
			g.find("warning", "PodWithoutProxy", object,
				"it has no proxy"+why+": its traffic is not part of the mesh, and servers that are STRICT refuse it; "+remedy)
		case proxyless:
			g.find("info", "ProxyNotConnected", object, "its gRPC client is not connected to the control plane: it connects with its first call")
		default:
			now := "keeps the configuration that it has"
			if p.trouble != "" {
				now = "the Pod is not ready: " + p.trouble
			}
			g.find("error", "ProxyNotConnected", object, "its proxy is not connected to the control plane, and "+now+
				"; see the log of container istio-proxy")
		}
		return
	}
	out.Proxy = &proxyDescription{
		XDSServer: serverName(status), Version: status.GetProxyVersion(), Identity: status.GetIdentity(), Unverified: status.GetUnverified(),
		Acked: revisionOf(status.GetAcked()), Types: map[string]string{},
	}
	if out.Identity == "" && !status.GetUnverified() {
		out.Identity = status.GetIdentity()
	}
	if status.GetUnverified() {
		g.find("error", "ProxyUnverified", object,
			"the mesh knows no Pod of this name, or at this address, with the proxy's service account: no selector selects it and it gets no "+
				"credentials")
	}
	for _, ty := range status.GetTypes() {
		name, state := shortType(ty.GetTypeUrl()), typeStatus(ty)
		out.Proxy.Types[name] = state
		switch {
		case ty.GetRejection() != nil:
			g.find("error", "ProxyRejected", object,
				fmt.Sprintf("%s is rejected or could not be built: %s", name, strings.Join(strings.Fields(ty.GetRejection().GetMessage()), " ")))
		case state == "STALE":
			g.find("warning", "ProxyStale", object, fmt.Sprintf("%s is not in sync: %s", name, waiting(ty, time.Now())))
		}
	}
	if p.admin == nil || p.kind == "plain" || p.kind == proxyless {
		return
	}
	admin, err := p.admin()
	if err != nil {
		g.unknown("certificate", err)
		return
	}
	certificates, err := admin.Certificates(ctx)
	if err != nil {
		g.unknown("certificate", err)
		return
	}
	for _, c := range certificates {
		for _, name := range c.Names {
			newer := out.Certificate == nil || c.NotAfter.After(out.Certificate.NotAfter)
			if name.URI == status.GetIdentity() && name.URI != "" && newer {
				out.Certificate = &workloadCertificate{name.URI, c.Serial, c.NotBefore, c.NotAfter}
			}
		}
	}
	switch c := out.Certificate; {
	case c == nil:
		g.find("error", "CertificateMissing", object,
			"its Envoy has no certificate of its identity; see `fairlead proxy-config secrets` and the agent's log")
	case time.Now().After(c.NotAfter):
		g.find("error", "CertificateExpired", object,
			fmt.Sprintf("its certificate ended at %s; see the agent's log", c.NotAfter.Format(time.RFC3339)))
	case time.Until(c.NotAfter) < expiresSoon:
		g.find("warning", "CertificateExpiring", object, fmt.Sprintf("its certificate ends at %s and was not renewed; see the agent's log",
			c.NotAfter.Format(time.RFC3339)))
	}
}

func (g *describer) find(level, code, object, message string) {
	g.d.Findings = append(g.d.Findings, finding{Level: level, Code: code, Object: object, Message: message})
}

// service describes the Service.
func (g *describer) service(ctx context.Context) error {
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
func (g *describer) noService(ctx context.Context, services []describe.Service) error {
	var elsewhere, near []string
	for _, s := range services {
		near = append(near, s.Name)
	}
	// Who may not read all namespaces gets the answer without the others.
	_ = g.t.call(ctx, func(ctx context.Context, client *configapi.Client) error {
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
func (g *describer) describeService(ctx context.Context, s describe.Service) error {
	out := serviceDescription{Namespace: s.Namespace, Name: s.Name, Host: s.Host, Location: s.Location, Pods: []podRow{},
		Ports: []portDescription{}}
	g.relate("Service", s.Namespace, s.Name)
	var behind []runningPod
	var workloads []describe.Workload
	sidecars := 0
	for _, p := range g.pods {
		if !s.Selects(p.workload) {
			continue
		}
		behind, workloads = append(behind, p), append(workloads, p.workload)
		row := podRow{Name: p.workload.Name, Kind: p.kind}
		if p.kind != "plain" {
			sidecars++
			row.Proxy = "not connected"
			if g.connected(p.workload) != nil {
				row.Proxy = "connected"
			}
		}
		if out.Pods = append(out.Pods, row); g.d.Kind == "Service" && row.Proxy == "not connected" && p.kind != proxyless {
			g.find("error", "ProxyNotConnected", "Pod "+p.workload.Namespace+"/"+p.workload.Name,
				"its proxy is not connected to the control plane; see the log of container istio-proxy")
		}
	}
	object := "Service " + fullName(s.Namespace, s.Name)
	if g.d.Kind == "Service" && sidecars < len(behind) {
		g.find("warning", "PodWithoutProxy", object, fmt.Sprintf("%d of its %d Pods have no proxy", len(behind)-sidecars, len(behind)))
	}
	if g.view != nil {
		out.SeenBy = proxyName(g.view.nodeID)
	}
	var rules []string
	for _, p := range s.Ports {
		port := portDescription{Port: p.Port, Name: p.Name, TargetPort: p.TargetPort.String(), Protocol: describe.Protocol(p)}
		port.Rules, port.PassedOver = g.rules(ctx, s.Host, p.Port)
		var own []string
		for _, r := range port.Rules {
			if r.Kind == "DestinationRule" {
				own = append(own, objectID(r))
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
			g.d.Findings = append(g.d.Findings, finding{p.Level, p.Code, r.Kind + " " + fullName(r.Namespace, r.Name), p.Field, p.Message})
		}
	}
	g.d.Services = append(g.d.Services, out)
	return nil
}

// findings adds the findings of config-watcher and of an analysis about the objects described.
func (g *describer) findings(ctx context.Context) {
	seen := map[string]bool{}
	for _, f := range g.d.Findings {
		seen[f.Code+f.Object] = true
	}
	add := func(f finding, all bool) {
		if key := f.Code + f.Object + f.Field; (all || g.related[f.Object]) && !seen[key] && !seen[f.Code+f.Object] {
			seen[key] = true
			g.d.Findings = append(g.d.Findings, f)
		}
	}
	req := &configv1.ListWarningsRequest{}
	for _, s := range g.d.Services {
		req.Hosts = append(req.Hosts, s.Host)
	}
	for id := range g.related {
		kind, name, _ := strings.Cut(id, " ")
		ns, name, ok := strings.Cut(name, "/")
		if !ok {
			ns, name = "", ns
		}
		req.Objects = append(req.Objects, &configv1.ObjectKey{Kind: kind, Namespace: ns, Name: name})
	}
	err := g.t.call(ctx, func(ctx context.Context, client *configapi.Client) error {
		res, err := client.ListWarnings(ctx, req)
		if err != nil {
			return err
		}
		for _, w := range res.GetWarnings() {
			k := w.GetObject()
			add(finding{w.GetSeverity(), w.GetCode(), k.GetKind() + " " + fullName(k.GetNamespace(), k.GetName()), w.GetField(), w.GetMessage()},
				true)
		}
		status, err := client.Status(ctx, &configv1.StatusRequest{Namespace: g.d.Namespace})
		if err != nil {
			return err
		}
		for _, f := range status.GetFindings() {
			kind, _, _ := strings.Cut(f.GetObject(), " ")
			if f.GetType() == configv1.FindingType_FINDING_TYPE_REFUSED && (g.related[f.GetObject()] || slices.Contains(describedKinds, kind)) {
				add(finding{"error", "ObjectRefused", f.GetObject(), "", f.GetMessage()}, true)
			}
		}
		return nil
	})
	if err != nil {
		g.unknown("findings of config-watcher", err)
	}
	if err := g.analysis(ctx, add); err != nil {
		g.unknown("findings of `fairlead analyze`", err)
	}
	levels := []string{"error", "warning", "info"}
	slices.SortStableFunc(g.d.Findings, func(a, b finding) int { return slices.Index(levels, a.Level) - slices.Index(levels, b.Level) })
}

// analysis runs `fairlead analyze` on what the mesh is made from.
func (g *describer) analysis(ctx context.Context, add func(finding, bool)) error {
	f := analyzeFlags{out: newFormat("json"), threshold: "error", show: "info", recursive: true, timeout: requestTimeout, binDir: g.f.binDir,
		all: true}
	f.out.value = "json"
	switch {
	case g.mesh != nil:
		f.kube, f.kubeconfig, f.context = true, g.t.cluster.Kubeconfig, g.t.cluster.Context
		if g.t.cluster.As != "" {
			return errors.New("it knows no --as")
		}
	case g.state != nil && len(g.state.ConfigPaths) > 0:
		f.files = g.state.ConfigPaths
		// Here every Pod has a proxy, whatever labels ask for.
		for _, code := range []string{"NamespaceNotInjected", "NamespaceWithoutProxies", "PodWithoutSidecar", "ImageAutoOfTemplate",
			"ImageAutoOfPod"} {
			f.suppress = append(f.suppress, code+"=*")
		}
	default:
		return nil
	}
	var out bytes.Buffer
	failed := analyze(ctx, g.env, f, &out, io.Discard)
	var records []struct{ Code, Name, Level, Origin, Field, Message, Remedy string }
	if err := json.Unmarshal(out.Bytes(), &records); err != nil {
		return errors.Join(failed, err)
	}
	for _, r := range records {
		message := r.Message
		if r.Remedy != "" {
			message += "; " + r.Remedy
		}
		add(finding{strings.ToLower(r.Level), r.Name, r.Origin, r.Field, message}, false)
	}
	return nil
}
