// Package routeorder looks at the order in which rules of the Gateway API are tried at each listener and host: Analyze
// tells which matches no request reaches, and what routes of a file would take from others. It attaches and ranks them
// with package gatewayapi, as a running mesh does.
package routeorder

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/routematch"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/routerank"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Object is a valid object of a mesh.
type Object struct {
	*object.Object
	// File is the file that has it; empty if an API server does.
	File string
}

// Finding is about a route.
type Finding struct {
	Key  object.Key
	Code finding.Code
	// Field is what the finding is about, Reason what is found, and Remedy what to do.
	Field, Reason, Remedy string
}

// Config says where the objects are.
type Config struct {
	// Domain is the DNS suffix of Services.
	Domain string
	// Now is the age of routes of files that have none: an API server would make them now.
	Now time.Time
}

// maxComparisons bounds how often two matches are compared, which is some seconds; what is beyond gets no findings.
const maxComparisons = 1 << 24

// maxTold bounds the findings about one route.
const maxTold = 100

// Analyze returns the findings about the routes of the Gateway API among the objects, by host and order.
func Analyze(cfg Config, objects []Object) []Finding {
	state := gatewayapi.New(gatewayapi.Config{Domain: cfg.Domain})
	a := &analysis{
		files: map[object.Key]string{}, hosts: map[host][]*match{}, left: maxComparisons, said: map[Finding]bool{}, told: map[object.Key]int{},
	}
	for _, o := range objects {
		put := o.Object
		if o.File != "" && o.Created.IsZero() && o.Key.Group == gatewayapi.Group {
			made := *o.Object
			made.Created = cfg.Now
			put = &made
		}
		a.files[o.Key] = o.File
		state.Put(o.Key, put)
	}
	result := state.Rebuild()
	for key, resource := range result.Resources {
		if key.Kind == gatewayapi.HTTPRoute || key.Kind == gatewayapi.GRPCRoute {
			a.add(key, resource.GetRoute())
		}
	}
	for at := range a.hosts {
		slices.SortFunc(a.hosts[at], func(a, b *match) int { return cmp.Or(bytes.Compare(a.host, b.host), bytes.Compare(a.rank, b.rank)) })
		a.order = append(a.order, at)
	}
	slices.SortFunc(a.order, func(a, b host) int {
		return cmp.Or(strings.Compare(a.listener, b.listener), strings.Compare(a.domain, b.domain))
	})
	for _, at := range a.order {
		a.wholeHost(at)
		a.matches(at)
	}
	return a.found
}

// host is a domain of a listener, or a Service.
type host struct{ listener, domain string }

func (h host) String() string {
	if h.listener == "" {
		return "service " + h.domain
	}
	return fmt.Sprintf("host %s at listener %s", cmp.Or(h.domain, "*"), h.listener)
}

// match is one match of a rule of a route.
type match struct {
	host, rank []byte
	key        object.Key
	*routematch.Match
}

func (m *match) String() string {
	rule, _ := routerank.Place(m.rank)
	return fmt.Sprintf("%s rule %d (%s)", m.key, rule+1, m.Match)
}

func (m *match) field() string {
	rule, index := routerank.Place(m.rank)
	return fmt.Sprintf("spec.rules[%d].matches[%d]", rule, index)
}

type analysis struct {
	files map[object.Key]string
	hosts map[host][]*match
	order []host
	left  int
	// said are the findings so far, and told counts those about each route.
	said  map[Finding]bool
	told  map[object.Key]int
	found []Finding
}

func (a *analysis) add(key object.Key, route *configv1.AttachedRoute) {
	var matches []*match
	for _, rule := range route.GetRules() {
		for _, m := range rule.GetMatches() {
			request := &networking.HTTPMatchRequest{}
			if proto.Unmarshal(m.GetMatch().GetValue(), request) != nil {
				continue // cannot be: it was made here
			}
			read, err := routematch.New(request, m.GetPathElements())
			if err != nil {
				continue // a regular expression that Go's package refuses and Envoy takes
			}
			matches = append(matches, &match{rank: m.GetRank(), key: key, Match: read})
		}
	}
	to := func(at host, rank []byte) {
		for _, m := range matches {
			placed := *m
			placed.host = rank
			a.hosts[at] = append(a.hosts[at], &placed)
		}
	}
	for _, l := range route.GetListeners() {
		name := strings.Join(slices.DeleteFunc([]string{l.GetGateway(), l.GetListenerSet(), l.GetListener()},
			func(part string) bool { return part == "" }), "/")
		for _, h := range l.GetHosts() {
			to(host{name, h.GetDomain()}, h.GetRank())
		}
	}
	for _, s := range route.GetServices() {
		if s.GetClientNamespace() == "" {
			to(host{"", fmt.Sprintf("%s:%d", s.GetHostname(), s.GetPort())}, nil)
		}
	}
}

func (a *analysis) report(f Finding) {
	if !a.said[f] && a.told[f.Key] < maxTold {
		a.said[f] = true
		a.told[f.Key]++
		a.found = append(a.found, f)
	}
}

// isNew reports whether a route is of a file and another one is not of that file.
func (a *analysis) isNew(key, other object.Key) bool {
	return a.files[key] != "" && a.files[key] != a.files[other]
}

// wholeHost reports routes of a file that are the first for a domain of a listener: the routes of the domain that
// covers it get no requests for it any more.
func (a *analysis) wholeHost(at host) {
	first := a.hosts[at][0]
	if at.listener == "" || at.domain == "" {
		return
	}
	for _, wider := range wider(at.domain) {
		others := a.hosts[host{at.listener, wider}]
		if len(others) == 0 {
			continue
		}
		loser := slices.IndexFunc(others, func(m *match) bool { return a.isNew(first.key, m.key) })
		shared := slices.ContainsFunc(a.hosts[at], func(m *match) bool { return a.isNew(first.key, m.key) })
		if loser >= 0 && !shared {
			a.report(Finding{first.key, finding.AttachedRouteTakes, "spec.hostnames",
				fmt.Sprintf("takes all requests for %s from the routes for %s, such as %s: what no rule for %s matches gets 404", at,
					cmp.Or(wider, "*"), others[loser].key, at.domain),
				"apply it if that is meant; else name a host that is not covered, or add rules for the rest"})
		}
		return
	}
}

// wider lists the domains that cover a domain, the most specific first; "" is any.
func wider(domain string) (list []string) {
	rest := strings.TrimPrefix(domain, "*.")
	for {
		_, after, found := strings.Cut(rest, ".")
		if !found {
			return append(list, "")
		}
		rest = after
		list = append(list, "*."+rest)
	}
}

// matches reports the matches of a host that no request reaches, and those of files that take from others.
func (a *analysis) matches(at host) {
	all := a.hosts[at]
	for i, m := range all {
		if a.left -= len(all); a.left < 0 {
			return
		}
		if by := slices.IndexFunc(all[:i], func(before *match) bool { return before.Covers(m.Match) }); by >= 0 {
			before := all[by]
			a.report(Finding{m.key, finding.AttachedRouteUnreachable, m.field(),
				fmt.Sprintf("no request for %s reaches it: %s takes all that it matches, and %s", at, before,
					routerank.Explain(before.host, before.rank, m.host, m.rank)),
				"remove it, or make it more specific"})
			continue
		}
		for _, later := range all[i+1:] {
			if later.key == m.key || !a.isNew(m.key, later.key) || !later.Covers(m.Match) && !m.Covers(later.Match) {
				continue
			}
			part := "all of " + m.Match.String()
			if !later.Covers(m.Match) {
				part = "everything"
			}
			a.report(Finding{m.key, finding.AttachedRouteTakes, m.field(),
				fmt.Sprintf("takes, of requests for %s, %s from %s: it %s", at, part, later,
					routerank.Explain(m.host, m.rank, later.host, later.rank)),
				"apply it if that is meant"})
		}
	}
}

// Reads reports whether Analyze looks at objects of a key's kind.
func Reads(key object.Key) bool {
	return key.Group == contract.GroupGatewayAPI || key.Group == "" && (key.Kind == "Service" || key.Kind == "Namespace")
}
