package networking

import (
	"regexp"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"fairlead.dev/pkg/envoyapi"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// Short names of the patch operations.
const (
	merge      = networking.EnvoyFilter_Patch_MERGE
	mergeLists = networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
	add        = networking.EnvoyFilter_Patch_ADD
	remove     = networking.EnvoyFilter_Patch_REMOVE
)

// matchKinds has the kind of match that selects objects of a kind. Patches of the other kinds apply to all objects,
// whatever the match says.
var matchKinds = map[networking.EnvoyFilter_ApplyTo]string{
	networking.EnvoyFilter_LISTENER:            "listener",
	networking.EnvoyFilter_FILTER_CHAIN:        "listener",
	networking.EnvoyFilter_NETWORK_FILTER:      "listener",
	networking.EnvoyFilter_HTTP_FILTER:         "listener",
	networking.EnvoyFilter_ROUTE_CONFIGURATION: "routeConfiguration",
	networking.EnvoyFilter_VIRTUAL_HOST:        "routeConfiguration",
	networking.EnvoyFilter_HTTP_ROUTE:          "routeConfiguration",
	networking.EnvoyFilter_CLUSTER:             "cluster",
}

// envoyFilter follows https://istio.io/latest/docs/reference/config/networking/envoy-filter/ and Istio's own
// verdicts: a patch that Istio accepts and ignores is accepted with a warning.
func (c Checker) envoyFilter(ef *networking.EnvoyFilter) {
	c.Selector("spec.workloadSelector.labels", ef.WorkloadSelector != nil, ef.WorkloadSelector.GetLabels())
	c.FailIf(len(ef.TargetRefs) > 0 && ef.WorkloadSelector != nil, "spec.targetRefs", nil, "cannot be combined with workloadSelector",
		"keep one of them")
	c.filterTargets("spec.targetRefs", ef.TargetRefs)
	c.WarnIf(len(ef.ConfigPatches) == 0, "spec.configPatches", "there is no patch", "add one")
	for i, p := range ef.ConfigPatches {
		c.configPatch(manifest.Index("spec.configPatches", i), p)
	}
}

// filterTargets checks the targets of an EnvoyFilter. The CRD requires a name; neither the CRD nor istioctl checks the
// kind.
func (c Checker) filterTargets(at string, refs []*typev1beta1.PolicyTargetReference) {
	for at, ref := range manifest.Items(at, refs) {
		c.TargetName(at, ref)
		if ref.Group != kinds.GroupGatewayAPI || ref.Kind != "Gateway" {
			c.Warn(at, "only a Gateway of group gateway.networking.k8s.io has proxies here", "target a Gateway, or use a selector")
		}
	}
}

func (c Checker) configPatch(at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	if p.GetMatch().GetContext() == networking.EnvoyFilter_WAYPOINT {
		return // the table of ineffective values has it
	}
	op := p.GetPatch().GetOperation()
	switch {
	case p.ApplyTo == networking.EnvoyFilter_INVALID:
		c.Fail(at+".applyTo", nil, "missing", "say what to patch, such as HTTP_FILTER")
		return
	case p.Patch == nil:
		c.Fail(at+".patch", nil, "missing", "say what to do")
		return
	case op == networking.EnvoyFilter_Patch_INVALID:
		c.Fail(at+".patch.operation", nil, "missing", "say what to do, such as MERGE")
		return
	case op != remove && p.Patch.Value == nil:
		c.Fail(at+".patch.value", nil, "missing", "write the configuration to apply")
		return
	}
	if !c.patchMatch(at+".match", p.ApplyTo, p.Match) {
		return
	}
	effect := envoyapi.Operation(p)
	switch {
	case effect != networking.EnvoyFilter_Patch_INVALID:
	case envoyapi.NeedsName(p.ApplyTo, op):
		c.Warn(at+".match", "it names no filter, and "+op.String()+" needs one", "name the filter: "+filterPath[p.ApplyTo])
	default:
		c.Warn(at+".patch.operation", op.String()+" changes nothing of a "+p.ApplyTo.String(), "use another operation")
	}
	if class := p.Patch.FilterClass; class != networking.EnvoyFilter_Patch_UNSPECIFIED &&
		(p.ApplyTo != networking.EnvoyFilter_HTTP_FILTER || op != add) {
		c.Warn(at+".patch.filterClass", "it says where ADD puts an HTTP_FILTER", "use operation ADD, or remove filterClass")
	}
	c.patchValue(at+".patch.value", p, effect)
}

// filterPath is the field in which a match names a filter.
var filterPath = map[networking.EnvoyFilter_ApplyTo]string{
	networking.EnvoyFilter_NETWORK_FILTER:  "listener.filterChain.filter.name",
	networking.EnvoyFilter_HTTP_FILTER:     "listener.filterChain.filter.subFilter.name",
	networking.EnvoyFilter_LISTENER_FILTER: "listener.listenerFilter",
}

// patchMatch checks that the match is of the kind that fits applyTo, and checks its fields. It returns false if it does
// not fit.
func (c Checker) patchMatch(at string, applyTo networking.EnvoyFilter_ApplyTo, m *networking.EnvoyFilter_EnvoyConfigObjectMatch) bool {
	if v := m.GetProxy().GetProxyVersion(); len(v) > envoyapi.MaxProxyVersion {
		c.Remark(at+".proxy.proxyVersion", "matches no proxy: more than 1024 bytes are not looked at", "write a shorter one")
	} else if _, err := regexp.Compile(v); err != nil {
		c.Fail(at+".proxy.proxyVersion", v, "not a regular expression: "+err.Error(), "use Go's syntax, RE2")
	}
	kind, fits := matchKind(m), matchKinds[applyTo]
	if kind != "" && kind != fits {
		switch {
		case fits != "":
			c.Fail(manifest.Field(at, kind), nil, "does not fit "+applyTo.String(), "match by "+fits)
			return false
		case kind != "waypoint" && (applyTo != networking.EnvoyFilter_LISTENER_FILTER || kind != "listener"):
			c.Warn(manifest.Field(at, kind), "it does not fit "+applyTo.String(), "remove it")
		}
	}
	ok := c.listenerMatch(at+".listener", applyTo, m.GetListener())
	c.routeMatch(at+".routeConfiguration", applyTo, m.GetContext(), m.GetRouteConfiguration())
	if cl := m.GetCluster(); cl != nil {
		c.matchedPort(at+".cluster.portNumber", cl.PortNumber)
		if cl.Service != "" && !check.FQDN(strings.TrimPrefix(cl.Service, "*.")) {
			c.matchesNothing(at+".cluster.service", "no host", `name one such as "reviews.apps.svc.cluster.local"`)
		}
		if cl.Name != "" && (cl.PortNumber != 0 || cl.Service != "" || cl.Subset != "") {
			c.Remark(at+".cluster.name", "stands alone: portNumber, service and subset beside it are not looked at", "remove them")
		}
	}
	return ok
}

func matchKind(m *networking.EnvoyFilter_EnvoyConfigObjectMatch) string {
	switch m.GetObjectTypes().(type) {
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Listener:
		return "listener"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_RouteConfiguration:
		return "routeConfiguration"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Cluster:
		return "cluster"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Waypoint:
		return "waypoint"
	default:
		return ""
	}
}

// matchesNothing warns that no object can meet a condition.
func (c Checker) matchesNothing(at, reason, remedy string) {
	c.Remark(at, "matches nothing: "+reason, remedy)
}

func (c Checker) matchedPort(at string, n uint32) {
	if n > 65535 {
		c.matchesNothing(at, "no port", "use 1 to 65535")
	}
}

// listenerMatch returns false if it refuses the match.
func (c Checker) listenerMatch(at string, applyTo networking.EnvoyFilter_ApplyTo, m *networking.EnvoyFilter_ListenerMatch) bool {
	c.matchedPort(at+".portNumber", m.GetPortNumber())
	if m.GetListenerFilter() != "" && applyTo != networking.EnvoyFilter_LISTENER_FILTER {
		c.Warn(at+".listenerFilter", "it does not fit "+applyTo.String(), "remove it")
	}
	fc := m.GetFilterChain()
	c.matchedPort(at+".filterChain.destinationPort", fc.GetDestinationPort())
	if fc != nil && (applyTo == networking.EnvoyFilter_LISTENER || applyTo == networking.EnvoyFilter_LISTENER_FILTER) {
		c.Warn(at+".filterChain", "it does not fit "+applyTo.String(), "remove it")
	}
	if t := fc.GetTransportProtocol(); t != "" && t != "raw_buffer" && t != "tls" {
		c.matchesNothing(at+".filterChain.transportProtocol", "unknown transport protocol", "use raw_buffer or tls")
	}
	f := fc.GetFilter()
	if f == nil || matchKinds[applyTo] == "" {
		return true
	}
	const manager = "envoy.filters.network.http_connection_manager"
	at += ".filterChain.filter"
	switch {
	case f.Name == "":
		c.Fail(at+".name", nil, "missing", "name the network filter, such as "+manager)
		return false
	case f.SubFilter != nil && applyTo != networking.EnvoyFilter_HTTP_FILTER:
		c.Fail(at+".subFilter", nil, "does not fit "+applyTo.String(), "remove it")
		return false
	case f.SubFilter != nil && f.Name != manager && f.Name != oldManager:
		c.Fail(at+".name", f.Name, "has no HTTP filters", "name "+manager)
		return false
	case f.SubFilter != nil && f.SubFilter.Name == "":
		c.Fail(at+".subFilter.name", nil, "missing", "name the HTTP filter")
		return false
	}
	c.WarnIf(applyTo == networking.EnvoyFilter_FILTER_CHAIN, at, "it does not fit FILTER_CHAIN", "remove it")
	if f.Name == oldManager {
		c.matchesNothing(at+".name", "an old name", "name "+manager)
	}
	return true
}

// oldManager is the name of the HTTP connection manager before Envoy 1.14. Istio accepts it, and matches nothing by it.
const oldManager = "envoy.http_connection_manager"

func (c Checker) routeMatch(at string, applyTo networking.EnvoyFilter_ApplyTo, context networking.EnvoyFilter_PatchContext,
	m *networking.EnvoyFilter_RouteConfigurationMatch) {
	c.matchedPort(at+".portNumber", m.GetPortNumber())
	if g := m.GetGateway(); g != "" {
		if ns, name, ok := strings.Cut(g, "/"); !ok || !check.DNSLabel(ns) || !check.DNSSubdomain(name) {
			c.matchesNothing(at+".gateway", "it is not namespace/name", "write it like default/my-gateway")
		}
	}
	if context != networking.EnvoyFilter_GATEWAY && (m.GetGateway() != "" || m.GetPortName() != "") {
		c.Remark(at, "portName and gateway are not looked at on sidecars: the patch reaches them whatever these say",
			"set context GATEWAY, or remove them")
	}
	if m.GetVhost() != nil && applyTo == networking.EnvoyFilter_ROUTE_CONFIGURATION {
		c.Warn(at+".vhost", "it does not fit ROUTE_CONFIGURATION", "use VIRTUAL_HOST")
	}
	if m.GetVhost().GetRoute() != nil && applyTo == networking.EnvoyFilter_VIRTUAL_HOST {
		c.Warn(at+".vhost.route", "it does not fit VIRTUAL_HOST", "use HTTP_ROUTE")
	}
}

// patchValue decodes the value as the message that the patch applies to. As in Istio a field that the message does not
// have is left out; here with a warning.
func (c Checker) patchValue(at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch, effect networking.EnvoyFilter_Patch_Operation) {
	value := p.Patch.Value
	if value == nil {
		return
	}
	known := len(c.Problems)
	decode.Packed(c.Verdict, at, value, envoyapi.New(p.ApplyTo).ProtoReflect().Descriptor())
	if len(c.Problems) > known {
		return
	}
	m, err := envoyapi.Decode(p.ApplyTo, value)
	if err != nil {
		c.Fail(at, nil, "cannot be decoded: "+err.Error(), "see Envoy's reference")
		return
	}
	switch effect {
	case networking.EnvoyFilter_Patch_INVALID:
		return
	case remove:
		c.Warn(at, "REMOVE needs no value", "remove it")
		return
	case merge, mergeLists:
		// A part of an object is validated when it is merged.
		c.WarnIf(proto.Size(m) == 0, at, "there is nothing to merge", "write the configuration to apply")
		if p.ApplyTo == networking.EnvoyFilter_BOOTSTRAP {
			c.bootstrap(at, m)
		}
		return
	}
	if err := envoyapi.Validate(m); err != nil {
		c.Fail(at, nil, err.Error(), "see Envoy's reference")
	}
	if named, ok := m.(interface{ GetName() string }); ok && named.GetName() == "" && p.ApplyTo == networking.EnvoyFilter_LISTENER {
		c.Warn(at, "a listener without a name is not added", "give it a name of its own")
	}
}

// bootstrap refuses patches of the fields by which agent and Envoy reach each other, and says which proxies a patch
// reaches.
func (c Checker) bootstrap(at string, m proto.Message) {
	for _, path := range envoyapi.AgentsOwn(m) {
		c.Fail(at+"."+path, nil, "is the agent's: without it there is no configuration at all", "remove it")
	}
	c.Remark(at, "reaches only proxies that start with BOOTSTRAP_XDS_AGENT=true in their environment",
		"set it in proxyMetadata, or in environmentVariables of a ProxyConfig, and restart them")
}
