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

// Short names of what an EnvoyFilter says.
const (
	merge       = networking.EnvoyFilter_Patch_MERGE
	mergeLists  = networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
	add         = networking.EnvoyFilter_Patch_ADD
	remove      = networking.EnvoyFilter_Patch_REMOVE
	before      = networking.EnvoyFilter_Patch_INSERT_BEFORE
	after       = networking.EnvoyFilter_Patch_INSERT_AFTER
	first       = networking.EnvoyFilter_Patch_INSERT_FIRST
	replaceItem = networking.EnvoyFilter_Patch_REPLACE
)

// patchRule is what may be said of one kind of patched object.
type patchRule struct {
	// match is the kind of match that fits: "listener", "routeConfiguration", "cluster", or "" for none.
	match string
	// operations that have an effect.
	operations []networking.EnvoyFilter_Patch_Operation
}

var patchRules = map[networking.EnvoyFilter_ApplyTo]patchRule{
	networking.EnvoyFilter_LISTENER:            {"listener", []networking.EnvoyFilter_Patch_Operation{merge, mergeLists, add, remove}},
	networking.EnvoyFilter_FILTER_CHAIN:        {"listener", []networking.EnvoyFilter_Patch_Operation{merge, mergeLists, add, remove}},
	networking.EnvoyFilter_NETWORK_FILTER:      {"listener", []networking.EnvoyFilter_Patch_Operation{merge, mergeLists, add, remove, before, after, first, replaceItem}},
	networking.EnvoyFilter_HTTP_FILTER:         {"listener", []networking.EnvoyFilter_Patch_Operation{merge, mergeLists, add, remove, before, after, first, replaceItem}},
	networking.EnvoyFilter_LISTENER_FILTER:     {"listener", []networking.EnvoyFilter_Patch_Operation{merge, mergeLists, add, remove, before, after, first, replaceItem}},
	networking.EnvoyFilter_ROUTE_CONFIGURATION: {"routeConfiguration", []networking.EnvoyFilter_Patch_Operation{merge, mergeLists}},
	networking.EnvoyFilter_VIRTUAL_HOST:        {"routeConfiguration", []networking.EnvoyFilter_Patch_Operation{merge, mergeLists, add, remove}},
	networking.EnvoyFilter_HTTP_ROUTE:          {"routeConfiguration", []networking.EnvoyFilter_Patch_Operation{merge, mergeLists, add, remove, before, after, first}},
	networking.EnvoyFilter_CLUSTER:             {"cluster", []networking.EnvoyFilter_Patch_Operation{merge, mergeLists, add, remove}},
	networking.EnvoyFilter_EXTENSION_CONFIG:    {"", []networking.EnvoyFilter_Patch_Operation{add}},
	networking.EnvoyFilter_BOOTSTRAP:           {"", []networking.EnvoyFilter_Patch_Operation{merge}},
}

// checkEnvoyFilter follows https://istio.io/latest/docs/reference/config/networking/envoy-filter/. What would be ignored there is refused.
func checkEnvoyFilter(c *checker, _ *object.Object, ef *networking.EnvoyFilter) {
	if ef.WorkloadSelector != nil {
		c.workloadLabels("spec.workloadSelector.labels", ef.WorkloadSelector.Labels)
	}
	if len(ef.TargetRefs) > 0 && ef.WorkloadSelector != nil {
		c.fail("spec.targetRefs", nil, "cannot be combined with workloadSelector", "keep one of them")
	}
	for i, ref := range ef.TargetRefs {
		at := index("spec.targetRefs", i)
		if ref.Kind != "Gateway" || ref.Group != "gateway.networking.k8s.io" {
			c.fail(at+".kind", ref.Kind, "not a target here", "use kind Gateway of group gateway.networking.k8s.io, or a workloadSelector")
		}
		if ref.Name == "" {
			c.fail(at+".name", nil, "missing", "name the Gateway")
		}
		if ref.Namespace != "" {
			c.fail(at+".namespace", ref.Namespace, "targets are of the object's own namespace", "remove it")
		}
	}
	if len(ef.ConfigPatches) == 0 {
		c.fail("spec.configPatches", nil, "missing", "add a patch")
	}
	for i, p := range ef.ConfigPatches {
		c.configPatch(index("spec.configPatches", i), p)
	}
}

func (c *checker) configPatch(at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	if p == nil {
		c.fail(at, nil, "is empty", "set applyTo and patch, or remove it")
		return
	}
	rule, ok := patchRules[p.ApplyTo]
	switch {
	case p.ApplyTo == networking.EnvoyFilter_INVALID:
		c.fail(at+".applyTo", nil, "missing", "say what to patch, such as HTTP_FILTER")
		return
	case !ok:
		c.fail(at+".applyTo", p.ApplyTo.String(), "not supported", "see the guide on EnvoyFilter")
		return
	}
	c.patchMatch(at+".match", p.ApplyTo, rule, p.Match)
	if p.Patch == nil {
		c.fail(at+".patch", nil, "missing", "say what to do")
		return
	}
	op := p.Patch.Operation
	if !slices.Contains(rule.operations, op) {
		var names []string
		for _, o := range rule.operations {
			names = append(names, o.String())
		}
		c.fail(at+".patch.operation", op.String(), "has no effect on "+p.ApplyTo.String(), "use one of "+strings.Join(names, ", "))
		return
	}
	if class := p.Patch.FilterClass; class != networking.EnvoyFilter_Patch_UNSPECIFIED && (p.ApplyTo != networking.EnvoyFilter_HTTP_FILTER || op != add) {
		c.fail(at+".patch.filterClass", class.String(), "has no effect but with ADD on HTTP_FILTER", "use operation ADD, or remove filterClass")
	}
	c.selected(at+".match", p)
	c.patchValue(at+".patch.value", p)
}

// patchMatch checks that the match is of the kind that fits, and what it says.
func (c *checker) patchMatch(at string, applyTo networking.EnvoyFilter_ApplyTo, rule patchRule, m *networking.EnvoyFilter_EnvoyConfigObjectMatch) {
	if m == nil {
		return
	}
	if v := m.GetProxy().GetProxyVersion(); v != "" {
		if _, err := regexp.Compile(v); err != nil {
			c.fail(at+".proxy.proxyVersion", v, "not a regular expression: "+err.Error(), "use Go's syntax, RE2")
		}
	}
	kind := ""
	switch m.ObjectTypes.(type) {
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Listener:
		kind = "listener"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_RouteConfiguration:
		kind = "routeConfiguration"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Cluster:
		kind = "cluster"
	}
	if kind != "" && kind != rule.match {
		remedy := "remove it"
		if rule.match != "" {
			remedy = "match by " + rule.match
		}
		c.fail(field(at, kind), nil, "does not fit "+applyTo.String(), remedy)
		return
	}
	c.listenerMatch(at+".listener", applyTo, m.GetListener())
	c.routeMatch(at+".routeConfiguration", applyTo, m.Context, m.GetRouteConfiguration())
	if cl := m.GetCluster(); cl != nil {
		c.optionalPort(at+".cluster.portNumber", cl.PortNumber)
		if cl.Service != "" {
			c.host(at+".cluster.service", cl.Service)
		}
		if cl.Name != "" && (cl.PortNumber != 0 || cl.Service != "" || cl.Subset != "") {
			c.fail(at+".cluster.name", cl.Name, "stands alone", "leave out portNumber, service and subset")
		}
	}
}

func (c *checker) optionalPort(at string, n uint32) {
	if n != 0 {
		c.port(at, n)
	}
}

func (c *checker) listenerMatch(at string, applyTo networking.EnvoyFilter_ApplyTo, m *networking.EnvoyFilter_ListenerMatch) {
	c.optionalPort(at+".portNumber", m.GetPortNumber())
	if m.GetListenerFilter() != "" && applyTo != networking.EnvoyFilter_LISTENER_FILTER {
		c.fail(at+".listenerFilter", m.ListenerFilter, "does not fit "+applyTo.String(), "remove it")
	}
	fc := m.GetFilterChain()
	c.optionalPort(at+".filterChain.destinationPort", fc.GetDestinationPort())
	if fc != nil && (applyTo == networking.EnvoyFilter_LISTENER || applyTo == networking.EnvoyFilter_LISTENER_FILTER) {
		c.fail(at+".filterChain", nil, "does not fit "+applyTo.String(), "remove it")
	}
	if t := fc.GetTransportProtocol(); t != "" && t != "raw_buffer" && t != "tls" {
		c.fail(at+".filterChain.transportProtocol", t, "unknown", "use raw_buffer or tls")
	}
	if f := fc.GetFilter(); f != nil {
		switch {
		case applyTo != networking.EnvoyFilter_NETWORK_FILTER && applyTo != networking.EnvoyFilter_HTTP_FILTER:
			c.fail(at+".filterChain.filter", nil, "does not fit "+applyTo.String(), "remove it")
		case f.Name == "":
			c.fail(at+".filterChain.filter.name", nil, "missing", "name the network filter, such as envoy.filters.network.http_connection_manager")
		case f.SubFilter != nil && applyTo != networking.EnvoyFilter_HTTP_FILTER:
			c.fail(at+".filterChain.filter.subFilter", nil, "does not fit "+applyTo.String(), "remove it")
		case f.SubFilter != nil && f.SubFilter.Name == "":
			c.fail(at+".filterChain.filter.subFilter.name", nil, "missing", "name the HTTP filter")
		}
	}
}

func (c *checker) routeMatch(at string, applyTo networking.EnvoyFilter_ApplyTo, context networking.EnvoyFilter_PatchContext, m *networking.EnvoyFilter_RouteConfigurationMatch) {
	c.optionalPort(at+".portNumber", m.GetPortNumber())
	if g := m.GetGateway(); g != "" {
		ns, name, ok := strings.Cut(g, "/")
		if !ok || !dnsLabel(ns) || !dnsSubdomain(name) {
			c.fail(at+".gateway", g, "not namespace/name", "write it like default/my-gateway")
		}
	}
	if sidecar := context == networking.EnvoyFilter_SIDECAR_INBOUND || context == networking.EnvoyFilter_SIDECAR_OUTBOUND; sidecar && (m.GetGateway() != "" || m.GetPortName() != "") {
		c.fail(at, nil, "portName and gateway match gateways only", "set context GATEWAY, or remove them")
	}
	if m.GetVhost() != nil && applyTo == networking.EnvoyFilter_ROUTE_CONFIGURATION {
		c.fail(at+".vhost", nil, "does not fit ROUTE_CONFIGURATION", "use VIRTUAL_HOST")
	}
	if m.GetVhost().GetRoute() != nil && applyTo != networking.EnvoyFilter_HTTP_ROUTE {
		c.fail(at+".vhost.route", nil, "does not fit "+applyTo.String(), "use HTTP_ROUTE")
	}
}

// selected refuses an operation on a named object that names none: it would hit them all.
func (c *checker) selected(at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	switch p.Patch.Operation {
	case merge, mergeLists, remove, replaceItem:
	default:
		return
	}
	l := p.Match.GetListener()
	filter := l.GetFilterChain().GetFilter()
	switch {
	case p.ApplyTo == networking.EnvoyFilter_NETWORK_FILTER && filter == nil:
		c.fail(at+".listener.filterChain.filter.name", nil, "missing", "name the filter to patch")
	case p.ApplyTo == networking.EnvoyFilter_HTTP_FILTER && filter.GetSubFilter() == nil:
		c.fail(at+".listener.filterChain.filter.subFilter.name", nil, "missing", "name the HTTP filter to patch")
	case p.ApplyTo == networking.EnvoyFilter_LISTENER_FILTER && l.GetListenerFilter() == "":
		c.fail(at+".listener.listenerFilter", nil, "missing", "name the filter to patch")
	}
}

// patchValue reads the value as strictly as all else.
func (c *checker) patchValue(at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	value := p.Patch.Value
	if p.Patch.Operation == remove {
		if len(value.GetFields()) > 0 {
			c.fail(at, nil, "has no effect with REMOVE", "remove it")
		}
		return
	}
	if len(value.GetFields()) == 0 {
		c.fail(at, nil, "missing", "write the configuration to apply")
		return
	}
	known := len(c.problems)
	c.packed = true
	c.strictMessage(at, whole(value.AsMap()), envoyapi.New(p.ApplyTo).ProtoReflect().Descriptor())
	c.packed = false
	if len(c.problems) > known {
		return
	}
	m, err := envoyapi.Decode(p.ApplyTo, value)
	if err != nil {
		c.fail(at, nil, "cannot be decoded: "+err.Error(), "see Envoy's reference")
		return
	}
	if p.ApplyTo == networking.EnvoyFilter_BOOTSTRAP {
		c.bootstrap(at, m)
	}
	if p.Patch.Operation == merge || p.Patch.Operation == mergeLists {
		return // only part of an object: it is checked with what it is merged into
	}
	if err := envoyapi.Validate(m); err != nil {
		c.fail(at, nil, err.Error(), "see Envoy's reference")
	}
	if named, ok := m.(interface{ GetName() string }); ok && named.GetName() == "" && p.Patch.Operation == add && p.ApplyTo != networking.EnvoyFilter_FILTER_CHAIN &&
		p.ApplyTo != networking.EnvoyFilter_HTTP_ROUTE {
		c.fail(at+".name", nil, "missing", "give it a name of its own")
	}
}

// bootstrap refuses to change that by which an agent and its proxy know and reach each other, and says whom a patch reaches.
func (c *checker) bootstrap(at string, m proto.Message) {
	for _, path := range envoyapi.AgentsOwn(m) {
		c.fail(at+"."+path, nil, "is the agent's: without it there is no configuration at all", "remove it")
	}
	c.remark(at, "reaches only proxies that start with BOOTSTRAP_XDS_AGENT=true in their environment",
		"set it in proxyMetadata, or in environmentVariables of a ProxyConfig, and restart them")
}

// whole turns the numbers of a Struct, which are all fractions, into whole ones where they are.
func whole(v any) any {
	switch t := v.(type) {
	case float64:
		if t == math.Trunc(t) && math.Abs(t) < 1<<53 {
			return int64(t)
		}
	case map[string]any:
		for k := range t {
			t[k] = whole(t[k])
		}
	case []any:
		for i := range t {
			t[i] = whole(t[i])
		}
	}
	return v
}

// strictAny checks a packed message by the type that it names.
func (c *checker) strictAny(path string, v any) {
	m, ok := v.(map[string]any)
	if !ok {
		c.fail(path, v, "expected an object, found "+typeName(v), "write @type and the fields of that type")
		return
	}
	url, _ := m["@type"].(string)
	if url == "" {
		c.fail(field(path, "@type"), nil, "missing", `name the message, like "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua`)
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

// standsUnderValue reports whether a type's JSON is no object of its fields: packed, it stands under "value".
func standsUnderValue(d protoreflect.MessageDescriptor) bool {
	return d.ParentFile().Package() == "google.protobuf" && d.Name() != "Empty"
}

func (c *checker) typedStruct(path string, m map[string]any) {
	for _, name := range sortedKeys(m) {
		if !contains([]string{"type_url", "typeUrl", "value"}, name) {
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
