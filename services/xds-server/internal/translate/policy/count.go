package policy

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	statslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/matcher"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// maxRefusals bounds the pairs of rule and caller that a proxy counts. Beyond it the refusals of further pairs are in
// the filters' own totals alone, and `fairlead authz dry-run` shows them as those of unknown callers.
const maxRefusals = 1000

// Keys of the dynamic metadata that shadow rules write, after their prefix.
const (
	engineResult = "shadow_engine_result"
	denied       = "denied"
)

// HTTPLogs are access logs of a connection manager that policies may guard: one that counts what dry runs would refuse,
// by rule and caller. It is there whatever policies apply, so that the first dry run does not change a listener, and
// writes nothing.
func HTTPLogs(r *input.Reader) []*accesslogv3.AccessLog { return refusals(r, rbacFilter) }

// ConnectionLogs are HTTPLogs of a TCP proxy, which is part of a listener like its policies: there is one where
// connections are tried. It counts a connection at its end.
func ConnectionLogs(r *input.Reader) []*accesslogv3.AccessLog {
	set := r.ConnectionRules()
	if len(set.Deny.DryRun.Policies)+len(set.Allow.DryRun.Policies) == 0 {
		return nil
	}
	return refusals(r, networkRBACFilter)
}

// refusals counts what the shadow rules of a filter refuse. The scope of the counters is the whole proxy's: they
// outlive listeners. Scopes of counters are as old as filter chains as filters.
func refusals(r *input.Reader, filter string) []*accesslogv3.AccessLog {
	if !r.Class().Filters.Has(class.FilterChains | class.StatsLogger) {
		return nil
	}
	value := func(key string) string { return "%DYNAMIC_METADATA(" + filter + ":" + key + ")%" }
	return []*accesslogv3.AccessLog{{
		Name: "envoy.access_loggers.stats",
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_OrFilter{OrFilter: &accesslogv3.OrFilter{
			Filters: []*accesslogv3.AccessLogFilter{refusedBy(filter, dryRunDenyPrefix), refusedBy(filter, dryRunAllowPrefix)},
		}}},
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: typedconfig.Any(&statslogv3.Config{
			StatsScope: &typev3.Scope{SharingName: contract.DryRunMetric, MaxCounters: wrapperspb.UInt32(maxRefusals)},
			Counters: []*statslogv3.Config_Counter{{
				ValueFixed: wrapperspb.UInt64(1),
				Stat: &statslogv3.Config_Stat{Name: contract.DryRunMetric, Tags: []*statslogv3.Config_Tag{
					{Name: contract.DryRunDeny, ValueFormat: value(dryRunDenyPrefix + effectiveID)},
					{Name: contract.DryRunAllow, ValueFormat: value(dryRunAllowPrefix + engineResult)},
					{Name: contract.DryRunCaller, ValueFormat: "%DOWNSTREAM_PEER_URI_SAN%"},
				}},
			}},
		})},
	}}
}

func refusedBy(filter, prefix string) *accesslogv3.AccessLogFilter {
	by := &accesslogv3.MetadataFilter{
		Matcher:            matcher.Metadata(filter, []string{prefix + engineResult}, matcher.Text(matcher.Exact(denied))),
		MatchIfKeyNotFound: wrapperspb.Bool(false),
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_MetadataFilter{MetadataFilter: by}}
}
