package bootstrap

import (
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// StatsMatcher selects stats that Envoy keeps besides the required ones. It creates no others, which with thousands of
// clusters would take most of its memory.
type StatsMatcher struct {
	Prefixes, Suffixes, Regexps []string
}

// Stats that readiness, drain, alerts and `fairlead authz` read, and those that Istio keeps, whose standard metrics
// begin with istio_. The stats of a rule of a policy end with its name, "…-rule[N]", and ".allowed" or ".denied"; those
// of a rule whose provider is broken have a suffix between.
var (
	requiredPrefixes = []string{"cluster_manager", "istio", "listener_manager", "server", "cluster." + XDSCluster, "cluster." + SDSCluster,
		"wasm"}
	requiredSuffixes = []string{"downstream_cx_active", "downstream_rq_active", "update_rejected", "rbac.allowed", "rbac.denied",
		"shadow_allowed", "shadow_denied", "].allowed", "].denied", "-action.denied", "ext_authz.error", "ext_authz.tcp..error"}
	requiredRegexps = []string{`vhost\..*\.route\..*`} // routes with a stat prefix
)

// tags turn the variable part of a stat's name into a label. The expressions are Istio's, so that its dashboards work;
// the last is ours, for the rules of policies.
var tags = []struct{ name, regex string }{
	{"cluster_name", `^cluster\.((.+?(\..+?\.svc\.cluster\.local)?)\.)`},
	{"tcp_prefix", `^tcp\.((.*?)\.)\w+?$`},
	{"response_code", `_rq(_(\d{3}))$`},
	{"response_code_class", `_rq(_(\dxx))$`},
	{"http_conn_manager_listener_prefix", `^listener(?=\.).*?\.http\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
	{"http_conn_manager_prefix", `^http\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
	{"listener_address", `^listener\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
	{"mongo_prefix", `^mongo\.(.+?)\.(collection|cmd|cx_|op_|delays_|decoding_)(.*?)$`},
	{"rbac_policy", `^http\..*\.rbac\.(?:.*\.)?policy\.(((?:istio-ext-authz-.*-)?ns\[[^\]]*\]-policy\[[^\]]*\]-rule\[\d+\][^.]*)\.)(?:shadow_)?(?:allowed|denied)$`},
}

func statsConfig(t Telemetry) *metricsv3.StatsConfig {
	m := t.Matcher
	c := &metricsv3.StatsConfig{UseAllDefaultTags: wrapperspb.Bool(false)}
	for _, t := range tags {
		c.StatsTags = append(c.StatsTags, regexTag(t.name, t.regex))
	}
	for _, name := range t.ExtraTags {
		c.StatsTags = append(c.StatsTags, regexTag(name, `(`+name+`=\.=(.*?);\.;)`))
	}
	list := &matcherv3.ListStringMatcher{}
	for _, p := range append(requiredPrefixes[:len(requiredPrefixes):len(requiredPrefixes)], m.Prefixes...) {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p}})
	}
	for _, s := range append(requiredSuffixes[:len(requiredSuffixes):len(requiredSuffixes)], m.Suffixes...) {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: s}})
	}
	for _, r := range append(requiredRegexps[:len(requiredRegexps):len(requiredRegexps)], m.Regexps...) {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: r}},
		})
	}
	for _, b := range t.Buckets {
		c.HistogramBucketSettings = append(c.HistogramBucketSettings, &metricsv3.HistogramBucketSettings{
			Match: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: b.Prefix}}, Buckets: b.Bounds,
		})
	}
	c.StatsMatcher = &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_InclusionList{InclusionList: list}}
	return c
}

func regexTag(name, regex string) *metricsv3.TagSpecifier {
	return &metricsv3.TagSpecifier{TagName: name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: regex}}
}
