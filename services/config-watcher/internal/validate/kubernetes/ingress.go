package kubernetes

import (
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// ingressPath is a path of an Ingress rule, for finding the same one again.
type ingressPath struct{ host, pathType, path string }

// ingress checks what Kubernetes' API server checks, refuses what could not be routed, and warns of what has no
// effect at a gateway of the mesh.
func (c checker) ingress(o *object.Object, in *networkingv1.Ingress) {
	if strings.Contains(o.Key.Name, object.GeneratedIngressInfix) {
		c.Fail("metadata.name", o.Key.Name, object.GeneratedIngressInfix+" is kept for the names of generated objects", "rename the Ingress")
	}
	spec := &in.Spec
	if name := spec.IngressClassName; name != nil {
		if !check.DNSSubdomain(*name) {
			c.Fail("spec.ingressClassName", *name, "not the name of an IngressClass", "use lower-case letters, digits, '-' and '.'")
		}
		if _, both := o.Annotations[object.IngressClassAnnotation]; both {
			c.Warn("spec.ingressClassName", "the annotation "+object.IngressClassAnnotation+" decides", "remove the annotation")
		}
	}
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		c.Fail("spec", nil, "neither rules nor a defaultBackend", "add a rule, or the backend of all requests")
	}
	if spec.DefaultBackend != nil {
		c.ingressBackend("spec.defaultBackend", spec.DefaultBackend)
	}
	seen := map[ingressPath]string{}
	for at, r := range manifest.Items("spec.rules", spec.Rules) {
		c.ingressHost(at+".host", r.Host, true)
		switch {
		case r.HTTP == nil && spec.DefaultBackend == nil:
			c.Warn(at, "it has no paths, and there is no defaultBackend", "add http.paths, or spec.defaultBackend")
		case r.HTTP != nil && len(r.HTTP.Paths) == 0:
			c.Fail(at+".http.paths", nil, "missing", "list the paths, or leave http out to send all requests to spec.defaultBackend")
		case r.HTTP != nil:
			c.ingressPaths(at+".http.paths", r.Host, r.HTTP.Paths, seen)
		}
	}
	for at, t := range manifest.Items("spec.tls", spec.TLS) {
		for j, h := range t.Hosts {
			c.ingressHost(manifest.Index(at+".hosts", j), h, false)
		}
		if t.SecretName == "" {
			c.Warn(at, "it names no Secret", "name the Secret of the certificate in secretName")
		} else if !check.DNSSubdomain(t.SecretName) {
			c.Fail(at+".secretName", t.SecretName, "not the name of a Secret", "use lower-case letters, digits, '-' and '.'")
		}
	}
}

// ingressHost checks a host of a rule or of a TLS entry; a rule's may be empty.
func (c checker) ingressHost(at, host string, rule bool) {
	name, wildcard := strings.CutPrefix(host, "*.")
	switch {
	case host == "" && rule:
	case rule && check.IsIP(host):
		c.Fail(at, host, "an IP address", "use a DNS name, or leave the host out to take requests for every host")
	case !check.DNSSubdomain(name) || wildcard && strings.Contains(name, "*"):
		c.Fail(at, host, "not a host", `use a DNS name in lower case, "*." may stand before it`)
	}
}

// ingressPaths checks the paths of a rule; seen has those of the rules before it.
func (c checker) ingressPaths(list, host string, paths []networkingv1.HTTPIngressPath, seen map[ingressPath]string) {
	for at, p := range manifest.Items(list, paths) {
		c.ingressBackend(at+".backend", &p.Backend)
		if p.PathType == nil {
			c.Fail(at+".pathType", nil, "missing", "use Exact, Prefix or ImplementationSpecific")
			continue
		}
		switch *p.PathType {
		case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
			c.ingressPath(at+".path", p.Path)
		case networkingv1.PathTypeImplementationSpecific:
			if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
				c.Fail(at+".path", p.Path, "does not begin with /", "write the path from its beginning")
			} else if start := strings.TrimSuffix(strings.TrimSuffix(p.Path, ".*"), "/*"); strings.ContainsAny(start, `*\[](){}|^$`) {
				c.Remark(at+".path", "is compared letter by letter: only /* or .* at the end stands for something else",
					"use pathType Prefix, or a VirtualService with a regex")
			}
		default:
			c.Fail(at+".pathType", string(*p.PathType), "unknown type of paths", decode.Suggest(string(*p.PathType), ingressPathTypes))
		}
		c.MatchText(at+".path", p.Path)
		if strings.ContainsAny(p.Path, "?#") {
			c.Warn(at+".path", "it is compared with the path alone, without the query", "remove what follows ? or #")
		}
		key := ingressPath{host, string(*p.PathType), p.Path}
		if *p.PathType == networkingv1.PathTypePrefix {
			key.path = strings.TrimRight(p.Path, "/")
		}
		if first, dup := seen[key]; dup {
			c.Warn(at, first+" has the same path", "keep one of them")
		} else {
			seen[key] = at
		}
	}
}

var ingressPathTypes = []string{string(networkingv1.PathTypeExact), string(networkingv1.PathTypePrefix),
	string(networkingv1.PathTypeImplementationSpecific)}

// ingressPath checks a path of type Exact or Prefix as Kubernetes does.
func (c checker) ingressPath(at, path string) {
	switch {
	case !strings.HasPrefix(path, "/"):
		c.Fail(at, path, "does not begin with /", "write the path from its beginning")
	case slices.ContainsFunc([]string{"//", "/./", "/../", "%2f", "%2F"}, func(s string) bool { return strings.Contains(path, s) }):
		c.Fail(at, path, "contains //, /./, /../ or %2f", "write the path as clients send it after normalisation")
	case strings.HasSuffix(path, "/..") || strings.HasSuffix(path, "/."):
		c.Fail(at, path, "ends with /. or /..", "write the path as clients send it after normalisation")
	}
}

func (c checker) ingressBackend(at string, b *networkingv1.IngressBackend) {
	switch {
	case b.Service != nil && b.Resource != nil:
		c.Fail(at, nil, "both a service and a resource", "keep the service")
	case b.Resource != nil:
		c.Fail(at+".resource", fmt.Sprintf("%s %s", b.Resource.Kind, b.Resource.Name), "a gateway sends requests to Services only",
			"use service, or another controller's class")
	case b.Service == nil:
		c.Fail(at+".service", nil, "missing", "name the Service and its port")
	default:
		s := b.Service
		if !check.DNSLabel(s.Name) {
			c.Fail(at+".service.name", s.Name, "not the name of a Service", "use at most 63 lower-case letters, digits and '-'")
		}
		switch port := s.Port; {
		case port.Name != "" && port.Number != 0:
			c.Fail(at+".service.port", nil, "both a name and a number", "keep one of them")
		case port.Name == "" && port.Number == 0:
			c.Fail(at+".service.port", nil, "missing", "give the name or the number of the Service's port")
		case port.Name != "":
			c.PortName(at+".service.port.name", port.Name)
		default:
			check.Port(c.Verdict, at+".service.port.number", port.Number)
		}
	}
}

// ingressClass checks an IngressClass as Kubernetes does.
func (c checker) ingressClass(o *object.Object, class *networkingv1.IngressClass) {
	prefix, path, ok := strings.Cut(class.Spec.Controller, "/")
	if !ok || !check.DNSSubdomain(prefix) || path == "" || len(class.Spec.Controller) > 250 {
		c.Fail("spec.controller", class.Spec.Controller, "not the name of a controller",
			"use a DNS name, / and a name, such as istio.io/ingress-controller")
	}
	if v, ok := o.Annotations[object.DefaultIngressClassAnnotation]; ok && v != "true" && v != "false" {
		c.Warn(manifest.Field("metadata.annotations", object.DefaultIngressClassAnnotation), "neither true nor false", `write "true" or "false"`)
	}
}
