package validate

import (
	"math"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/envoyapi"
	"fairlead.dev/services/config-watcher/internal/object"
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

// checkEnvoyFilter follows https://istio.io/latest/docs/reference/config/networking/envoy-filter/ and Istio's own
// verdicts: a patch that Istio accepts and ignores is accepted with a warning.
func checkEnvoyFilter(c *checker, _ *object.Object, ef *networking.EnvoyFilter) {
	c.selector("spec.workloadSelector.labels", ef.WorkloadSelector != nil, ef.WorkloadSelector.GetLabels())
	c.failIf(len(ef.TargetRefs) > 0 && ef.WorkloadSelector != nil, "spec.targetRefs", nil, "cannot be combined with workloadSelector",
		"keep one of them")
	c.filterTargets("spec.targetRefs", ef.TargetRefs)
	c.warnIf(len(ef.ConfigPatches) == 0, "spec.configPatches", verdict{"there is no patch", "add one"})
	for i, p := range ef.ConfigPatches {
		c.configPatch(index("spec.configPatches", i), p)
	}
}

func (c *checker) configPatch(at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	if p.GetMatch().GetContext() == networking.EnvoyFilter_WAYPOINT {
		return // the table of ineffective values has it
	}
	op := p.GetPatch().GetOperation()
	switch {
	case p.ApplyTo == networking.EnvoyFilter_INVALID:
		c.fail(at+".applyTo", nil, "missing", "say what to patch, such as HTTP_FILTER")
		return
	case p.Patch == nil:
		c.fail(at+".patch", nil, "missing", "say what to do")
		return
	case op == networking.EnvoyFilter_Patch_INVALID:
		c.fail(at+".patch.operation", nil, "missing", "say what to do, such as MERGE")
		return
	case op != remove && p.Patch.Value == nil:
		c.fail(at+".patch.value", nil, "missing", "write the configuration to apply")
		return
	}
	if !c.patchMatch(at+".match", p.ApplyTo, p.Match) {
		return
	}
	effect := envoyapi.Operation(p)
	switch {
	case effect != networking.EnvoyFilter_Patch_INVALID:
	case envoyapi.NeedsName(p.ApplyTo, op):
		c.warn(at+".match", verdict{"it names no filter, and " + op.String() + " needs one", "name the filter: " + filterPath[p.ApplyTo]})
	default:
		c.warn(at+".patch.operation", verdict{op.String() + " changes nothing of a " + p.ApplyTo.String(), "use another operation"})
	}
	if class := p.Patch.FilterClass; class != networking.EnvoyFilter_Patch_UNSPECIFIED &&
		(p.ApplyTo != networking.EnvoyFilter_HTTP_FILTER || op != add) {
		c.warn(at+".patch.filterClass", verdict{"it says where ADD puts an HTTP_FILTER", "use operation ADD, or remove filterClass"})
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
func (c *checker) patchMatch(at string, applyTo networking.EnvoyFilter_ApplyTo, m *networking.EnvoyFilter_EnvoyConfigObjectMatch) bool {
	if v := m.GetProxy().GetProxyVersion(); len(v) > envoyapi.MaxProxyVersion {
		c.remark(at+".proxy.proxyVersion", "matches no proxy: more than 1024 bytes are not looked at", "write a shorter one")
	} else if _, err := regexp.Compile(v); err != nil {
		c.fail(at+".proxy.proxyVersion", v, "not a regular expression: "+err.Error(), "use Go's syntax, RE2")
	}
	kind, fits := matchKind(m), matchKinds[applyTo]
	if kind != "" && kind != fits {
		switch {
		case fits != "":
			c.fail(field(at, kind), nil, "does not fit "+applyTo.String(), "match by "+fits)
			return false
		case kind != "waypoint" && (applyTo != networking.EnvoyFilter_LISTENER_FILTER || kind != "listener"):
			c.warn(field(at, kind), verdict{"it does not fit " + applyTo.String(), "remove it"})
		}
	}
	ok := c.listenerMatch(at+".listener", applyTo, m.GetListener())
	c.routeMatch(at+".routeConfiguration", applyTo, m.GetContext(), m.GetRouteConfiguration())
	if cl := m.GetCluster(); cl != nil {
		c.matchedPort(at+".cluster.portNumber", cl.PortNumber)
		if cl.Service != "" && !fqdn(strings.TrimPrefix(cl.Service, "*.")) {
			c.matchesNothing(at+".cluster.service", "no host", `name one such as "reviews.apps.svc.cluster.local"`)
		}
		if cl.Name != "" && (cl.PortNumber != 0 || cl.Service != "" || cl.Subset != "") {
			c.remark(at+".cluster.name", "stands alone: portNumber, service and subset beside it are not looked at", "remove them")
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
func (c *checker) matchesNothing(at, reason, remedy string) {
	c.remark(at, "matches nothing: "+reason, remedy)
}

func (c *checker) matchedPort(at string, n uint32) {
	if n > 65535 {
		c.matchesNothing(at, "no port", "use 1 to 65535")
	}
}

// listenerMatch returns false if it refuses the match.
func (c *checker) listenerMatch(at string, applyTo networking.EnvoyFilter_ApplyTo, m *networking.EnvoyFilter_ListenerMatch) bool {
	c.matchedPort(at+".portNumber", m.GetPortNumber())
	if m.GetListenerFilter() != "" && applyTo != networking.EnvoyFilter_LISTENER_FILTER {
		c.warn(at+".listenerFilter", verdict{"it does not fit " + applyTo.String(), "remove it"})
	}
	fc := m.GetFilterChain()
	c.matchedPort(at+".filterChain.destinationPort", fc.GetDestinationPort())
	if fc != nil && (applyTo == networking.EnvoyFilter_LISTENER || applyTo == networking.EnvoyFilter_LISTENER_FILTER) {
		c.warn(at+".filterChain", verdict{"it does not fit " + applyTo.String(), "remove it"})
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
		c.fail(at+".name", nil, "missing", "name the network filter, such as "+manager)
		return false
	case f.SubFilter != nil && applyTo != networking.EnvoyFilter_HTTP_FILTER:
		c.fail(at+".subFilter", nil, "does not fit "+applyTo.String(), "remove it")
		return false
	case f.SubFilter != nil && f.Name != manager && f.Name != oldManager:
		c.fail(at+".name", f.Name, "has no HTTP filters", "name "+manager)
		return false
	case f.SubFilter != nil && f.SubFilter.Name == "":
		c.fail(at+".subFilter.name", nil, "missing", "name the HTTP filter")
		return false
	}
	c.warnIf(applyTo == networking.EnvoyFilter_FILTER_CHAIN, at, verdict{"it does not fit FILTER_CHAIN", "remove it"})
	if f.Name == oldManager {
		c.matchesNothing(at+".name", "an old name", "name "+manager)
	}
	return true
}

// oldManager is the name of the HTTP connection manager before Envoy 1.14. Istio accepts it, and matches nothing by it.
const oldManager = "envoy.http_connection_manager"

func (c *checker) routeMatch(at string, applyTo networking.EnvoyFilter_ApplyTo, context networking.EnvoyFilter_PatchContext,
	m *networking.EnvoyFilter_RouteConfigurationMatch) {
	c.matchedPort(at+".portNumber", m.GetPortNumber())
	if g := m.GetGateway(); g != "" {
		if ns, name, ok := strings.Cut(g, "/"); !ok || !dnsLabel(ns) || !dnsSubdomain(name) {
			c.matchesNothing(at+".gateway", "it is not namespace/name", "write it like default/my-gateway")
		}
	}
	if context != networking.EnvoyFilter_GATEWAY && (m.GetGateway() != "" || m.GetPortName() != "") {
		c.remark(at, "portName and gateway are not looked at on sidecars: the patch reaches them whatever these say",
			"set context GATEWAY, or remove them")
	}
	if m.GetVhost() != nil && applyTo == networking.EnvoyFilter_ROUTE_CONFIGURATION {
		c.warn(at+".vhost", verdict{"it does not fit ROUTE_CONFIGURATION", "use VIRTUAL_HOST"})
	}
	if m.GetVhost().GetRoute() != nil && applyTo == networking.EnvoyFilter_VIRTUAL_HOST {
		c.warn(at+".vhost.route", verdict{"it does not fit VIRTUAL_HOST", "use HTTP_ROUTE"})
	}
}

// patchValue decodes the value as the message that the patch applies to. As in Istio a field that the message does not
// have is left out; here with a warning.
func (c *checker) patchValue(at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch, effect networking.EnvoyFilter_Patch_Operation) {
	value := p.Patch.Value
	if value == nil {
		return
	}
	known := len(c.problems)
	c.packed = true
	c.strictMessage(at, integers(value.AsMap()), envoyapi.New(p.ApplyTo).ProtoReflect().Descriptor())
	c.packed = false
	if len(c.problems) > known {
		return
	}
	m, err := envoyapi.Decode(p.ApplyTo, value)
	if err != nil {
		c.fail(at, nil, "cannot be decoded: "+err.Error(), "see Envoy's reference")
		return
	}
	switch effect {
	case networking.EnvoyFilter_Patch_INVALID:
		return
	case remove:
		c.warn(at, verdict{"REMOVE needs no value", "remove it"})
		return
	case merge, mergeLists:
		// A part of an object is validated when it is merged.
		c.warnIf(proto.Size(m) == 0, at, verdict{"there is nothing to merge", "write the configuration to apply"})
		if p.ApplyTo == networking.EnvoyFilter_BOOTSTRAP {
			c.bootstrap(at, m)
		}
		return
	}
	if err := envoyapi.Validate(m); err != nil {
		c.fail(at, nil, err.Error(), "see Envoy's reference")
	}
	if named, ok := m.(interface{ GetName() string }); ok && named.GetName() == "" && p.ApplyTo == networking.EnvoyFilter_LISTENER {
		c.warn(at, verdict{"a listener without a name is not added", "give it a name of its own"})
	}
}

// bootstrap refuses patches of the fields by which agent and Envoy reach each other, and says which proxies a patch
// reaches.
func (c *checker) bootstrap(at string, m proto.Message) {
	for _, path := range envoyapi.AgentsOwn(m) {
		c.fail(at+"."+path, nil, "is the agent's: without it there is no configuration at all", "remove it")
	}
	c.remark(at, "reaches only proxies that start with BOOTSTRAP_XDS_AGENT=true in their environment",
		"set it in proxyMetadata, or in environmentVariables of a ProxyConfig, and restart them")
}

// integers turns the numbers of a Struct, which are all float64, into int64 if they are whole.
func integers(v any) any {
	switch t := v.(type) {
	case float64:
		if t == math.Trunc(t) && math.Abs(t) < 1<<53 {
			return int64(t)
		}
	case map[string]any:
		for k := range t {
			t[k] = integers(t[k])
		}
	case []any:
		for i := range t {
			t[i] = integers(t[i])
		}
	}
	return v
}

// strictAny checks a packed message by its @type.
func (c *checker) strictAny(path string, v any) {
	m, ok := v.(map[string]any)
	if !ok {
		c.fail(path, v, "expected an object, found "+typeName(v), "write @type and the fields of that type")
		return
	}
	url, _ := m["@type"].(string)
	if url == "" {
		c.fail(field(path, "@type"), nil, "missing",
			`name the message, like "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua`)
		return
	}
	d := c.messageType(field(path, "@type"), url)
	if d == nil {
		return
	}
	rest := make(map[string]any, len(m))
	for k, inner := range m {
		if k != "@type" {
			rest[k] = inner
		}
	}
	if envoyapi.IsTypedStruct(d.FullName()) {
		c.typedStruct(path, rest)
		return
	}
	if standsUnderValue(d) {
		c.strictMessage(field(path, "value"), rest["value"], d)
		return
	}
	c.strictMessage(path, rest, d)
}

// standsUnderValue reports whether a packed message of the type has its JSON under "value", since that JSON is no
// object of its fields.
func standsUnderValue(d protoreflect.MessageDescriptor) bool {
	return d.ParentFile().Package() == "google.protobuf"
}

func (c *checker) typedStruct(path string, m map[string]any) {
	for _, name := range sortedKeys(m) {
		if !slices.Contains([]string{"type_url", "typeUrl", "value"}, name) {
			c.unknown(path, name, []string{"type_url", "value"}, m)
		}
	}
	at := "type_url"
	url, _ := m[at].(string)
	if url == "" {
		at = "typeUrl"
		url, _ = m[at].(string)
	}
	if d := c.messageType(field(path, at), url); d != nil {
		c.strictMessage(field(path, "value"), m["value"], d)
	}
}

func (c *checker) messageType(path, url string) protoreflect.MessageDescriptor {
	t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	if err == nil {
		return t.Descriptor()
	}
	remedy := "use a type of Envoy's, of the v3 API; extensions that only other builds have cannot be configured"
	var names []string
	wanted := url[strings.LastIndexByte(url, '/')+1:]
	simple := wanted[strings.LastIndexByte(wanted, '.')+1:]
	protoregistry.GlobalTypes.RangeMessages(func(t protoreflect.MessageType) bool {
		if d := t.Descriptor(); strings.HasPrefix(string(d.FullName()), "envoy.") && string(d.Name()) == simple {
			names = append(names, string(d.FullName()))
		}
		return true
	})
	slices.Sort(names)
	if len(names) > 0 && len(names) <= 3 {
		remedy = "did you mean " + strings.Join(names, " or ") + "?"
	}
	c.fail(path, url, "unknown type", remedy)
	return nil
}
