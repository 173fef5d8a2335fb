package gather

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/analysis"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/describe"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/inject"
	"fairlead.dev/services/installer/internal/injectcheck"
	pods "fairlead.dev/services/installer/internal/install/wait"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/objectfile"
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
	// kind is that of Pod; "" if it is not known.
	kind string
	// ports are the container's ports by name.
	ports map[string]int32
	// uninjected is why a plain Pod of a cluster has no proxy, asked the revision or tag that labels ask for where
	// these do not refuse one, trouble what keeps a Pod from being ready, and bypassing what of it passes the proxy by.
	uninjected, asked, trouble string
	bypassing                  []string
	admin                      func() (*envoyadmin.Client, error)
}

// gatherer gathers a description.
type gatherer struct {
	cfg Config
	d   *Description

	// controlPlane is that of a cluster, and state that of a run directory.
	controlPlane *controlplane.Mesh
	state        *runstate.State

	model *describe.Mesh
	fleet *meshclient.Fleet
	pods  []runningPod
	view  *meshclient.Proxy
	// related are the objects that findings are wanted of, by kinds.Text.
	related map[string]*configv1.ObjectKey
}

// Config says whose description is gathered, and by whom.
type Config struct {
	Mesh     *meshclient.Mesh
	Analysis analysis.Program
	// Kind is "Pod" or "Service".
	Kind string
	// Name is NAME[.NAMESPACE], of a Pod also the beginning of one; Namespace is that of -n.
	Name, Namespace string
	// From is the proxy whose view of the rules is shown; "" takes one.
	From string
}

// Describe gathers a description.
func Describe(ctx context.Context, cfg Config) (*Description, error) {
	d := &Description{Kind: cfg.Kind, Services: []Service{}, Findings: []Finding{}}
	g := &gatherer{cfg: cfg, d: d, related: map[string]*configv1.ObjectKey{}}
	return d, g.describe(ctx)
}

func (g *gatherer) describe(ctx context.Context) (err error) {
	if g.controlPlane, err = g.cfg.Mesh.ControlPlane(ctx); err != nil {
		return err
	}
	if g.controlPlane == nil && g.cfg.Mesh.Address == "" {
		if g.state, err = g.cfg.Mesh.State(); err != nil {
			return err
		}
	}
	if g.fleet, err = g.cfg.Mesh.Fleet(ctx, meshclient.Selection{}); err != nil {
		return err
	}
	for _, err := range g.fleet.Silent {
		g.unknown("proxies of another config-watcher", err)
	}
	named := g.nameService
	of := g.service
	if g.d.Kind == "Pod" {
		named, of = g.findPod, g.pod
	}
	for _, step := range []func(context.Context) error{named, g.read, g.readPods, g.readStatuses, g.findView, of} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	g.findings(ctx)
	return nil
}

// nameService notes which Service is described.
func (g *gatherer) nameService(context.Context) error {
	if g.d.Namespace, g.d.Name = meshclient.WholeName(g.cfg.Name, g.cfg.Namespace); g.d.Name == "" {
		g.d.Namespace, g.d.Name = objectfile.DefaultNamespace, g.cfg.Name
	}
	return nil
}

func (g *gatherer) unknown(what string, err error) {
	g.d.Unknown = append(g.d.Unknown, fmt.Sprintf("%s: %v", what, err))
}

func (g *gatherer) relate(kind, namespace, name string) {
	key := &configv1.ObjectKey{Kind: kind, Namespace: namespace, Name: name}
	g.related[kinds.Text(key)] = key
}

// findPod finds the Pod by its name or the beginning of one: among the connected proxies and the Pods of the run
// directory, else among those of the cluster, and without these the one with exactly this name.
func (g *gatherer) findPod(ctx context.Context) error {
	wanted, err := proxyname.Parse(g.cfg.Name, g.cfg.Namespace)
	if err != nil {
		return process.Usage(err)
	}
	candidates := meshclient.ProxyRefs(meshclient.VerifiedFirst(g.fleet.GetProxies()))
	if g.state != nil {
		for _, p := range g.state.Pods {
			candidates = append(candidates, proxyname.Proxy{Name: p.Name, Namespace: p.Namespace, Workload: p.Workload})
		}
	}
	i, err := wanted.One(candidates)
	if missing := new(proxyname.NotFoundError); errors.As(err, &missing) && g.state == nil {
		namespace, pod := meshclient.WholeName(g.cfg.Name, g.cfg.Namespace)
		if g.controlPlane == nil && pod != "" {
			g.d.Namespace, g.d.Name = namespace, pod
			return nil
		}
		if g.controlPlane != nil {
			err = g.eachPod(ctx, namespace, func(p *corev1.Pod) {
				candidates = append(candidates, proxyname.Proxy{Name: p.Name, Namespace: p.Namespace})
			})
			if err == nil {
				i, err = wanted.One(candidates)
			}
		}
	}
	if err != nil {
		return err
	}
	g.d.Namespace, g.d.Name = candidates[i].Namespace, candidates[i].Name
	return nil
}

// eachPod calls do for the Pods of a namespace of the cluster, "" for all, that have not ended.
func (g *gatherer) eachPod(ctx context.Context, namespace string, do func(*corev1.Pod)) error {
	api, err := g.cfg.Mesh.Kube(ctx)
	if err != nil {
		return err
	}
	return kube.EachPod(ctx, api, namespace, "", func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			do(p)
		}
		return nil
	})
}

// read reads the objects in force that descriptions are made from. A kind that may not be read is named.
func (g *gatherer) read(ctx context.Context) error {
	return g.cfg.Mesh.Call(ctx, g.readObjects)
}

func (g *gatherer) readObjects(ctx context.Context, client *configapi.Client) error {
	g.model = &describe.Mesh{RootNamespace: contract.SystemNamespace, Domain: "cluster.local"}
	if g.controlPlane != nil {
		g.model.RootNamespace = g.controlPlane.Namespace
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
		g.unknown(kinds.Plural(kind), err)
		return nil, nil
	}
	for _, kind := range slices.Concat([]string{"Service", "Pod", "Namespace", "ConfigMap"}, describedKinds, describe.RouteKinds,
		[]string{describe.APIGateway, "ListenerSet"}) {
		of := ""
		switch kind {
		case "Service", "Pod":
			of = g.d.Namespace
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
func (g *gatherer) settings(o *configv1.Object) {
	var configMap struct{ Data map[string]string }
	var mesh struct{ RootNamespace string }
	if o.GetKey().GetName() == "istio" && json.Unmarshal(o.GetManifest(), &configMap) == nil &&
		yaml.Unmarshal([]byte(configMap.Data["mesh"]), &mesh) == nil && mesh.RootNamespace != "" {
		g.model.RootNamespace = mesh.RootNamespace
	}
}

// readPods reads the Pods of the namespace from where they run.
func (g *gatherer) readPods(ctx context.Context) error {
	if g.controlPlane == nil && g.state == nil { // addresses alone: config-watcher has the Pods' labels
		for _, o := range g.model.Objects {
			if o.Kind == "Pod" {
				g.pods = append(g.pods, runningPod{workload: describe.Workload{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels}})
			}
		}
		return nil
	}
	if g.controlPlane == nil {
		for i := range g.state.Pods {
			p := &g.state.Pods[i]
			if p.Namespace != g.d.Namespace {
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
	return g.eachPod(ctx, g.d.Namespace, func(p *corev1.Pod) { g.pods = append(g.pods, g.clusterPod(p)) })
}

func (g *gatherer) clusterPod(p *corev1.Pod) runningPod {
	proxy := &meshclient.Pod{Pod: p, ControlPlane: g.controlPlane}
	r := runningPod{
		workload: describe.Workload{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels}, account: p.Spec.ServiceAccountName, kind: "plain",
		ports: map[string]int32{}, admin: proxy.Admin,
	}
	if c := proxy.Container(); c != nil {
		r.kind = "sidecar"
		if slices.Contains(c.Args, "router") {
			r.kind = "gateway"
		}
		if proxy.IsProxyless() {
			r.kind = meshclient.Proxyless
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
		r.uninjected, r.asked = injectcheck.Uninjected(p, namespace.Labels)
	} else {
		r.bypassing = inject.Bypassing(p, namespace)
	}
	return r
}

// namespace is a namespace with its labels, as config-watcher has it.
func (g *gatherer) namespace(name string) *corev1.Namespace {
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
func (g *gatherer) findView(ctx context.Context) error {
	if g.cfg.From != "" {
		c, err := g.cfg.Mesh.Proxy(ctx, g.cfg.From, "")
		g.view = c
		return err
	}
	var best *configv1.ProxyStatus
	rank := func(p *configv1.ProxyStatus) int {
		switch {
		case p == nil || p.GetUnverified() || meshclient.ProxyType(p.GetNodeId()) != "sidecar":
			return 0
		case p.GetNamespace() == g.d.Namespace && meshclient.PodName(p) == g.d.Name:
			return 4
		case g.d.Kind == "Service" && p.GetNamespace() == g.d.Namespace && g.behind(meshclient.PodName(p)):
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
	view, err := g.cfg.Mesh.ProxyOf(ctx, best)
	if err != nil {
		g.unknown("the rules that clients have", err)
		return nil
	}
	g.view = view
	return nil
}

// behind reports whether a Pod is one of the described Service's.
func (g *gatherer) behind(pod string) bool {
	services, err := g.model.Services(g.d.Namespace)
	return err == nil && slices.ContainsFunc(services, func(s describe.Service) bool {
		return s.Name == g.d.Name && slices.ContainsFunc(g.pods,
			func(p runningPod) bool { return p.workload.Name == pod && s.Selects(p.workload) })
	})
}

// connected returns the status of a Pod's proxy, nil if it is not connected.
func (g *gatherer) connected(w describe.Workload) *configv1.ProxyStatus {
	for _, p := range meshclient.VerifiedFirst(g.fleet.GetProxies()) {
		if p.GetNamespace() == w.Namespace && meshclient.PodName(p) == w.Name {
			return p
		}
	}
	return nil
}
