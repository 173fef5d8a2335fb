package togateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/routematch"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/routerank"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// entry is one match at a domain of a listener.
type entry struct {
	host, rank []byte
	s          *source
	// rule and index are those of the match in the VirtualService, before of its place there among all of the domain.
	rule, before int
	// old are the matches that it stands for.
	old []*routematch.Match
	*routematch.Match
	body string
}

// answer is what a side does with a request.
type answer struct {
	body string
	s    *source
}

// side are the entries of one side, in the order in which they are tried, by listener and domain.
type side map[*listener]map[string][]*entry

// redirection is what a server with httpsRedirect answers.
const redirection = "redirect to https"

// prove builds the objects, and keeps what does not answer alike, until all does.
func (c *conversion) prove() *Result {
	for {
		c.spread()
		b := c.build()
		before := c.stay()
		state := c.state(b)
		if c.stay() == before {
			old, changed := c.old(), c.changed(b, state)
			c.order(old, changed)
			requests := 0
			if c.stay() == before {
				requests = c.compare(old, changed)
			}
			if c.stay() == before {
				slices.SortFunc(c.kept, func(a, b Kept) int {
					return cmp.Or(a.Object.Compare(b.Object), strings.Compare(a.Field, b.Field), strings.Compare(a.Reason, b.Reason))
				})
				return &Result{Objects: b.all(), Replaced: c.replaced(), Kept: c.kept, Remarks: c.remarks(b), Requests: requests}
			}
		}
	}
}

// state computes what the new objects mean. What an object's definition refuses keeps its source.
func (c *conversion) state(b *built) map[object.Key]*configv1.GatewayAPIConfig {
	s := gatewayapi.New(gatewayapi.Config{Domain: c.cfg.Domain})
	for _, o := range c.services {
		s.Put(o.Key, o)
	}
	for _, made := range b.all() {
		text, err := json.Marshal(made)
		var o *object.Object
		if err == nil {
			docs, _ := manifest.Parse("", text)
			o, err = validate.Document(docs[0])
		}
		name := made.(metav1.Object).GetNamespace() + "/" + made.(metav1.Object).GetName()
		p, isPart := b.parts[name]
		if err != nil && isPart {
			c.keepSource(p.source, "", "its HTTPRoute would be refused: "+err.Error(), "mend that first")
		}
		if err != nil && !isPart {
			for _, source := range c.sources {
				if !source.kept {
					c.keepSource(source, "spec.gateways", "an object for its Gateway would be refused: "+err.Error(), "mend that first")
				}
			}
		}
		if err != nil {
			continue
		}
		s.Put(o.Key, o)
	}
	for _, g := range b.gateways {
		for _, l := range g.Spec.Listeners {
			if l.TLS != nil {
				k := object.Key{Group: "fairlead.dev", Kind: object.KindCredentialState, Namespace: g.Namespace,
					Name: string(l.TLS.CertificateRefs[0].Name)}
				s.Put(k, &object.Object{Key: k, Body: &object.CredentialState{}})
			}
		}
	}
	// Backends whose Services are not among the objects exist elsewhere.
	made := map[string]*corev1.Service{}
	for _, r := range b.routes {
		for _, rule := range r.Spec.Rules {
			for _, ref := range rule.BackendRefs {
				namespace := r.Namespace
				if ref.Namespace != nil {
					namespace = string(*ref.Namespace)
				}
				k := object.Key{Kind: "Service", Namespace: namespace, Name: string(ref.Name)}
				name := namespace + "/" + k.Name
				if c.services[name] != nil {
					continue
				}
				if made[name] == nil {
					made[name] = &corev1.Service{}
					s.Put(k, &object.Object{Key: k, Body: made[name]})
				}
				made[name].Spec.Ports = append(made[name].Spec.Ports, corev1.ServicePort{Port: *ref.Port})
			}
		}
	}
	return s.Rebuild().Resources
}

// old lists the entries of Istio's objects: those of all VirtualServices of a domain, the oldest first; matches that
// take everything last, and only the first of them.
func (c *conversion) old() side {
	out := side{}
	for _, s := range c.sources {
		for l, domains := range s.served {
			for _, d := range domains {
				for i, r := range s.rules {
					for _, m := range r.old {
						out.add(l, d, &entry{s: s, rule: i, Match: m, body: r.body})
					}
				}
			}
		}
	}
	for l, domains := range out {
		for d, list := range domains {
			var last, first []*entry
			for _, e := range list {
				switch {
				case e.String() != "everything":
					first = append(first, e)
				case len(last) == 0:
					last = []*entry{e}
				}
			}
			domains[d] = append(first, last...)
			if l.isRedirected(d) {
				domains[d] = []*entry{{body: redirection}}
			}
		}
	}
	out.redirect()
	return out
}

func (s side) add(l *listener, domain string, e *entry) {
	if s[l] == nil {
		s[l] = map[string][]*entry{}
	}
	s[l][domain] = append(s[l][domain], e)
}

// redirect adds the hosts that are redirected to HTTPS.
func (s side) redirect() {
	for l := range s {
		for _, host := range l.redirected {
			if s[l][host] == nil {
				s.add(l, host, &entry{body: redirection})
			}
		}
	}
}

// changed lists the entries of the new objects, with those of Istio's for the domains that stay.
func (c *conversion) changed(b *built, state map[object.Key]*configv1.GatewayAPIConfig) side {
	out := side{}
	byName := map[string]*listener{}
	for _, p := range c.ports {
		for _, l := range p.of.listeners {
			byName[l.of.namespace+"/"+l.of.name+" "+l.name] = l
		}
	}
	for key, resource := range state {
		route := resource.GetRoute()
		p, isPart := b.parts[key.Namespace+"/"+key.Name]
		for _, attached := range route.GetListeners() {
			l := byName[attached.GetGateway()+" "+attached.GetListener()]
			for _, h := range attached.GetHosts() {
				domain := cmp.Or(h.GetDomain(), "*")
				if !isPart {
					out.add(l, domain, &entry{host: h.GetRank(), body: redirection})
					continue
				}
				for _, rule := range route.GetRules() {
					does := &networking.HTTPRoute{}
					_ = proto.Unmarshal(rule.GetHttp().GetValue(), does) // made here
					body := canonical(does, func(d *networking.Destination) string {
						return fmt.Sprintf("%s:%d", d.GetHost(), d.GetPort().GetNumber())
					})
					if rule.PrefixRedirect != nil || rule.PrefixRewrite != nil {
						body += ", prefix replaced"
					}
					for _, m := range rule.GetMatches() {
						request := &networking.HTTPMatchRequest{}
						_ = proto.Unmarshal(m.GetMatch().GetValue(), request) // made here
						read, err := routematch.New(request, m.GetPathElements())
						if err != nil {
							continue // answers nothing, which the comparison finds
						}
						i, j := routerank.Place(m.GetRank())
						e := &entry{host: h.GetRank(), rank: m.GetRank(), s: p.source, rule: p.first + i, Match: read, body: body}
						for _, k := range p.rules[e.rule].of[j] {
							e.old = append(e.old, p.rules[e.rule].old[k])
						}
						out.add(l, domain, e)
					}
				}
			}
		}
	}
	for _, domains := range out {
		for _, list := range domains {
			slices.SortFunc(list, func(a, b *entry) int { return cmp.Or(bytes.Compare(a.host, b.host), bytes.Compare(a.rank, b.rank)) })
		}
	}
	for l, domains := range c.old() {
		for d, list := range domains {
			if len(list) > 0 && list[0].s != nil && list[0].s.kept {
				if out[l] == nil {
					out[l] = map[string][]*entry{}
				}
				out[l][d] = list
			}
		}
	}
	return out
}

// order keeps VirtualServices of whose rules two change their places that one request may match.
func (c *conversion) order(old, changed side) {
	for l, domains := range changed {
		for d, list := range domains {
			place := map[*routematch.Match]int{}
			for i, e := range old[l][d] {
				place[e.Match] = i + 1
			}
			for i, e := range list {
				if e.before = len(place) + 1; e.s == nil || e.s.kept {
					continue
				}
				for _, m := range e.old {
					if at := place[m]; at > 0 {
						e.before = min(e.before, at)
					}
				}
				for _, earlier := range list[:i] {
					if earlier.s == nil || earlier.s.kept || earlier.before <= e.before || earlier.body == e.body || apart(earlier, e) {
						continue
					}
					c.keepSource(e.s, fmt.Sprintf("spec.http[%d]", e.rule),
						fmt.Sprintf("comes before %s (%s), which the Gateway API would try first",
							earlier.s.user[0].Key, earlier.old[0]), "make its match more specific, or let the two exclude each other")
					break
				}
			}
		}
	}
}

// apart reports whether no request matches two entries.
func apart(a, b *entry) bool {
	for _, m := range a.old {
		for _, n := range b.old {
			if !m.Disjoint(n) {
				return false
			}
		}
	}
	return true
}

// maxRandom is how many requests of random parts are compared, beside those for each match.
const maxRandom = 5000

// compare answers requests by both sides, and keeps what answers otherwise. It returns how many there were.
func (c *conversion) compare(old, changed side) (requests int) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // not for secrets
	for _, p := range c.ports {
		var hosts, paths, queries []string
		methods, headers := []string{"GET", "POST"}, []http.Header{{}}
		for _, s := range []side{old, changed} {
			for _, l := range p.of.listeners {
				if l.port != p {
					continue
				}
				for d, list := range s[l] {
					hosts = append(hosts, sampleHosts(d)...)
					for _, e := range list {
						if e.Match == nil {
							continue
						}
						path, method, header, query := e.Samples()
						paths, queries, headers = append(paths, path...), append(queries, query), append(headers, header)
						if method != "" {
							methods = append(methods, method)
						}
					}
				}
			}
		}
		hosts, paths, methods, queries = unique(append(hosts, "none.invalid")), unique(append(paths, "/", "/none")), unique(methods),
			unique(append(queries, ""))
		ask := func(host string, r routematch.Request) {
			requests++
			was, is := old.answer(p, host, r), changed.answer(p, host, r)
			if was.body == is.body {
				return
			}
			s := was.s
			if s == nil {
				s = is.s
			}
			if s == nil || s.kept {
				s = c.movedFrom(p)
			}
			if s != nil {
				c.keepSource(s, "spec.http", fmt.Sprintf("%s http://%s:%d%s would be answered otherwise: %q, and not %q", r.Method, host,
					p.number, r.Path,
					is.body, was.body), "write the route by hand")
			}
		}
		for _, host := range hosts {
			for _, path := range paths {
				ask(host, routematch.Request{Method: "GET", Path: path, Header: http.Header{}})
			}
			for i := range headers[1:] {
				ask(host, routematch.Request{Method: "GET", Path: paths[i%len(paths)], Header: headers[i+1]})
			}
		}
		for range maxRandom {
			header := http.Header{}
			for range random.IntN(3) {
				for name, v := range headers[random.IntN(len(headers))] {
					header[name] = v
				}
			}
			ask(hosts[random.IntN(len(hosts))], routematch.Request{Method: methods[random.IntN(len(methods))],
				Path: paths[random.IntN(len(paths))], Query: queries[random.IntN(len(queries))], Header: header})
		}
	}
	return requests
}

// movedFrom returns a source that does not stay and that a port serves; nil if there is none.
func (c *conversion) movedFrom(p *port) *source {
	for _, s := range c.sources {
		for l := range s.served {
			if l.port == p && !s.kept {
				return s
			}
		}
	}
	return nil
}

// stay counts the sources that stay.
func (c *conversion) stay() (n int) {
	for _, s := range c.sources {
		if s.kept {
			n++
		}
	}
	return n
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

func sampleHosts(domain string) []string {
	end, wildcard := strings.CutPrefix(domain, "*")
	if !wildcard {
		return []string{domain, "x." + domain}
	}
	return []string{"x" + cmp.Or(end, ".example"), "y.x" + cmp.Or(end, ".example")}
}

// answer is what a side answers at a port. A client of HTTPS sends the host as SNI.
func (s side) answer(p *port, host string, r routematch.Request) answer {
	var at *listener
	for _, l := range p.of.listeners {
		if l.port == p && (l.host == host || covers(l.host, host)) && (at == nil || covers(at.host, l.host)) {
			at = l
		}
	}
	if at == nil {
		return answer{body: "closed"}
	}
	best, found := "", false
	for d := range s[at] {
		if (d == host || covers(d, host)) && (!found || covers(best, d)) {
			best, found = d, true
		}
	}
	for _, e := range s[at][best] {
		if e.Match == nil || e.Matches(r) {
			return answer{e.body, e.s}
		}
	}
	return answer{body: "404"}
}
