package togateway

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/routematch"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/normalise"
)

// rule is one of a VirtualService's spec.http.
type rule struct {
	out gatewayv1.HTTPRouteRule
	// old are its matches, and of the indices in old that each of out's matches stands for.
	old []*routematch.Match
	of  [][]int
	// body is what it does, comparable.
	body string
}

// problem is why a field cannot be rewritten.
type problem struct{ field, reason, remedy string }

// place finds the listeners that serve a VirtualService, and its domains there.
func (c *conversion) place(s *source) {
	s.served = map[*listener][]string{}
	var stays *problem
	for i, g := range s.spec.GetGateways() {
		field := fmt.Sprintf("spec.gateways[%d]", i)
		if g == contract.MeshGateway {
			stays = &problem{field, "is also for sidecars", "divide it: one for the gateways, and one for mesh"}
			continue
		}
		name, found := gatewayName(g, s.o.Key.Namespace), false
		for _, p := range c.ports {
			for _, l := range p.of.listeners {
				hosts, bound := l.gateways[name]
				if l.port != p || !bound {
					continue
				}
				found = true
				c.domains(s, l, hosts)
			}
		}
		if !found || c.refused[name] {
			stays = &problem{field, "Gateway " + name + " is not rewritten", "see what is said of it, or add its file"}
		}
	}
	if stays != nil {
		c.keepSource(s, stays.field, stays.reason, stays.remedy)
	}
}

func (c *conversion) domains(s *source, l *listener, hosts []string) {
	for _, h := range s.spec.GetHosts() {
		h = normalise.Host(h, s.o.Key.Namespace, c.cfg.Domain)
		for _, of := range hosts {
			domain, ok := narrower(of, h)
			if ok && !slices.Contains(s.served[l], domain) {
				s.served[l] = append(s.served[l], domain)
			}
		}
	}
}

// narrower returns the narrower of two hosts of which one covers the other.
func narrower(a, b string) (string, bool) {
	switch {
	case a == b || covers(a, b):
		return b, true
	case covers(b, a):
		return a, true
	default:
		return "", false
	}
}

func covers(wildcard, host string) bool {
	end, ok := strings.CutPrefix(wildcard, "*")
	return ok && strings.HasSuffix(host, end)
}

// rewritten are the fields of a HTTPRoute of Istio's API, and of its parts, that are rewritten.
var rewritten = map[protoreflect.Name][]string{
	"HTTPRoute":            {"name", "match", "route", "redirect", "rewrite", "headers", "timeout"},
	"HTTPMatchRequest":     {"name", "uri", "method", "headers", "query_params"},
	"HTTPRouteDestination": {"destination", "weight"},
	"Destination":          {"host", "port"},
	"HTTPRedirect":         {"uri", "authority", "scheme", "port", "redirect_code"},
	"HTTPRewrite":          {"authority"},
}

// foreign returns a field that is set and not rewritten.
func foreign(m protoreflect.Message, at string) (found *problem) {
	fields := rewritten[m.Descriptor().Name()]
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		field := at + "." + f.JSONName()
		switch {
		case fields == nil:
		case !slices.Contains(fields, string(f.Name())):
			found = &problem{field, "is not rewritten", remedies[string(f.Name())]}
			if found.remedy == "" {
				found.remedy = "leave it out, or write the route by hand"
			}
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				if found == nil {
					found = foreign(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", field, i))
				}
			}
		case f.Message() != nil && !f.IsMap():
			found = foreign(v.Message(), field)
		}
		return found == nil
	})
	return found
}

var remedies = map[string]string{
	"subset":   "make a Service for the labels of the subset, and send there",
	"uri":      "write a URLRewrite by hand: it replaces whole elements of the path",
	"delegate": "write the delegate's rules as an HTTPRoute by hand",
}

// convert rewrites the rules of a VirtualService.
func (c *conversion) convert(s *source) {
	refuse := func(p *problem) { c.keepSource(s, p.field, p.reason, p.remedy) }
	if len(s.spec.GetTls())+len(s.spec.GetTcp()) > 0 {
		field := "spec.tls"
		if len(s.spec.GetTls()) == 0 {
			field = "spec.tcp"
		}
		refuse(&problem{field, "rules for TLS and TCP are not rewritten", "write a TLSRoute or TCPRoute by hand"})
	}
	for i, in := range s.spec.GetHttp() {
		at := fmt.Sprintf("spec.http[%d]", i)
		r, p := c.rule(s, at, in)
		if p != nil {
			refuse(p)
		}
		s.rules = append(s.rules, r)
	}
}

func (c *conversion) rule(s *source, at string, in *networking.HTTPRoute) (r rule, p *problem) {
	matches := in.GetMatch()
	if len(matches) == 0 {
		matches = []*networking.HTTPMatchRequest{{}}
	}
	for i, m := range matches {
		read, err := routematch.New(m, false)
		if err != nil {
			return r, &problem{fmt.Sprintf("%s.match[%d]", at, i), err.Error(), "write the route by hand"}
		}
		r.old = append(r.old, read)
	}
	if p = foreign(in.ProtoReflect(), at); p != nil {
		return r, p
	}
	for i := 0; i < len(matches); i++ {
		of := []int{i}
		if i+1 < len(matches) && elements(matches[i], matches[i+1]) {
			of = append(of, i+1)
		}
		out, p := match(matches[i], len(of) > 1)
		if p != nil {
			p.field = fmt.Sprintf("%s.match[%d].%s", at, i, p.field)
			return r, p
		}
		r.out.Matches, r.of = append(r.out.Matches, out), append(r.of, of)
		i += len(of) - 1
	}
	if name := in.GetName(); nameOfRule.MatchString(name) && s.o.Origin == nil {
		r.out.Name = new(gatewayv1.SectionName(name))
	}
	if p = c.action(s, at, in, &r.out); p != nil {
		return r, p
	}
	r.body = c.body(s, in)
	return r, nil
}

var nameOfRule = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// elements reports whether two matches are those of a path and of everything below it, as a prefix of the Gateway API.
func elements(a, b *networking.HTTPMatchRequest) bool {
	path, below := a.GetUri().GetExact(), b.GetUri().GetPrefix()
	alone := func(m *networking.HTTPMatchRequest) bool {
		return m.Method == nil && len(m.Headers)+len(m.QueryParams) == 0
	}
	return path != "" && below == path+"/" && alone(a) && alone(b)
}

// match rewrites a match. A prefix of the text is a regular expression: the Gateway API compares whole elements.
func match(in *networking.HTTPMatchRequest, whole bool) (out gatewayv1.HTTPRouteMatch, p *problem) {
	typ, path := gatewayv1.PathMatchPathPrefix, "/"
	switch uri := in.GetUri().GetMatchType().(type) {
	case nil:
	case *networking.StringMatch_Exact:
		typ, path = gatewayv1.PathMatchExact, uri.Exact
		if whole {
			typ = gatewayv1.PathMatchPathPrefix
		}
	case *networking.StringMatch_Prefix:
		if uri.Prefix != "/" && uri.Prefix != "" {
			typ, path = gatewayv1.PathMatchRegularExpression, regexp.QuoteMeta(uri.Prefix)+".*"
		}
	case *networking.StringMatch_Regex:
		typ, path = gatewayv1.PathMatchRegularExpression, uri.Regex
		if path == ".*" {
			typ, path = gatewayv1.PathMatchPathPrefix, "/"
		}
	}
	out.Path = &gatewayv1.HTTPPathMatch{Type: &typ, Value: &path}
	if in.Method != nil {
		method := gatewayv1.HTTPMethod(in.Method.GetExact())
		if in.Method.GetExact() == "" {
			return out, &problem{"method", "is not compared exactly", "write a match for each method"}
		}
		out.Method = &method
	}
	for _, name := range slices.Sorted(maps.Keys(in.Headers)) {
		value, isRegex := text(in.Headers[name])
		if strings.HasPrefix(name, ":") || strings.HasPrefix(name, "@") {
			return out, &problem{"headers", fmt.Sprintf("%q is no header", name), "write the route by hand"}
		}
		h := gatewayv1.HTTPHeaderMatch{Name: gatewayv1.HTTPHeaderName(name), Value: value, Type: new(gatewayv1.HeaderMatchExact)}
		if isRegex {
			h.Type = new(gatewayv1.HeaderMatchRegularExpression)
		}
		out.Headers = append(out.Headers, h)
	}
	for _, name := range slices.Sorted(maps.Keys(in.QueryParams)) {
		value, isRegex := text(in.QueryParams[name])
		q := gatewayv1.HTTPQueryParamMatch{Name: gatewayv1.HTTPHeaderName(name), Value: value, Type: new(gatewayv1.QueryParamMatchExact)}
		if isRegex {
			q.Type = new(gatewayv1.QueryParamMatchRegularExpression)
		}
		out.QueryParams = append(out.QueryParams, q)
	}
	return out, nil
}

// text is the value of a match, and whether it is a regular expression. One without a value wants any.
func text(in *networking.StringMatch) (value string, isRegex bool) {
	switch t := in.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return t.Exact, t.Exact == ""
	case *networking.StringMatch_Prefix:
		return regexp.QuoteMeta(t.Prefix) + ".*", true
	case *networking.StringMatch_Regex:
		return t.Regex, true
	default:
		return ".*", true
	}
}

// action rewrites what a rule does.
func (c *conversion) action(s *source, at string, in *networking.HTTPRoute, out *gatewayv1.HTTPRouteRule) *problem {
	if p := headers(at+".headers", in.GetHeaders(), out); p != nil {
		return p
	}
	if r := in.GetRedirect(); r != nil {
		filter := &gatewayv1.HTTPRequestRedirectFilter{StatusCode: new(301)}
		if r.GetRedirectCode() != 0 {
			filter.StatusCode = new(int(r.GetRedirectCode()))
		}
		if r.GetScheme() != "" {
			filter.Scheme = new(r.GetScheme())
		}
		if r.GetAuthority() != "" {
			filter.Hostname = new(gatewayv1.PreciseHostname(r.GetAuthority()))
		}
		if r.GetPort() != 0 {
			filter.Port = new(gatewayv1.PortNumber(r.GetPort())) //nolint:gosec // a port
		}
		if r.GetUri() != "" {
			if strings.Contains(r.GetUri(), "%") {
				return &problem{at + ".redirect.uri", "has a part that Istio replaces",
					"write a RequestRedirect with ReplacePrefixMatch by hand"}
			}
			filter.Path = &gatewayv1.HTTPPathModifier{Type: gatewayv1.FullPathHTTPPathModifier, ReplaceFullPath: new(r.GetUri())}
		}
		out.Filters = append(out.Filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterRequestRedirect,
			RequestRedirect: filter})
		return nil
	}
	if host := in.GetRewrite().GetAuthority(); host != "" {
		out.Filters = append(out.Filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterURLRewrite,
			URLRewrite: &gatewayv1.HTTPURLRewriteFilter{Hostname: new(gatewayv1.PreciseHostname(host))}})
	}
	if t := in.GetTimeout(); t != nil {
		d := gatewayv1.Duration(t.AsDuration().String())
		out.Timeouts = &gatewayv1.HTTPRouteTimeouts{Request: &d}
	}
	if len(in.GetRoute()) == 0 {
		return &problem{at + ".route", "sends nowhere", "write the route by hand"}
	}
	for i, d := range in.GetRoute() {
		field := fmt.Sprintf("%s.route[%d].destination", at, i)
		name, namespace, number := c.backend(s, d.GetDestination())
		if name == "" {
			return &problem{field + ".host", "is no host of a Service of the cluster", "write a backendRef of the kind Hostname by hand"}
		}
		if number == 0 {
			return &problem{field + ".port", "is not given", "name the port, or add the Service's file"}
		}
		ref := gatewayv1.HTTPBackendRef{}
		ref.Name, ref.Port = gatewayv1.ObjectName(name), new(gatewayv1.PortNumber(number)) //nolint:gosec // a port
		if namespace != s.o.Key.Namespace {
			ref.Namespace = new(gatewayv1.Namespace(namespace))
		}
		if len(in.GetRoute()) > 1 {
			ref.Weight = new(d.GetWeight())
		}
		out.BackendRefs = append(out.BackendRefs, ref)
	}
	return nil
}

// backend resolves a destination; name is empty if its host is no Service's, port 0 if it is not known.
func (c *conversion) backend(s *source, d *networking.Destination) (name, namespace string, port uint32) {
	host, ok := strings.CutSuffix(normalise.Host(d.GetHost(), s.o.Key.Namespace, c.cfg.Domain), ".svc."+c.cfg.Domain)
	name, namespace, found := strings.Cut(host, ".")
	if !ok || !found || strings.Contains(namespace, ".") {
		return "", "", 0
	}
	port = d.GetPort().GetNumber()
	if service := c.services[namespace+"/"+name]; port == 0 && service != nil {
		if ports := service.Body.(*corev1.Service).Spec.Ports; len(ports) == 1 {
			port = uint32(ports[0].Port) //nolint:gosec // a port
		}
	}
	return name, namespace, port
}

// headers rewrites operations on headers.
func headers(at string, in *networking.Headers, out *gatewayv1.HTTPRouteRule) *problem {
	for _, side := range []struct {
		name string
		in   *networking.Headers_HeaderOperations
	}{{"request", in.GetRequest()}, {"response", in.GetResponse()}} {
		if side.in == nil {
			continue
		}
		f := &gatewayv1.HTTPHeaderFilter{Remove: side.in.GetRemove()}
		for _, list := range []struct {
			in map[string]string
			to *[]gatewayv1.HTTPHeader
		}{{side.in.GetSet(), &f.Set}, {side.in.GetAdd(), &f.Add}} {
			for _, name := range slices.Sorted(maps.Keys(list.in)) {
				if strings.Contains(list.in[name], "%") || strings.HasPrefix(name, ":") || strings.EqualFold(name, "host") {
					return &problem{at + "." + side.name, fmt.Sprintf("%q is no plain header with a plain value", name),
						"write the filter by hand"}
				}
				*list.to = append(*list.to, gatewayv1.HTTPHeader{Name: gatewayv1.HTTPHeaderName(name), Value: list.in[name]})
			}
		}
		filter := gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterRequestHeaderModifier, RequestHeaderModifier: f}
		if side.name == "response" {
			filter = gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterResponseHeaderModifier, ResponseHeaderModifier: f}
		}
		out.Filters = append(out.Filters, filter)
	}
	return nil
}

// body writes what a rule does with complete hosts and ports, so that it can be compared.
func (c *conversion) body(s *source, in *networking.HTTPRoute) string {
	return canonical(in, func(d *networking.Destination) string {
		name, namespace, port := c.backend(s, d)
		return fmt.Sprintf("%s.%s.svc.%s:%d", name, namespace, c.cfg.Domain, port)
	})
}

// canonical writes what a route of Istio's API does with a request, without its match and name.
func canonical(in *networking.HTTPRoute, host func(*networking.Destination) string) string {
	var out []string
	add := func(form string, args ...any) { out = append(out, fmt.Sprintf(form, args...)) }
	if r := in.GetRedirect(); r != nil {
		code := r.GetRedirectCode()
		if code == 0 {
			code = 301
		}
		add("redirect %d %s://%s:%d%s", code, r.GetScheme(), r.GetAuthority(), r.GetPort(), r.GetUri())
	}
	if d := in.GetDirectResponse(); d != nil {
		add("status %d", d.GetStatus())
	}
	out = append(out, lists.Map(in.GetRoute(), func(d *networking.HTTPRouteDestination) string {
		weight := d.GetWeight()
		if len(in.GetRoute()) == 1 {
			weight = 1
		}
		return fmt.Sprintf("to %s weight %d headers %v", host(d.GetDestination()), weight, d.GetHeaders())
	})...)
	for _, side := range []*networking.Headers_HeaderOperations{in.GetHeaders().GetRequest(), in.GetHeaders().GetResponse()} {
		add("headers %v %v %v", side.GetSet(), side.GetAdd(), side.GetRemove())
	}
	add("rewrite %q %q %v timeout %v retries %v mirrors %v cors %v fault %v", in.GetRewrite().GetUri(), in.GetRewrite().GetAuthority(),
		in.GetRewrite().GetUriRegexRewrite() != nil, in.GetTimeout().AsDuration(), in.GetRetries() != nil, len(in.GetMirrors()),
		in.GetCorsPolicy() != nil, in.GetFault() != nil)
	return strings.Join(out, ", ")
}
