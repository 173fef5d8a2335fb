package togateway

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/gatewayapi"
)

// maxRules is how many rules an HTTPRoute may have.
const maxRules = 16

// part is where the rules of an HTTPRoute come from.
type part struct {
	*source
	// first is the index of its first rule.
	first int
}

// built are the objects of a conversion.
type built struct {
	gateways []*gatewayv1.Gateway
	routes   []*gatewayv1.HTTPRoute
	grants   []*gatewayv1.ReferenceGrant
	// parts are the sources of routes, by namespace/name.
	parts map[string]part
}

func meta(kind, namespace, name string) (metav1.TypeMeta, metav1.ObjectMeta) {
	return metav1.TypeMeta{APIVersion: gatewayapi.Group + "/v1", Kind: kind}, metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// build makes the objects that stand for what does not stay.
func (c *conversion) build() *built {
	b := &built{parts: map[string]part{}}
	used := map[*workload]bool{}
	for _, s := range c.sources {
		if s.kept {
			continue
		}
		for l := range s.served {
			used[l.of] = true
		}
		c.routes(b, s)
	}
	seen := map[*workload]bool{}
	for _, p := range c.ports {
		if used[p.of] && !seen[p.of] {
			seen[p.of] = true
			b.gateways = append(b.gateways, c.gateway(p.of))
			b.redirects(p.of)
		}
	}
	return b
}

func (c *conversion) gateway(w *workload) *gatewayv1.Gateway {
	g := &gatewayv1.Gateway{}
	g.TypeMeta, g.ObjectMeta = meta(gatewayapi.Gateway, w.namespace, w.name)
	g.Spec.GatewayClassName = gatewayv1.ObjectName(c.cfg.Class)
	if w.service != nil {
		g.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Type: new(gatewayv1.HostnameAddressType),
			Value: fmt.Sprintf("%s.%s.svc.%s", w.service.Name, w.service.Namespace, c.cfg.Domain)}}
	}
	for _, l := range w.listeners {
		out := gatewayv1.Listener{Name: gatewayv1.SectionName(l.name), Port: gatewayv1.PortNumber(l.port.number), //nolint:gosec // a port
			Protocol:      gatewayv1.HTTPProtocolType,
			AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: new(gatewayv1.NamespacesFromAll)}}}
		if l.host != "*" {
			out.Hostname = new(gatewayv1.Hostname(l.host))
		}
		if l.port.tls {
			out.Protocol = gatewayv1.HTTPSProtocolType
			out.TLS = &gatewayv1.ListenerTLSConfig{Mode: new(gatewayv1.TLSModeTerminate),
				CertificateRefs: []gatewayv1.SecretObjectReference{{Name: gatewayv1.ObjectName(l.secret)}}}
		}
		g.Spec.Listeners = append(g.Spec.Listeners, out)
	}
	return g
}

// parent is the reference of a route of a namespace to a listener.
func parent(l *listener, namespace string) gatewayv1.ParentReference {
	out := gatewayv1.ParentReference{Name: gatewayv1.ObjectName(l.of.name), SectionName: new(gatewayv1.SectionName(l.name))}
	if l.of.namespace != namespace {
		out.Namespace = new(gatewayv1.Namespace(l.of.namespace))
	}
	return out
}

// redirects adds the routes that redirect to HTTPS, as servers with httpsRedirect do.
func (b *built) redirects(w *workload) {
	for _, l := range w.listeners {
		if len(l.redirected) == 0 {
			continue
		}
		r := &gatewayv1.HTTPRoute{}
		r.TypeMeta, r.ObjectMeta = meta(gatewayapi.HTTPRoute, w.namespace, fmt.Sprintf("%s-redirect-%d", w.name, l.port.number))
		r.Spec.ParentRefs = []gatewayv1.ParentReference{parent(l, w.namespace)}
		if !slices.Contains(l.redirected, "*") {
			r.Spec.Hostnames = hostnames(l.redirected)
		}
		r.Spec.Rules = []gatewayv1.HTTPRouteRule{{Filters: []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterRequestRedirect,
			RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{Scheme: new("https"), StatusCode: new(301)}}}}}
		b.routes = append(b.routes, r)
	}
}

func hostnames(domains []string) (out []gatewayv1.Hostname) {
	domains = slices.Clone(domains)
	slices.Sort(domains)
	for _, d := range slices.Compact(domains) {
		out = append(out, gatewayv1.Hostname(d))
	}
	return out
}

// isRedirected reports whether requests for a domain are redirected at the listener.
func (l *listener) isRedirected(domain string) bool {
	return slices.ContainsFunc(l.redirected, func(host string) bool { return host == domain || covers(host, domain) })
}

// routes makes the HTTPRoutes of a VirtualService: one for all domains that the same listeners serve, with at most
// maxRules each.
func (c *conversion) routes(b *built, s *source) {
	listeners := map[string][]*listener{}
	var domains []string
	for _, p := range c.ports {
		for _, l := range p.of.listeners {
			for _, d := range s.served[l] {
				if l.port != p || l.isRedirected(d) {
					continue
				}
				if listeners[d] == nil {
					domains = append(domains, d)
				}
				listeners[d] = append(listeners[d], l)
			}
		}
	}
	slices.Sort(domains)
	number := 0
	for len(domains) > 0 {
		at := listeners[domains[0]]
		var group, rest []string
		for _, d := range domains {
			if slices.Equal(listeners[d], at) && (d == "*") == (domains[0] == "*") {
				group = append(group, d)
			} else {
				rest = append(rest, d)
			}
		}
		domains = rest
		for first := 0; first < len(s.rules); first += maxRules {
			number++
			r := &gatewayv1.HTTPRoute{}
			name := strings.ReplaceAll(s.o.Key.Name, "*", "any") // rules of an Ingress are named by their host
			if number > 1 {
				name = fmt.Sprintf("%s-%02d", name, number)
			}
			r.TypeMeta, r.ObjectMeta = meta(gatewayapi.HTTPRoute, s.o.Key.Namespace, name)
			for _, l := range at {
				r.Spec.ParentRefs = append(r.Spec.ParentRefs, parent(l, s.o.Key.Namespace))
			}
			if group[0] != "*" {
				r.Spec.Hostnames = hostnames(group)
			}
			for _, rule := range s.rules[first:min(first+maxRules, len(s.rules))] {
				r.Spec.Rules = append(r.Spec.Rules, rule.out)
				for _, ref := range rule.out.BackendRefs {
					b.grant(s.o.Key.Namespace, ref)
				}
			}
			b.routes = append(b.routes, r)
			b.parts[s.o.Key.Namespace+"/"+name] = part{s, first}
		}
	}
}

// grant lets routes of a namespace send to a Service of another one.
func (b *built) grant(from string, ref gatewayv1.HTTPBackendRef) {
	if ref.Namespace == nil {
		return
	}
	namespace, name := string(*ref.Namespace), "routes-of-"+from
	i := slices.IndexFunc(b.grants, func(g *gatewayv1.ReferenceGrant) bool { return g.Namespace == namespace && g.Name == name })
	if i < 0 {
		g := &gatewayv1.ReferenceGrant{}
		g.TypeMeta, g.ObjectMeta = meta(gatewayapi.ReferenceGrant, namespace, name)
		g.Spec.From = []gatewayv1.ReferenceGrantFrom{{Group: gatewayapi.Group, Kind: gatewayapi.HTTPRoute,
			Namespace: gatewayv1.Namespace(from)}}
		i, b.grants = len(b.grants), append(b.grants, g)
	}
	g := b.grants[i]
	if !slices.ContainsFunc(g.Spec.To, func(to gatewayv1.ReferenceGrantTo) bool { return *to.Name == ref.Name }) {
		g.Spec.To = append(g.Spec.To, gatewayv1.ReferenceGrantTo{Kind: "Service", Name: new(ref.Name)})
	}
}

// all lists the objects in the order in which they are to be applied: of two routes that an order by age must decide
// the first is the one that comes first by name.
func (b *built) all() (out []any) {
	for _, g := range b.gateways {
		out = append(out, g)
	}
	for _, g := range b.grants {
		out = append(out, g)
	}
	slices.SortFunc(b.routes, func(a, b *gatewayv1.HTTPRoute) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	for _, r := range b.routes {
		out = append(out, r)
	}
	return out
}
