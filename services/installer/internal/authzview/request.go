package authzview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/process"
)

// request makes of what was said the request that the workload's proxy sees.
func (m *Mesh) request(out *Result, from *Caller, to *Target, w *Workload, said Request) (authz.Request, error) {
	req := authz.Request{
		TCP: said.TCP, Principal: from.Principal, SourceIP: said.SourceIP, RemoteIP: said.RemoteIP, Port: said.Port,
		SNI:    strings.ToLower(said.SNI), // as Envoy reads it
		Claims: said.Claims, Answers: map[string]authz.Answer{},
	}
	leads, err := m.leads(to, w, said.Port)
	if err != nil {
		return req, err
	}
	if len(leads) > 0 {
		req.Port = leads[0].port.targetOn(w)
		out.noteProtocol(leads, said, &req)
	} else {
		out.noteServicePort(m.leadsTo(w), w, said.Port)
	}
	if !req.SourceIP.IsValid() && from.Workload != nil && len(from.Workload.Addresses) > 0 {
		req.SourceIP = from.Workload.Addresses[0]
	}
	if !req.RemoteIP.IsValid() {
		req.RemoteIP = req.SourceIP
	}
	if len(w.Addresses) > 0 {
		req.DestinationIP = w.Addresses[0]
	}
	if req.TCP {
		return req, nil
	}
	req.Method, req.Path, req.Host, req.Headers = cmp.Or(said.Method, "GET"), cmp.Or(said.Path, "/"), said.Host, said.Headers
	kind := m.Settings.GetPathNormalization().GetNormalization()
	if path := authz.NormalisePath(req.Path, kind); path != req.Path {
		out.note("the proxy normalises the path (%s): policies see %s", kind, path)
		req.Path = path
	}
	if malformed(said.Path, kind) {
		out.note("the proxy answers a path with #, %%00 or a character that is not ASCII with 400 before any policy")
	}
	return req, nil
}

// malformed reports whether a proxy refuses a path itself.
func malformed(path string, kind meshv1alpha1.MeshConfig_ProxyPathNormalization_NormalizationType) bool {
	if strings.Contains(path, "#") || strings.ContainsFunc(path, func(r rune) bool { return r > unicode.MaxASCII }) {
		return true
	}
	bare, _, _ := strings.Cut(path, "?")
	return kind != meshv1alpha1.MeshConfig_ProxyPathNormalization_NONE && strings.Contains(bare, "%00")
}

// lead is a port of a Service that leads to a port of a workload.
type lead struct {
	service *Service
	port    ServicePort
}

// leads lists the ports that lead to the port that was said, of the Service or of all Services of the workload.
func (m *Mesh) leads(to *Target, w *Workload, number uint32) ([]lead, error) {
	s := to.Service
	if s == nil {
		return lists.Filter(m.leadsTo(w), func(l lead) bool { return number != 0 && l.port.targetOn(w) == number }), nil
	}
	if number == 0 && len(s.Ports) == 1 {
		return []lead{{s, s.Ports[0]}}, nil
	}
	var ports []string
	for _, p := range s.Ports {
		if p.Number == number {
			return []lead{{s, p}}, nil
		}
		ports = append(ports, fmt.Sprint(p.Number))
	}
	if number != 0 {
		return nil, process.Usagef("--port %d: Service %s/%s has the ports %s", number, s.Namespace, s.Name, strings.Join(ports, ", "))
	}
	return nil, nil
}

// leadsTo lists the ports of Services that lead to a workload.
func (m *Mesh) leadsTo(w *Workload) []lead {
	var out []lead
	for _, s := range m.Services {
		if !s.selects(w) {
			continue
		}
		for _, p := range s.Ports {
			out = append(out, lead{s, p})
		}
	}
	return out
}

// noteProtocol makes a request a connection if the ports that lead to it are for TCP.
func (r *Result) noteProtocol(leads []lead, said Request, req *authz.Request) {
	if req.TCP {
		return
	}
	tcp := lists.Filter(leads, func(l lead) bool { return l.port.TCP() })
	if len(tcp) == 0 {
		return
	}
	l := tcp[0]
	text := fmt.Sprintf("port %d of Service %s/%s is for TCP by its name or appProtocol", l.port.Number, l.service.Namespace, l.service.Name)
	if len(tcp) < len(leads) {
		r.note("%s, and other ports lead to the same one for HTTP: with --tcp it is decided about the connection", text)
		return
	}
	req.TCP = true
	without := ""
	if said.Method != "" || said.Host != "" || len(said.Headers) > 0 {
		without = ", which has no method, path, host or headers"
	}
	r.note("%s: it is decided about the connection%s", text, without)
}

// noteServicePort notes that a port of a workload, to which no Service leads, has the number of a Service's.
func (r *Result) noteServicePort(leads []lead, w *Workload, number uint32) {
	for _, l := range leads {
		if number != 0 && l.port.Number == number {
			r.note("--port %d is taken as the port of %s: port %d of Service %s/%s leads to port %d there", number, w.ID(), number,
				l.service.Namespace, l.service.Name, l.port.targetOn(w))
			return
		}
	}
}

// noteOtherPorts notes at which ports the answer is another one, if no port is said. A request with a method is not one
// for a port for TCP.
func (m *Mesh) noteOtherPorts(out *Result, from *Caller, to *Target, class *Class, said Request) error {
	if said.Port != 0 {
		return nil
	}
	w := class.Workloads[0]
	leads := m.leadsTo(w)
	if s := to.Service; s != nil {
		leads = lists.Map(s.Ports, func(p ServicePort) lead { return lead{s, p} })
	}
	var ports []uint32
	for _, l := range leads {
		switch {
		case said.Method != "" && l.port.TCP():
		case to.Service != nil:
			ports = append(ports, l.port.Number)
		default:
			ports = append(ports, l.port.targetOn(w))
		}
	}
	slices.Sort(ports)
	byOutcome := map[string][]string{}
	for _, number := range slices.Compact(ports) {
		if number == 0 {
			continue // a name that no container has
		}
		said.Port = number
		other, err := m.result(from, to, class, said)
		if err != nil {
			return err
		}
		if other.Outcome != out.Outcome {
			byOutcome[other.Outcome] = append(byOutcome[other.Outcome], fmt.Sprintf("--port %d", number))
		}
	}
	for _, outcome := range sortedKeys(byOutcome) {
		out.note("no port is said, and at some the answer is another: %s with %s", outcome, strings.Join(byOutcome[outcome], ", "))
	}
	return nil
}
