package gather

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"fairlead.dev/services/installer/internal/injectcheck"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/proxystatus"
	"fairlead.dev/services/installer/internal/tag"
)

// expiresSoon is how long before its end a workload's certificate that has not been renewed is a finding: it is renewed
// after half of its life.
const expiresSoon = 30 * time.Minute

// pod describes the Pod and the Services that lead to it.
func (g *gatherer) pod(ctx context.Context) error {
	i := slices.IndexFunc(g.pods, func(p runningPod) bool { return p.workload.Name == g.d.Name })
	if i < 0 {
		return fmt.Errorf("no Pod %s in namespace %s; `fairlead proxy-status` lists the connected proxies", g.d.Name, g.d.Namespace)
	}
	p := g.pods[i]
	g.relate("Pod", g.d.Namespace, g.d.Name)
	g.relate("Namespace", "", g.d.Namespace)
	out := &Pod{ServiceAccount: p.account, Identity: p.identity, Labels: p.workload.Labels, Kind: p.kind}
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
		g.find("warning", "ProxyBypassed", "Pod "+kinds.FullName(g.d.Namespace, g.d.Name), text)
	}
	services, err := g.model.Services(g.d.Namespace)
	if err != nil {
		return err
	}
	if out.Serves, err = g.model.ServedGateways(p.workload, services); err != nil {
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
		g.find("info", "PodWithoutService", "Pod "+kinds.FullName(g.d.Namespace, g.d.Name),
			"no Service of the namespace selects its labels: others reach it by its address alone, and its inbound listeners know no protocol")
	}
	return nil
}

// proxy describes the Pod's proxy and its certificate, and finds what is wrong with them.
func (g *gatherer) proxy(ctx context.Context, p runningPod, out *Pod) {
	object := "Pod " + kinds.FullName(g.d.Namespace, g.d.Name)
	status := g.connected(p.workload)
	if status == nil {
		switch p.kind {
		case "plain":
			why, remedy := "", "label its namespace or the Pod for injection, and restart it"
			if p.uninjected != "" {
				why = ", because " + p.uninjected
			}
			if p.asked != "" {
				if text := injectcheck.Nobodys(p.asked, g.revisionsAndTags(ctx)); text != "" {
					why, remedy = ", because "+text, "let the label name one of these, or make the tag, and restart the Pod"
				}
			}
			g.find("warning", "PodWithoutProxy", object,
				"it has no proxy"+why+": its traffic is not part of the mesh, and servers that are STRICT refuse it; "+remedy)
		case meshclient.Proxyless:
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
	out.Proxy = &Proxy{
		XDSServer: meshclient.ServerName(status), Version: status.GetProxyVersion(), Identity: status.GetIdentity(),
		Unverified: status.GetUnverified(),
		Acked:      meshclient.RevisionText(status.GetAcked()), Types: map[string]string{},
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
		name, state := proxystatus.TypeName(ty.GetTypeUrl()), proxystatus.TypeStatus(ty)
		out.Proxy.Types[name] = state
		switch {
		case ty.GetRejection() != nil:
			g.find("error", "ProxyRejected", object,
				fmt.Sprintf("%s is rejected or could not be built: %s", name, strings.Join(strings.Fields(ty.GetRejection().GetMessage()), " ")))
		case state == "STALE":
			g.find("warning", "ProxyStale", object, fmt.Sprintf("%s is not in sync: %s", name, proxystatus.Waiting(ty, time.Now())))
		}
	}
	if p.admin == nil || p.kind == "plain" || p.kind == meshclient.Proxyless {
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
				out.Certificate = &Certificate{name.URI, c.Serial, c.NotBefore, c.NotAfter}
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

func (g *gatherer) find(level, code, object, message string) {
	g.d.Findings = append(g.d.Findings, Finding{Level: level, Code: code, Object: object, Message: message})
}

// revisionsAndTags are the names that the label istio.io/rev may have in the cluster; none if they are not known.
func (g *gatherer) revisionsAndTags(ctx context.Context) []string {
	api, err := g.cfg.Mesh.Kube(ctx)
	if err != nil {
		return nil
	}
	names := append(tag.Revisions(ctx, api), tag.Names(ctx, api)...)
	slices.Sort(names)
	return slices.Compact(names)
}
