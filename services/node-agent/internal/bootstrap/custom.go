package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/yamltext"
)

// maxOverride is the longest argument that the kernel passes to a program, with its final zero.
const maxOverride = 128<<10 - 1

// Override checks YAML or JSON that Envoy shall merge over its bootstrap, as a file for Istio's
// sidecar.istio.io/bootstrapOverride has it, and returns it as JSON. host stands for $(HOST_IP).
func Override(text []byte, host string) (string, error) {
	tree, err := parseTree(substituteHost(text, host))
	if err != nil {
		return "", err
	}
	if admin, ok := tree["admin"].(map[string]any); ok && admin["address"] != nil {
		return "", errors.New("admin.address: the agent reaches Envoy at an address of its own, without which the proxy is never ready: " +
			"remove it")
	}
	if tree["node"] != nil {
		return "", errors.New("node: the control plane knows the proxy by it: remove it, or set node metadata by variables " + "ISTIO_META_<KEY>")
	}
	js, err := json.Marshal(tree)
	if err != nil {
		return "", err
	}
	if len(js) > maxOverride {
		return "", fmt.Errorf("%d bytes as JSON: Envoy takes at most %d: shorten it, or use a template (ISTIO_BOOTSTRAP)", len(js), maxOverride)
	}
	return string(js), nil
}

func substituteHost(text []byte, host string) []byte {
	if host == "" {
		return text
	}
	if strings.Contains(host, ":") {
		text = bytes.ReplaceAll(text, []byte("["+hostIP+"]"), []byte("["+host+"]"))
	}
	return bytes.ReplaceAll(text, []byte(hostIP), []byte(host))
}

func parseTree(text []byte) (map[string]any, error) {
	if err := yamltext.Check(text); err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("no bootstrap in YAML or JSON: %w", err)
	}
	return tree, nil
}

// FromTemplate renders a Go template of a bootstrap, with the parameters that Istio's agent gives to one, and returns
// JSON for Envoy. own is the agent's bootstrap: its node and admin interface, and its clusters for xDS and SDS, take
// the place of the template's, because without them no agent could run the Envoy.
func FromTemplate(text string, own []byte, in Input, pc map[string]any) ([]byte, error) {
	var mine map[string]any
	if err := json.Unmarshal(own, &mine); err != nil {
		return nil, err
	}
	t, err := template.New("bootstrap").Funcs(template.FuncMap{"toJSON": toJSON, "toJson": toJSON}).Option("missingkey=zero").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	var out bytes.Buffer
	if err := t.Execute(&limited{&out}, parameters(in, mine, pc)); err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	tree, err := parseTree(out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("template: what it renders is %w", err)
	}
	if tree == nil {
		return nil, errors.New("template: it renders nothing")
	}
	tree["node"], tree["admin"] = mine["node"], mine["admin"]
	replaceClusters(tree, mine)
	return json.MarshalIndent(tree, "", "  ")
}

func toJSON(v any) (string, error) {
	js, err := json.Marshal(v)
	return string(js), err
}

// maxRendered bounds what a template renders.
const maxRendered = 4 << 20

// limited ends the execution of a template that renders too much.
type limited struct{ *bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxRendered {
		return 0, fmt.Errorf("it renders more than %d bytes", maxRendered)
	}
	return l.Buffer.Write(p)
}

// replaceClusters puts the agent's clusters in the place of those with the same name, or adds them.
func replaceClusters(tree, mine map[string]any) {
	static, _ := tree["static_resources"].(map[string]any)
	if static == nil {
		static = map[string]any{}
		tree["static_resources"] = static
	}
	owned := map[string]any{}
	for _, c := range clustersOf(mine) {
		owned[nameOf(c)] = c
	}
	var clusters []any
	for _, c := range clustersOf(tree) {
		if owned[nameOf(c)] == nil {
			clusters = append(clusters, c)
		}
	}
	for _, name := range []string{XDSCluster, SDSCluster, AgentCluster, StatsCluster} {
		clusters = append(clusters, owned[name])
	}
	static["clusters"] = clusters
}

func clustersOf(tree map[string]any) []any {
	static, _ := tree["static_resources"].(map[string]any)
	clusters, _ := static["clusters"].([]any)
	return clusters
}

func nameOf(cluster any) string {
	c, _ := cluster.(map[string]any)
	name, _ := c["name"].(string)
	return name
}

// parameters are what a template may name, as in the template of Istio's agent.
func parameters(in Input, own, pc map[string]any) map[string]any {
	node := in.Node
	metadata, _ := own["node"].(map[string]any)
	runtime, _ := own["layered_runtime"].(map[string]any)
	var flags any
	if layers, ok := runtime["layers"].([]any); ok && len(layers) > 0 {
		layer, _ := layers[0].(map[string]any)
		flags = layer["static_layer"]
	}
	asJSON := func(v any) string {
		text, _ := toJSON(v)
		return text
	}
	localhost, wildcard, family := "127.0.0.1", "0.0.0.0", "V4_ONLY"
	if in.Ready.Addr().Is6() {
		localhost, wildcard, family = "::1", "::", "V6_ONLY"
	}
	xds := "GRPC"
	if in.Delta {
		xds = "DELTA_GRPC"
	}
	p := map[string]any{
		"nodeID": node.GetId(), "cluster": node.GetCluster(), "nodeType": strings.SplitN(node.GetId(), "~", 2)[0],
		"region": node.GetLocality().GetRegion(), "zone": node.GetLocality().GetZone(), "sub_zone": node.GetLocality().GetSubZone(),
		"meta_json_str": asJSON(metadata["metadata"]), "runtime_flags": asJSON(flags), "log_json": true, "xds_type": xds,
		"config": configParameters(pc), "localhost": localhost, "wildcard": wildcard, "dns_lookup_family": family,
		"discovery_address": pc["discoveryAddress"], "pilot_grpc_address": pc["discoveryAddress"],
		"envoy_status_port": in.Ready.Port(), "envoy_prometheus_port": in.Stats.Port(),
		"envoy_status_port_enable_proxy_protocol": in.ReadyProxyProtocol,
		"global_downstream_max_connections":       in.MaxDownstreamConnections,
		"workload_identity_socket_file":           "socket",
		"inclusionPrefix": append(requiredPrefixes[:len(requiredPrefixes):len(requiredPrefixes)],
			in.Telemetry.Matcher.Prefixes...),
		"inclusionSuffix": append(requiredSuffixes[:len(requiredSuffixes):len(requiredSuffixes)],
			in.Telemetry.Matcher.Suffixes...),
		"inclusionRegexps":                in.Telemetry.Matcher.Regexps,
		"extraStatTags":                   in.Telemetry.ExtraTags,
		"envoy_metrics_stats_compression": in.Telemetry.Compression,
	}
	if in.OutlierLog != "" {
		p["outlier_log_path"] = in.OutlierLog
	}
	address := func(name string, r *Remote) {
		if r != nil {
			p[name] = asJSON(map[string]any{"address": r.Host, "port_value": r.Port})
		}
	}
	if t := in.Telemetry.Tracer; t != nil && t.Datadog {
		address("datadog", &t.Remote)
	} else if t != nil {
		address("zipkin", &t.Remote)
	}
	address("envoy_metrics_service_address", in.Telemetry.Metrics)
	address("envoy_accesslog_service_address", in.Telemetry.AccessLog)
	return p
}

// configParameters are the fields of ProxyConfig, named as in Go.
func configParameters(pc map[string]any) map[string]any {
	out := map[string]any{"ProxyAdminPort": meshdefaults.ProxyAdminPort, "StatusPort": meshdefaults.StatusPort,
		"ConfigPath": meshdefaults.ConfigPath}
	for name, v := range pc {
		out[strings.ToUpper(name[:1])+name[1:]] = v
	}
	return out
}
