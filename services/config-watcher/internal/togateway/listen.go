package togateway

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// workload is what Gateways with one selector are served by: one Gateway of the Gateway API stands for them.
type workload struct {
	// namespace and name are those of the new Gateway; service is the Service of the workload, nil if it is not known.
	namespace, name string
	service         *corev1.Service
	listeners       []*listener
}

// port is the servers of a port of a workload.
type port struct {
	of      *workload
	number  uint32
	tls     bool
	servers []server
}

// server is a server of an Istio Gateway.
type server struct {
	gateway  string // <namespace>/<name>
	o        *object.Object
	index    int
	hosts    []string
	redirect bool
	secret   string
}

// listener is one of a new Gateway.
type listener struct {
	of   *workload
	name string
	port *port
	// host is "*" for any.
	host, secret string
	// gateways are those of Istio's that have it, with their hosts there.
	gateways map[string][]string
	// redirected are the hosts whose requests are redirected to HTTPS.
	redirected []string
}

// listen makes the listeners that stand for the servers of all Gateways.
func (c *conversion) listen() {
	workloads := map[string]*workload{}
	for _, g := range c.gateways {
		spec := g.Body.(*networking.Gateway)
		name := g.Key.Namespace + "/" + g.Key.Name
		if c.unsupported(g, spec) {
			c.refused[name] = true
			continue
		}
		key := fmt.Sprint(slices.Sorted(maps.Keys(spec.GetSelector())), spec.GetSelector())
		w := workloads[key]
		if w == nil {
			w = &workload{namespace: g.Key.Namespace, name: userOf(g).Key.Name}
			if s := c.serviceOf(spec.GetSelector()); s != nil {
				w.namespace, w.name, w.service = s.Namespace, s.Name, s
			}
			workloads[key] = w
		}
		for i, spec := range spec.GetServers() {
			c.listenTo(w, g, i, spec)
		}
	}
}

// serviceOf finds the Service that selects the workloads of a Gateway.
func (c *conversion) serviceOf(selector map[string]string) *corev1.Service {
	for _, name := range slices.Sorted(maps.Keys(c.services)) {
		s := c.services[name].Body.(*corev1.Service)
		if len(selector) > 0 && len(s.Spec.Selector) > 0 && object.HasLabels(s.Spec.Selector, selector) {
			s = s.DeepCopy()
			s.Namespace, s.Name, _ = strings.Cut(name, "/")
			return s
		}
	}
	return nil
}

// unsupported names what of a Gateway the Gateway API cannot say.
func (c *conversion) unsupported(g *object.Object, spec *networking.Gateway) bool {
	before := len(c.kept)
	for i, s := range spec.GetServers() {
		field := fmt.Sprintf("spec.servers[%d]", i)
		protocol := contract.ParseProtocol(s.GetPort().GetProtocol())
		https := protocol == configv1.Protocol_PROTOCOL_HTTPS
		switch {
		case !https && !contract.IsHTTP(protocol):
			c.keep(g, field+".port.protocol", s.GetPort().GetProtocol()+" is not rewritten", "write a TLSRoute or TCPRoute by hand")
		case https && (s.GetTls().GetMode() != networking.ServerTLSSettings_SIMPLE || s.GetTls().GetCredentialName() == ""):
			c.keep(g, field+".tls", "only mode SIMPLE with a credentialName is rewritten", "write the listener by hand")
		case https && (s.GetTls().GetMinProtocolVersion() != 0 || s.GetTls().GetMaxProtocolVersion() != 0 ||
			len(s.GetTls().GetCipherSuites()) > 0):
			c.keep(g, field+".tls", "versions and cipher suites of TLS have no field in the Gateway API", "leave them out")
		case s.GetBind() != "" || s.GetDefaultEndpoint() != "":
			c.keep(g, field, "bind and defaultEndpoint have no field in the Gateway API", "leave them out")
		}
		for j, h := range s.GetHosts() {
			if ns, _, found := strings.Cut(h, "/"); found && ns != "*" {
				c.keep(g, fmt.Sprintf("%s.hosts[%d]", field, j), "a host for one namespace has no field in the Gateway API",
					"leave the namespace out, and set allowedRoutes of the listener")
			}
		}
	}
	return len(c.kept) > before
}

func (c *conversion) listenTo(w *workload, g *object.Object, index int, spec *networking.Server) {
	name := g.Key.Namespace + "/" + g.Key.Name
	tls := contract.ParseProtocol(spec.GetPort().GetProtocol()) == configv1.Protocol_PROTOCOL_HTTPS
	var hosts []string
	for _, h := range spec.GetHosts() {
		if _, host, found := strings.Cut(h, "/"); found {
			h = host
		}
		hosts = append(hosts, normalise.Host(h, g.Key.Namespace, c.cfg.Domain))
	}
	at := slices.IndexFunc(c.ports, func(p *port) bool { return p.of == w && p.number == spec.GetPort().GetNumber() })
	if at < 0 {
		at, c.ports = len(c.ports), append(c.ports, &port{of: w, number: spec.GetPort().GetNumber(), tls: tls})
	}
	p := c.ports[at]
	if p.tls != tls {
		c.keep(g, fmt.Sprintf("spec.servers[%d].port", index), "an older server of the port has another protocol: this one is not served",
			"remove it")
		c.refused[name] = true
		return
	}
	s := server{gateway: name, o: g, index: index, hosts: hosts, redirect: spec.GetTls().GetHttpsRedirect() && !tls,
		secret: spec.GetTls().GetCredentialName()}
	p.servers = append(p.servers, s)
	if !tls {
		// One listener for all hosts: the routes of a port of plain HTTP share their domains, whatever server has them.
		l := w.listener(p, "*", "")
		l.gateways[name] = append(l.gateways[name], hosts...)
		if s.redirect {
			l.redirected = append(l.redirected, hosts...)
		}
		return
	}
	for _, h := range hosts {
		l := w.listener(p, h, s.secret)
		if l.secret != s.secret {
			c.keep(g, fmt.Sprintf("spec.servers[%d].hosts", index),
				fmt.Sprintf("an older server of the port serves %s with another certificate", h),
				"remove the host")
			c.refused[name] = true
			continue
		}
		l.gateways[name] = append(l.gateways[name], h)
	}
}

// listener returns the listener of a port for a host; it is made if it is new.
func (w *workload) listener(p *port, host, secret string) *listener {
	i := slices.IndexFunc(w.listeners, func(l *listener) bool { return l.port == p && l.host == host })
	if i >= 0 {
		return w.listeners[i]
	}
	scheme := "http"
	if p.tls {
		scheme = "https"
	}
	l := &listener{of: w, name: fmt.Sprintf("%s-%d", scheme, p.number), port: p, host: host, secret: secret,
		gateways: map[string][]string{}}
	if host != "*" {
		l.name += "-" + strings.NewReplacer("*", "any", ".", "-").Replace(host)
	}
	if len(l.name) > 253 {
		l.name = l.name[:253]
	}
	w.listeners = append(w.listeners, l)
	return l
}
