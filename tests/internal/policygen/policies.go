package policygen

import (
	"fmt"
	"net/netip"
	"strings"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"
)

// gatewayLabel is what a workload that a Gateway of the Gateway API stands for has, with the Gateway's name.
const gatewayLabel = "gateway.networking.k8s.io/gateway-name"

// Draw draws the n-th set of a seed. One in four is a gateway.
func Draw(seed uint64, n int, keys *Keys) Set {
	d := newDrawer(seed, uint64(n))
	s := Set{
		Name: fmt.Sprintf("seed %d, set %d", seed, n), Namespace: fmt.Sprintf("p%d", n), Address: AddressOf(n), Gateway: d.one(4),
	}
	s.Labels = map[string]string{"app": "httpbin", "version": "v1", "set": s.Namespace}
	if s.Gateway {
		s.Labels[gatewayLabel] = "gw"
	}
	for i := range 1 + d.IntN(5) {
		s.add(d, fmt.Sprintf("policy-%d", i), d.policy(s))
	}
	if d.IntN(5) < 3 {
		for i := range 1 + d.IntN(2) {
			s.add(d, fmt.Sprintf("jwt-%d", i), d.authentication(keys))
		}
	}
	return s
}

// add places an object: mostly in the namespace of the set, with or without a selector, seldom in RootNamespace.
func (s *Set) add(d drawer, name string, spec any) {
	o := Object{Namespace: s.Namespace, Name: name}
	selector := &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "httpbin"}}
	var target []*typev1beta1.PolicyTargetReference
	switch {
	case d.one(6):
		o.Namespace, o.Name = RootNamespace, s.Namespace+"-"+name
		selector.MatchLabels["set"] = s.Namespace
	case s.Gateway && d.one(3):
		selector = nil
		name := d.word([]string{"gw", "gw", "gw", "other"})
		target = []*typev1beta1.PolicyTargetReference{{Group: "gateway.networking.k8s.io", Kind: "Gateway", Name: name}}
	case d.one(2):
		selector = nil
	case d.one(10):
		selector.MatchLabels["version"] = "v2" // another workload's
	}
	switch spec := spec.(type) {
	case *security.AuthorizationPolicy:
		o.Kind, o.Spec = AuthorizationPolicy, spec
		spec.Selector, spec.TargetRefs = selector, target
		if tried := spec.GetAction() <= security.AuthorizationPolicy_DENY; tried && d.one(15) { // Istio tries no others
			o.Annotations = map[string]string{dryRun: d.word([]string{"true", "true", "false"})}
		}
	case *security.RequestAuthentication:
		o.Kind, o.Spec = RequestAuthentication, spec
		spec.Selector, spec.TargetRefs = selector, target
	}
	s.Objects = append(s.Objects, o)
}

func (d drawer) policy(s Set) *security.AuthorizationPolicy {
	p := &security.AuthorizationPolicy{}
	switch n := d.IntN(20); {
	case n < 9:
		p.Action = security.AuthorizationPolicy_ALLOW
	case n < 16:
		p.Action = security.AuthorizationPolicy_DENY
	case n < 17:
		p.Action = security.AuthorizationPolicy_AUDIT
	default:
		p.Action = security.AuthorizationPolicy_CUSTOM
		p.ActionDetail = &security.AuthorizationPolicy_Provider{Provider: &security.AuthorizationPolicy_ExtensionProvider{
			Name: d.word([]string{GRPCProvider, GRPCProvider, HTTPProvider, HTTPProvider, LongerProvider, Missing}),
		}}
	}
	custom := p.GetAction() == security.AuthorizationPolicy_CUSTOM
	if p.GetAction() == security.AuthorizationPolicy_ALLOW && d.one(20) {
		return p // nothing is allowed
	}
	for range 1 + d.IntN(3) {
		p.Rules = append(p.Rules, d.rule(s, custom))
	}
	return p
}

func (d drawer) rule(s Set, custom bool) *security.Rule {
	r := &security.Rule{}
	if d.one(20) {
		return r // everything
	}
	for range d.IntN(3) {
		r.From = append(r.From, &security.Rule_From{Source: d.source(s, custom)})
	}
	for range d.IntN(3) {
		r.To = append(r.To, &security.Rule_To{Operation: d.operation()})
	}
	if len(r.GetFrom())+len(r.GetTo()) == 0 || d.one(3) {
		for range 1 + d.IntN(2) {
			r.When = append(r.When, d.condition(s, custom))
		}
	}
	return r
}

// values draws values and values that must not be; mostly one of both.
func (d drawer) values(words []string) (values, not []string) {
	switch n := d.IntN(10); {
	case n < 6:
		return d.some(3, words), nil
	case n < 9:
		return nil, d.some(2, words)
	default:
		return d.some(3, words), d.some(2, words)
	}
}

func (d drawer) source(s Set, custom bool) *security.Source {
	src := &security.Source{}
	kinds := []func(){
		func() { src.IpBlocks, src.NotIpBlocks = d.values(sourceBlocks) },
		func() { src.RemoteIpBlocks, src.NotRemoteIpBlocks = d.values(remoteBlocks) },
	}
	if !custom { // Istio knows no identities in policies with CUSTOM
		kinds = append(kinds,
			func() { src.Principals, src.NotPrincipals = d.values(owned(s, principals)) },
			func() { src.Principals, src.NotPrincipals = d.values(owned(s, principals)) },
			func() { src.Namespaces, src.NotNamespaces = d.values(owned(s, namespaces)) },
			func() { src.TrustDomains, src.NotTrustDomains = d.values(trustDomains) },
			func() { src.RequestPrincipals, src.NotRequestPrincipals = d.values(requestPrincipals) },
			func() { src.RequestPrincipals, src.NotRequestPrincipals = d.values(requestPrincipals) },
			func() { src.ServiceAccounts, src.NotServiceAccounts = d.values(serviceAccounts) },
		)
	}
	for range 1 + d.IntN(2) {
		kinds[d.IntN(len(kinds))]()
	}
	if len(src.GetServiceAccounts())+len(src.GetNotServiceAccounts()) > 0 { // not beside these
		src.Principals, src.NotPrincipals, src.Namespaces, src.NotNamespaces = nil, nil, nil, nil
	}
	return src
}

func (d drawer) operation() *security.Operation {
	op := &security.Operation{}
	kinds := []func(){
		func() { op.Paths, op.NotPaths = d.values(pathPatterns) },
		func() { op.Paths, op.NotPaths = d.values(pathPatterns) },
		func() { op.Methods, op.NotMethods = d.values(methodPatterns) },
		func() { op.Hosts, op.NotHosts = d.values(hostPatterns) },
		func() { op.Ports, op.NotPorts = d.values(portPatterns) },
	}
	for range 1 + d.IntN(2) {
		kinds[d.IntN(len(kinds))]()
	}
	return op
}

func (d drawer) condition(s Set, custom bool) *security.Condition {
	c := &security.Condition{}
	type kind struct {
		key   string
		words []string
	}
	header := d.word(headerNames)
	claim := d.word(claimNames)
	kinds := []kind{
		{"request.headers[" + header + "]", headerPatterns[header]},
		{"request.headers[" + header + "]", headerPatterns[header]},
		{"source.ip", sourceBlocks}, {"remote.ip", remoteBlocks},
		{"destination.ip", []string{s.Address.String(), "10.64.0.0/16", "10.65.0.0/16", netip.PrefixFrom(s.Address, 30).Masked().String()}},
		{"destination.port", portPatterns}, {"connection.sni", sniPatterns},
		{"experimental.envoy.filters.http.nobody[key]", []string{"value", "*", "[item]"}},
	}
	if !custom {
		kinds = append(kinds,
			kind{"request.auth.claims[" + claim + "]", claimPatterns[claim]}, kind{"request.auth.claims[" + claim + "]", claimPatterns[claim]},
			kind{"request.auth.principal", requestPrincipals}, kind{"request.auth.audiences", audiencePatterns},
			kind{"request.auth.presenter", presenterPattern}, kind{"source.principal", owned(s, principals)},
			kind{"source.namespace", owned(s, namespaces)}, kind{"source.serviceAccount", serviceAccounts},
			kind{"source.trustDomain", trustDomains},
		)
	}
	k := kinds[d.IntN(len(kinds))]
	c.Key = k.key
	c.Values, c.NotValues = d.values(k.words)
	return c
}

// owned writes the set's namespace where the words say "own".
func owned(s Set, words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = own(s, w)
	}
	return out
}

func own(s Set, word string) string {
	if word == "own" {
		return s.Namespace
	}
	return strings.ReplaceAll(word, "/ns/own/", "/ns/"+s.Namespace+"/")
}
