package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/runstate"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/describe"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/inject"
	pods "fairlead.dev/services/installer/internal/install/wait"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/proxyname"
)

// describedKinds are the kinds that are read of the whole mesh.
var describedKinds = []string{
	"VirtualService", "DestinationRule", "Gateway", "Sidecar", "PeerAuthentication", "AuthorizationPolicy", "RequestAuthentication",
	"EnvoyFilter", "Telemetry",
	"WasmPlugin", "ProxyConfig",
}

// runningPod is what is known of a Pod where it runs: in a cluster, or in the run directory.
type runningPod struct {
	workload describe.Workload
	account  string
	identity string
	// kind is that of podDescription; "" if it is not known.
	kind string
	// ports are the container's ports by name.
	ports map[string]int32
	// uninjected is why a plain Pod of a cluster has no proxy, asked the revision or tag that labels ask for where
	// these do not refuse one, trouble what keeps a Pod from being ready, and bypassing what of it passes the proxy by.
	uninjected, asked, trouble string
	bypassing                  []string
	admin                      func() (*envoyadmin.Client, error)
}

// describer gathers a description.
type describer struct {
	env Env
	t   *target
	f   describeFlags
	d   *description

	mesh  *controlplane.Mesh
	state *runstate.State
	model *describe.Mesh
	fleet *fleet
	pods  []runningPod
	view  *connectedProxy
	// related are the objects that findings are wanted of, "Kind namespace/name".
	related map[string]bool
}

func (g *describer) describe(ctx context.Context, name string) (err error) {
	g.related = map[string]bool{}
	if g.mesh, err = g.t.controlPlane(ctx); err != nil {
		return err
	}
	if g.mesh == nil && g.t.address == "" {
		if g.state, err = g.t.state(); err != nil {
			return err
		}
	}
	if g.fleet, err = g.t.listProxies(ctx, selection{}); err != nil {
		return err
	}
	for _, err := range g.fleet.silent {
		g.unknown("proxies of another config-watcher", err)
	}
	namespace, pod := "", ""
	if g.d.Kind == "Pod" {
		if namespace, pod, err = g.findPod(ctx, name); err != nil {
			return err
		}
	} else if namespace, pod = wholeName(name, g.f.namespace); pod == "" {
		namespace, pod = "default", name
	}
	g.d.Namespace, g.d.Name = namespace, pod
	if err := g.t.call(ctx, func(ctx context.Context, client *configapi.Client) error { return g.read(ctx, client, namespace) }); err != nil {
		return err
	}
	if err := g.readPods(ctx, namespace); err != nil {
		return err
	}
	if err := g.readRoutes(ctx); err != nil {
		return err
	}
	if err := g.findView(ctx); err != nil {
		return err
	}
	if g.d.Kind == "Pod" {
		err = g.pod(ctx)
	} else {
		err = g.service(ctx)
	}
	if err != nil {
		return err
	}
	g.findings(ctx)
	return nil
}

func (g *describer) unknown(what string, err error) {
	g.d.Unknown = append(g.d.Unknown, fmt.Sprintf("%s: %v", what, err))
}

func (g *describer) relate(kind, namespace, name string) {
	g.related[kind+" "+fullName(namespace, name)] = true
}

// findPod finds the Pod by its name or the beginning of one: among the connected proxies and the Pods of the run
// directory, else among those of the cluster, and without these the one with exactly this name.
func (g *describer) findPod(ctx context.Context, name string) (namespace, pod string, err error) {
	wanted, err := proxyname.Parse(name, g.f.namespace)
	if err != nil {
		return "", "", usage(err)
	}
	candidates := proxyRefs(verifiedFirst(g.fleet.GetProxies()))
	if g.state != nil {
		for _, p := range g.state.Pods {
			candidates = append(candidates, proxyname.Proxy{Name: p.Name, Namespace: p.Namespace, Workload: p.Workload})
		}
	}
	i, err := wanted.One(candidates)
	if err == nil {
		return candidates[i].Namespace, candidates[i].Name, nil
	}
	if missing := new(proxyname.NotFoundError); !errors.As(err, &missing) || g.state != nil {
		return "", "", err
	}
	if namespace, pod = wholeName(name, g.f.namespace); g.mesh == nil {
		if pod == "" {
			return "", "", err
		}
		return namespace, pod, nil
	}
	api, err := g.t.kube(ctx)
	if err != nil {
		return "", "", err
	}
	err = kube.EachPod(ctx, api, namespace, "", func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			candidates = append(candidates, proxyname.Proxy{Name: p.Name, Namespace: p.Namespace})
		}
		return nil
	})
	if err != nil {
		return "", "", err
	}
	if i, err = wanted.One(candidates); err != nil {
		return "", "", err
	}
	return candidates[i].Namespace, candidates[i].Name, nil
}

// read reads the objects in force that descriptions are made from. A kind that may not be read is named.
func (g *describer) read(ctx context.Context, client *configapi.Client, namespace string) error {
	g.model = &describe.Mesh{RootNamespace: defaultIstioNamespace, Domain: "cluster.local"}
	if g.mesh != nil {
		g.model.RootNamespace = g.mesh.Namespace
	}
	for _, p := range g.fleet.GetProxies() {
		if parts := strings.Split(p.GetNodeId(), "~"); len(parts) == 4 {
			if _, domain, ok := strings.Cut(parts[3], ".svc."); ok && !p.GetUnverified() {
				g.model.Domain = domain
				break
			}
		}
	}
	take := func(kind, namespace string) ([]*configv1.Object, error) {
		res, err := client.List(ctx, &configv1.ListRequest{Kind: kind, Namespace: namespace, InForce: true})
		if err = client.Explain(err); err == nil {
			return res.GetObjects(), nil
		}
		if gone := new(configapi.NotFoundError); errors.As(err, &gone) {
			return nil, nil
		}
		if away := new(configapi.UnreachableError); errors.As(err, &away) {
			return nil, err
		}
		g.unknown(plural(kind), err)
		return nil, nil
	}
	for _, kind := range append([]string{"Service", "Pod", "Namespace", "ConfigMap"}, describedKinds...) {
		of := ""
		switch kind {
		case "Service", "Pod":
			of = namespace
		case "ConfigMap":
			of = g.model.RootNamespace
		}
		list, err := take(kind, of)
		if err != nil {
			return err
		}
		for _, o := range list {
			if kind == "ConfigMap" {
				g.settings(o)
				continue
			}
			parsed, err := describe.Parse(o.GetManifest(), o.GetLocation())
			if err != nil {
				return err
			}
			parsed.Kind = kind
			g.model.Objects = append(g.model.Objects, parsed)
		}
	}
	return nil
}

// settings takes the root namespace from the mesh configuration.
func (g *describer) settings(o *configv1.Object) {
	var configMap struct{ Data map[string]string }
	var mesh struct{ RootNamespace string }
	if o.GetKey().GetName() == "istio" && json.Unmarshal(o.GetManifest(), &configMap) == nil &&
		yaml.Unmarshal([]byte(configMap.Data["mesh"]), &mesh) == nil && mesh.RootNamespace != "" {
		g.model.RootNamespace = mesh.RootNamespace
	}
}

// readPods reads the Pods of the namespace from where they run.
func (g *describer) readPods(ctx context.Context, namespace string) error {
	if g.mesh == nil && g.state == nil { // addresses alone: config-watcher has the Pods' labels
		for _, o := range g.model.Objects {
			if o.Kind == "Pod" {
				g.pods = append(g.pods, runningPod{workload: describe.Workload{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels}})
			}
		}
		return nil
	}
	if g.mesh == nil {
		for i := range g.state.Pods {
			p := &g.state.Pods[i]
			if p.Namespace != namespace {
				continue
			}
			if err := rundir.Rests(p); err != nil {
				if g.d.Kind == "Pod" && p.Name == g.d.Name {
					return err
				}
				continue
			}
			g.pods = append(g.pods, runningPod{
				workload: describe.Workload{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels}, account: p.ServiceAccount, identity: p.Identity,
				kind: p.Kind,
				admin: func() (*envoyadmin.Client, error) {
					found, err := rundir.Proxy(g.state, p.ID(), "")
					if err != nil {
						return nil, err
					}
					return envoyadmin.New(found.Agent.AdminSocket), nil
				},
			})
		}
		return nil
	}
	api, err := g.t.kube(ctx)
	if err != nil {
		return err
	}
	return kube.EachPod(ctx, api, namespace, "", func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			g.pods = append(g.pods, g.clusterPod(p))
		}
		return nil
	})
}

func (g *describer) clusterPod(p *corev1.Pod) runningPod {
	proxy := &podProxy{p, g.mesh}
	r := runningPod{
		workload: describe.Workload{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels}, account: p.Spec.ServiceAccountName, kind: "plain",
		ports: map[string]int32{}, admin: proxy.admin,
	}
	if c := proxy.container(); c != nil {
		r.kind = "sidecar"
		if slices.Contains(c.Args, "router") {
			r.kind = "gateway"
		}
		for _, e := range c.Env {
			if e.Name == "ISTIO_META_GENERATOR" && e.Value == "grpc" {
				r.kind = proxyless
			}
		}
	}
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			r.ports[port.Name] = port.ContainerPort
		}
	}
	r.trouble = pods.Trouble(p)
	namespace := g.namespace(p.Namespace)
	if r.kind == "plain" {
		r.uninjected, r.asked = uninjected(p, namespace.Labels)
	} else {
		r.bypassing = inject.Bypassing(p, namespace)
	}
	return r
}

// namespace is a namespace with its labels, as config-watcher has it.
func (g *describer) namespace(name string) *corev1.Namespace {
	ns := &corev1.Namespace{}
	ns.Name = name
	for _, o := range g.model.Objects {
		if o.Kind == "Namespace" && o.Name == name {
			ns.Labels = o.Labels
		}
	}
	return ns
}

// findView finds the proxy whose rules are shown; none is no error.
func (g *describer) findView(ctx context.Context) error {
	if g.f.from != "" {
		c, err := g.t.findProxy(ctx, g.f.from, "")
		g.view = c
		return err
	}
	var best *configv1.ProxyStatus
	rank := func(p *configv1.ProxyStatus) int {
		switch {
		case p == nil || p.GetUnverified() || proxyType(p.GetNodeId()) != "sidecar":
			return 0
		case p.GetNamespace() == g.d.Namespace && podName(p) == g.d.Name:
			return 4
		case g.d.Kind == "Service" && p.GetNamespace() == g.d.Namespace && g.behind(podName(p)):
			return 3
		case p.GetNamespace() == g.d.Namespace:
			return 2
		}
		return 1
	}
	for _, p := range g.fleet.GetProxies() {
		if rank(p) > rank(best) {
			best = p
		}
	}
	if best == nil {
		g.d.Unknown = append(g.d.Unknown, "the rules that clients have: no sidecar is connected; name another proxy with --from")
		return nil
	}
	servers, err := g.t.xdsServers(ctx, serverName(best))
	if err != nil {
		g.unknown("the rules that clients have", err)
		return nil
	}
	g.view = &connectedProxy{best.GetNodeId(), servers}
	return nil
}

// behind reports whether a Pod is one of the described Service's.
func (g *describer) behind(pod string) bool {
	services, err := g.model.Services(g.d.Namespace)
	return err == nil && slices.ContainsFunc(services, func(s describe.Service) bool {
		return s.Name == g.d.Name && slices.ContainsFunc(g.pods,
			func(p runningPod) bool { return p.workload.Name == pod && s.Selects(p.workload) })
	})
}

// connected returns the status of a Pod's proxy, nil if it is not connected.
func (g *describer) connected(w describe.Workload) *configv1.ProxyStatus {
	for _, p := range verifiedFirst(g.fleet.GetProxies()) {
		if p.GetNamespace() == w.Namespace && podName(p) == w.Name {
			return p
		}
	}
	return nil
}

// rules asks the viewing proxy's xds-server what routes and clusters of a port were made from.
func (g *describer) rules(ctx context.Context, host string, port int32) (from, passed []contract.ExplainedObject) {
	from = []contract.ExplainedObject{}
	if g.view == nil {
		return from, nil
	}
	seen := map[string]bool{}
	add := func(list *[]contract.ExplainedObject, o contract.ExplainedObject) {
		if id := o.Kind + " " + objectID(o); !seen[id] {
			seen[id] = true
			*list = append(*list, o)
			g.relate(o.Kind, o.Namespace, o.Name)
		}
	}
	var answers []contract.Explanation
	for kind, name := range map[string]string{"virtualhosts": fmt.Sprintf("%s:%d", host, port),
		"clusters": fmt.Sprintf("outbound|%d||%s", port, host)} {
		var e contract.Explanation
		if err := g.view.ask(ctx, "/debug/why", url.Values{"type": {kind}, "name": {name}}, &e); err != nil {
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
			if shown(o) && (o.Kind != "Sidecar" || e.Sidecar == objectID(o)) {
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
		return strings.Compare(a.Kind+objectID(a), b.Kind+objectID(b))
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
