// Package togateway rewrites Ingresses, and the Gateways and VirtualServices of Istio's API that are bound to them, as
// objects of the Gateway API: Convert. It proves the result: the order of rules is compared for all pairs of rules that
// one request may match, and requests are answered by a model of each side (proof.go). What cannot be said in the
// Gateway API, and what would answer otherwise, stays, with the reason.
package togateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/services/config-watcher/internal/ingress"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Config of a conversion.
type Config struct {
	// Class is the GatewayClass of the Gateways that are made, and Domain the DNS suffix of Services.
	Class, Domain string
}

// Kept is a reason why an object stays as it is.
type Kept struct {
	Object          object.Key
	Location, Field string
	Reason, Remedy  string
}

// String writes the reason for people.
func (k Kept) String() string {
	place := k.Object.String()
	if k.Location != "" {
		place = k.Location + ": " + place
	}
	if k.Field != "" {
		place += ": " + k.Field
	}
	return place + ": " + k.Reason + "; " + k.Remedy
}

// Result of a conversion.
type Result struct {
	// Objects of the Gateway API, in the order in which they are to be applied.
	Objects []any
	// Replaced are the objects that the new ones stand for: remove them when these are served.
	Replaced []object.Key
	// Kept are the reasons for which others stay, sorted.
	Kept []Kept
	// Remarks are about backends of what is replaced that are not among the objects, sorted: where they are not in the
	// mesh either, answers differ.
	Remarks []Kept
	// Requests is how many requests both sides have answered alike.
	Requests int
}

// source is a VirtualService, the user's or one that an Ingress is, with what it becomes.
type source struct {
	o *object.Object
	// user are the user's objects.
	user []*object.Object
	spec *networking.VirtualService
	// served are its domains at each listener.
	served map[*listener][]string
	rules  []rule
	kept   bool
}

// conversion is one call of Convert.
type conversion struct {
	cfg      Config
	services map[string]*object.Object // by namespace/name
	gateways []*object.Object
	ports    []*port
	sources  []*source
	kept     []Kept
	refused  map[string]bool // Gateways by namespace/name that stay
}

// Convert rewrites what it can of the valid objects, and keeps the rest.
func Convert(cfg Config, objects []*object.Object) *Result {
	c := &conversion{cfg: cfg, services: map[string]*object.Object{}, refused: map[string]bool{}}
	objects = slices.Clone(objects)
	slices.SortFunc(objects, func(a, b *object.Object) int {
		return cmp.Or(a.Created.Compare(b.Created), a.Key.Compare(b.Key))
	})
	var ingresses []*object.Object
	for _, o := range objects {
		switch b := o.Body.(type) {
		case *corev1.Service:
			c.services[o.Key.Namespace+"/"+o.Key.Name] = o
		case *networking.Gateway:
			c.gateways = append(c.gateways, o)
		case *networking.VirtualService:
			if len(b.Gateways) > 0 {
				c.sources = append(c.sources, &source{o: o, user: []*object.Object{o}, spec: b})
			}
		case *networkingv1.Ingress:
			ingresses = append(ingresses, o)
		}
	}
	c.ingresses(objects, ingresses)
	c.listen()
	for _, s := range c.sources {
		c.place(s)
		c.convert(s)
	}
	return c.prove()
}

// ingresses makes Gateways and VirtualServices of the Ingresses that the mesh serves.
func (c *conversion) ingresses(objects, all []*object.Object) {
	settings := meshdefaults.MeshConfig()
	class := func(name string) *object.Object {
		i := slices.IndexFunc(objects, func(o *object.Object) bool {
			_, ok := o.Body.(*networkingv1.IngressClass)
			return ok && o.Key.Name == name
		})
		if i < 0 {
			return nil
		}
		return objects[i]
	}
	byHost := map[string][]*object.Object{}
	var hosts []string
	for _, o := range all {
		if ingress.Takes(settings, o, class) != ingress.Taken {
			c.keep(o, "spec.ingressClassName", "is of a class that the mesh does not serve",
				"give it the class istio, or leave it to its controller")
			continue
		}
		c.gateways = append(c.gateways, ingress.Gateway(settings, o))
		for _, h := range ingress.Hosts(o) {
			if byHost[h] == nil {
				hosts = append(hosts, h)
			}
			byHost[h] = append(byHost[h], o)
		}
	}
	number := func(namespace, service, name string) uint32 {
		if s := c.services[namespace+"/"+service]; s != nil {
			for _, p := range s.Body.(*corev1.Service).Spec.Ports {
				if p.Name == name {
					return uint32(p.Port) //nolint:gosec // a port
				}
			}
		}
		return 0
	}
	slices.Sort(hosts)
	for _, h := range hosts {
		vs := ingress.VirtualService(h, ingress.HostName(h, byHost[h][0].Key), byHost[h], number, c.cfg.Domain)
		c.sources = append(c.sources, &source{o: vs, user: byHost[h], spec: vs.Body.(*networking.VirtualService)})
	}
}

// userOf is the user's object that an object was made from.
func userOf(o *object.Object) *object.Object {
	if o.Origin != nil {
		return o.Origin
	}
	return o
}

func (c *conversion) keep(o *object.Object, field, reason, remedy string) {
	if o.Origin != nil {
		field = ""
	}
	o = userOf(o)
	k := Kept{o.Key, o.Location, field, reason, remedy}
	if !slices.Contains(c.kept, k) {
		c.kept = append(c.kept, k)
	}
}

// remarks tell which backends of the routes are not among the objects, each once for each of the user's objects.
func (c *conversion) remarks(b *built) (out []Kept) {
	for _, r := range b.routes {
		p, ok := b.parts[r.Namespace+"/"+r.Name]
		if !ok {
			continue // a redirect
		}
		for _, rule := range r.Spec.Rules {
			for _, ref := range rule.BackendRefs {
				namespace := r.Namespace
				if ref.Namespace != nil {
					namespace = string(*ref.Namespace)
				}
				service := namespace + "/" + string(ref.Name)
				if c.services[service] != nil {
					continue
				}
				for _, o := range p.user {
					if i, ok := o.Body.(*networkingv1.Ingress); ok && !namesService(i, string(ref.Name)) {
						continue
					}
					out = append(out, Kept{o.Key, o.Location, "", "Service " + service + " is not among the objects",
						"see that the mesh has it: a Gateway answers 500 otherwise, and not 503"})
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b Kept) int {
		return cmp.Or(a.Object.Compare(b.Object), strings.Compare(a.Reason, b.Reason))
	})
	return slices.Compact(out)
}

// namesService reports whether a backend of an Ingress is a Service.
func namesService(i *networkingv1.Ingress, name string) bool {
	is := func(b *networkingv1.IngressBackend) bool {
		return b != nil && b.Service != nil && b.Service.Name == name
	}
	return is(i.Spec.DefaultBackend) || slices.ContainsFunc(i.Spec.Rules, func(r networkingv1.IngressRule) bool {
		return r.HTTP != nil && slices.ContainsFunc(r.HTTP.Paths, func(p networkingv1.HTTPIngressPath) bool { return is(&p.Backend) })
	})
}

// keepSource keeps a VirtualService, or the Ingresses that it is.
func (c *conversion) keepSource(s *source, field, reason, remedy string) {
	s.kept = true
	for _, o := range s.user {
		if o != s.o {
			field = ""
		}
		c.keep(o, field, reason, remedy)
	}
}

// spread keeps what shares a Gateway or a domain with what stays: where both APIs have a host and port, Istio's wins,
// and a Gateway stays whole.
func (c *conversion) spread() {
	for again := true; again; {
		again = false
		for _, s := range c.sources {
			for _, other := range c.sources {
				if s.kept || !other.kept || s == other {
					continue
				}
				if domain := s.shares(other); domain != "" {
					again = true
					c.keepSource(s, "spec.hosts", fmt.Sprintf("shares the host %s with %s, which stays", domain, other.user[0].Key),
						"change that one first")
				}
			}
		}
	}
}

// shares returns a domain that both serve at one listener, or that one user's object has in common; "" if there is
// none.
func (s *source) shares(other *source) string {
	for l, domains := range s.served {
		for _, d := range domains {
			if slices.Contains(other.served[l], d) {
				return d
			}
		}
	}
	for _, o := range s.user {
		if slices.Contains(other.user, o) {
			return other.spec.GetHosts()[0]
		}
	}
	return ""
}

// replaced lists the user's objects of which nothing stays.
func (c *conversion) replaced() (list []object.Key) {
	stays := map[*object.Object]bool{}
	bound := map[string]bool{}
	for _, s := range c.sources {
		for _, o := range s.user {
			stays[o] = stays[o] || s.kept
		}
		for _, g := range s.spec.GetGateways() {
			name := gatewayName(g, s.o.Key.Namespace)
			bound[name] = bound[name] || s.kept
		}
	}
	for o, kept := range stays {
		if !kept {
			list = append(list, o.Key)
		}
	}
	for _, g := range c.gateways {
		name := g.Key.Namespace + "/" + g.Key.Name
		if kept, used := bound[name]; g.Origin == nil && used && !kept && !c.refused[name] {
			list = append(list, g.Key)
		}
	}
	slices.SortFunc(list, object.Key.Compare)
	return list
}

func gatewayName(name, namespace string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return namespace + "/" + name
}
