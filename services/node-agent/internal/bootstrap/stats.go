package bootstrap

import (
	"strings"

	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// StatsMatcher selects stats that Envoy keeps besides the required ones. It creates no others, which with thousands of
// clusters would take most of its memory.
type StatsMatcher struct {
	Prefixes, Suffixes, Regexps []string
}

// Annotations of a Pod that select more stats, comma separated.
const (
	prefixesAnnotation = "sidecar.istio.io/statsInclusionPrefixes"
	suffixesAnnotation = "sidecar.istio.io/statsInclusionSuffixes"
	regexpsAnnotation  = "sidecar.istio.io/statsInclusionRegexps"
)

// StatsMatcherFrom joins ProxyConfig's proxyStatsMatcher and the annotations.
func StatsMatcherFrom(pc *meshv1alpha1.ProxyConfig, annotations map[string]string) StatsMatcher {
	m := pc.GetProxyStatsMatcher()
	with := func(list []string, annotation string) []string {
		for v := range strings.SplitSeq(annotations[annotation], ",") {
			if v = strings.TrimSpace(v); v != "" {
				list = append(list, v)
			}
		}
		return list
	}
	return StatsMatcher{
		Prefixes: with(m.GetInclusionPrefixes(), prefixesAnnotation),
		Suffixes: with(m.GetInclusionSuffixes(), suffixesAnnotation),
		Regexps:  with(m.GetInclusionRegexps(), regexpsAnnotation),
	}
}

// Stats that readiness, drain and alerts on rejected configuration read, and those that Istio keeps.
var (
	requiredPrefixes = []string{"cluster_manager", "listener_manager", "server", "cluster." + XDSCluster, "cluster." + SDSCluster, "wasm"}
	requiredSuffixes = []string{"downstream_cx_active", "downstream_rq_active", "update_rejected", "rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"}
)

// tags turn the variable part of a stat's name into a label. The expressions are Istio's, so that its dashboards work.
var tags = []struct{ name, regex string }{
	{"cluster_name", `^cluster\.((.+?(\..+?\.svc\.cluster\.local)?)\.)`},
	{"tcp_prefix", `^tcp\.((.*?)\.)\w+?$`},
	{"response_code", `_rq(_(\d{3}))$`},
	{"response_code_class", `_rq(_(\dxx))$`},
	{"http_conn_manager_listener_prefix", `^listener(?=\.).*?\.http\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
	{"http_conn_manager_prefix", `^http\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
	{"listener_address", `^listener\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
	{"mongo_prefix", `^mongo\.(.+?)\.(collection|cmd|cx_|op_|delays_|decoding_)(.*?)$`},
}

func statsConfig(m StatsMatcher, extraTags []string) *metricsv3.StatsConfig {
	c := &metricsv3.StatsConfig{UseAllDefaultTags: wrapperspb.Bool(false)}
	for _, t := range tags {
		c.StatsTags = append(c.StatsTags, regexTag(t.name, t.regex))
	}
	for _, name := range extraTags {
		c.StatsTags = append(c.StatsTags, regexTag(name, `(`+name+`=\.=(.*?);\.;)`))
	}
	list := &matcherv3.ListStringMatcher{}
	for _, p := range append(requiredPrefixes[:len(requiredPrefixes):len(requiredPrefixes)], m.Prefixes...) {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p}})
	}
	for _, s := range append(requiredSuffixes[:len(requiredSuffixes):len(requiredSuffixes)], m.Suffixes...) {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: s}})
	}
	for _, r := range m.Regexps {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: r}},
		})
	}
	c.StatsMatcher = &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_InclusionList{InclusionList: list}}
	return c
}

func regexTag(name, regex string) *metricsv3.TagSpecifier {
	return &metricsv3.TagSpecifier{TagName: name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: regex}}
}
