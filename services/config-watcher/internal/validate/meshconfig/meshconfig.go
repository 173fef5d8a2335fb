// Package meshconfig reads the mesh configuration: it decodes what the user wrote over the defaults (package
// meshdefaults), and has its rules.
package meshconfig

import (
	"encoding/json"
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
	mesh "istio.io/api/mesh/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/proxytext"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
	"fairlead.dev/services/config-watcher/internal/validate/cipher"
	rules "fairlead.dev/services/config-watcher/internal/validate/networking"
	"fairlead.dev/services/config-watcher/internal/validate/ondemand"
	"fairlead.dev/services/config-watcher/internal/validate/support"
)

// Parse decodes a mesh configuration (the ConfigMap's entry, or a file) over meshdefaults.MeshConfig. Only warnings and
// problems name file.
func Parse(file string, text []byte) (config *mesh.MeshConfig, warnings, problems object.Problems) {
	return ParseOver(meshdefaults.MeshConfig(), file, text)
}

// IsBare reports whether a document is a mesh configuration without an object around it: it has no member of an object
// and at least one field of MeshConfig.
func IsBare(tree map[string]any) bool {
	has := func(name string) bool { _, has := tree[name]; return has }
	return !slices.ContainsFunc(decode.Top, has) &&
		slices.ContainsFunc(decode.FieldNames((&mesh.MeshConfig{}).ProtoReflect().Descriptor()), has)
}

// ParseOver is Parse with the caller's defaults, which it changes and returns.
func ParseOver(out *mesh.MeshConfig, file string, text []byte) (config *mesh.MeshConfig, warnings, problems object.Problems) {
	docs, problems := manifest.Parse(file, text)
	if len(problems) > 0 {
		return nil, nil, problems
	}
	if len(docs) == 0 {
		return out, nil, nil
	}
	d := decode.Decoder{Verdict: &decode.Verdict{Object: "MeshConfig", Doc: docs[0]}, Beside: ondemand.Beside}
	c := checker{rules.Checker{Checker: &check.Checker{Verdict: d.Verdict}}}
	c.FailIf(len(docs) > 1, "", nil, "more than one document", "keep one")
	tree := docs[0].Tree
	if config, ok := tree["defaultConfig"].(map[string]any); ok {
		tree = maps.Clone(tree)
		tree["defaultConfig"] = ondemand.Lift(d.Verdict, "defaultConfig", config, "proxyMetadata")
	}
	user := &mesh.MeshConfig{}
	if !d.Spec("", "MeshConfig", tree, user) {
		return nil, nil, c.Problems
	}
	support.Check(d.Verdict, "MeshConfig", "", user.ProtoReflect())
	overlay(out.ProtoReflect(), user.ProtoReflect(), tree)
	c.meshConfig(out)
	if len(c.Problems) > 0 {
		return nil, nil, c.Problems
	}
	return out, c.Warnings, nil
}

// overlay copies every field that the user wrote from src over dst, zero values included ("enableTracing: false",
// "mode: REGISTRY_ONLY"). Messages merge field by field; lists and maps are replaced.
func overlay(dst, src protoreflect.Message, tree map[string]any) {
	for name, v := range tree {
		f := decode.FieldOf(src.Descriptor(), name)
		if f == nil || v == nil {
			continue
		}
		sub, isObject := v.(map[string]any)
		switch {
		case f.Message() != nil && !f.IsList() && !f.IsMap() && isObject && dst.Has(f) && f.ContainingOneof() == nil:
			overlay(dst.Mutable(f).Message(), src.Get(f).Message(), sub)
		case src.Has(f):
			dst.Set(f, src.Get(f))
		default:
			dst.Clear(f)
		}
	}
}

// checker checks a mesh configuration.
type checker struct{ rules.Checker }

func (c checker) meshConfig(m *mesh.MeshConfig) {
	c.FailIf(!check.FQDN(m.TrustDomain), "trustDomain", m.TrustDomain, "not a trust domain", `use a DNS name such as "cluster.local"`)
	for i, td := range m.TrustDomainAliases {
		c.FailIf(!check.FQDN(td), manifest.Index("trustDomainAliases", i), td, "not a trust domain", "use a DNS name")
	}
	c.caCertificates("caCertificates", m)
	c.FailIf(!check.DNSLabel(m.RootNamespace), "rootNamespace", m.RootNamespace, "not a namespace", `use a name such as "istio-system"`)
	c.portNumber("proxyListenPort", m.ProxyListenPort)
	c.portNumber("proxyInboundListenPort", m.ProxyInboundListenPort)
	c.portNumber("proxyHttpPort", m.ProxyHttpPort)
	c.Duration("connectTimeout", m.ConnectTimeout)
	c.Duration("dnsRefreshRate", m.DnsRefreshRate)
	c.DurationNotNegative("protocolDetectionTimeout", m.ProtocolDetectionTimeout)
	c.accessLog(m)
	c.OneOf("meshMTLS.cipherSuites", m.GetMeshMTLS().GetCipherSuites(), "unknown cipher suite", cipher.Suites)
	c.OneOf("tlsDefaults.cipherSuites", m.GetTlsDefaults().GetCipherSuites(), "unknown cipher suite", cipher.Suites)
	c.OneOf("tlsDefaults.ecdhCurves", m.GetTlsDefaults().GetEcdhCurves(), "unknown curve", cipher.Curves)
	c.Keepalive("tcpKeepalive", m.TcpKeepalive)
	c.ExportTo("defaultServiceExportTo", m.DefaultServiceExportTo, check.Exporter{Service: true})
	c.ExportTo("defaultVirtualServiceExportTo", m.DefaultVirtualServiceExportTo, check.Exporter{Service: true})
	c.ExportTo("defaultDestinationRuleExportTo", m.DefaultDestinationRuleExportTo, check.Exporter{Service: true})
	c.LocalityLB("localityLbSetting", m.LocalityLbSetting)
	c.ZoneAware("zoneAwareLbSetting", m.ZoneAwareLbSetting)
	c.Retries("defaultHttpRetryPolicy", m.DefaultHttpRetryPolicy)
	c.ClientTLS("outboundTrafficPolicy.tls", m.OutboundTrafficPolicy.GetTls())
	if p := m.DefaultTrafficPolicy; p != nil {
		c.ConnectionPool("defaultTrafficPolicy.connectionPool", p.ConnectionPool)
		c.OutlierDetection("defaultTrafficPolicy.outlierDetection", p.OutlierDetection)
	}
	if d := m.DefaultConfig; d != nil {
		c.proxyConfig("defaultConfig", d)
	}
	for i, s := range m.DiscoverySelectors {
		if _, err := LabelSelector(s); err != nil {
			c.Fail(manifest.Index("discoverySelectors", i), nil, err.Error(),
				"write a selector of labels as in Kubernetes: matchLabels, and matchExpressions of key, operator, values")
		}
	}
	c.configSources("configSources", m.ConfigSources)
	c.providers("extensionProviders", m.ExtensionProviders)
}

// accessLog checks the access log's format. Envoy would refuse the listener for a format that it cannot parse.
func (c checker) accessLog(m *mesh.MeshConfig) {
	const at = "accessLogFormat"
	c.Printable("accessLogFile", m.AccessLogFile)
	if m.AccessLogFormat == "" {
		return
	}
	if m.AccessLogEncoding != mesh.MeshConfig_JSON {
		c.accessLogText(at, m.AccessLogFormat)
		return
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(m.AccessLogFormat), &fields); err != nil || fields == nil {
		c.Fail(at, m.AccessLogFormat, "no JSON object", `write one, like '{"path": "%REQ(:PATH)%"}', or use accessLogEncoding TEXT`)
		return
	}
	c.accessLogFields(at, fields)
}

func (c checker) accessLogFields(at string, value any) {
	switch v := value.(type) {
	case string:
		c.accessLogText(at, v)
	case []any:
		for i, each := range v {
			c.accessLogFields(manifest.Index(at, i), each)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			c.accessLogFields(manifest.Field(at, k), v[k])
		}
	}
}

func (c checker) accessLogText(at, s string) {
	if err := proxytext.Format(s); err != nil {
		c.Fail(at, s, err.Error(), "see Envoy's command operators")
	}
}

// LabelSelector compiles a label selector. An empty one selects everything.
func LabelSelector(in *mesh.LabelSelector) (labels.Selector, error) {
	out := &metav1.LabelSelector{MatchLabels: in.GetMatchLabels()}
	for _, e := range in.GetMatchExpressions() {
		out.MatchExpressions = append(out.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: e.GetKey(), Operator: metav1.LabelSelectorOperator(e.GetOperator()), Values: e.GetValues()})
	}
	return metav1.LabelSelectorAsSelector(out)
}

func (c checker) portNumber(path string, n int32) {
	c.FailIf(n < 0 || n > 65535, path, n, "not a port", "use 1 to 65535")
}
