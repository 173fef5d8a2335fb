package validate

import (
	"encoding/json"
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	mesh "istio.io/api/mesh/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/proxytext"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// MeshConfig decodes a mesh configuration (the ConfigMap's entry, or a file) over meshdefaults.MeshConfig. Only warnings and
// problems name file.
func MeshConfig(file string, text []byte) (config *mesh.MeshConfig, warnings, problems object.Problems) {
	return MeshConfigOver(meshdefaults.MeshConfig(), file, text)
}

// IsBareMeshConfig reports whether a document is a mesh configuration without an object around it: it has no member of
// an object and at least one field of MeshConfig.
func IsBareMeshConfig(tree map[string]any) bool {
	for _, name := range istioTop {
		if _, has := tree[name]; has {
			return false
		}
	}
	fields := fieldNames((&mesh.MeshConfig{}).ProtoReflect().Descriptor())
	return slices.ContainsFunc(sortedKeys(tree), func(name string) bool { return slices.Contains(fields, name) })
}

// MeshConfigOver is MeshConfig with the caller's defaults, which it changes and returns.
func MeshConfigOver(out *mesh.MeshConfig, file string, text []byte) (config *mesh.MeshConfig, warnings, problems object.Problems) {
	docs, problems := manifest.Parse(file, text)
	if len(problems) > 0 {
		return nil, nil, problems
	}
	if len(docs) == 0 {
		return out, nil, nil
	}
	c := &checker{object: "MeshConfig", doc: docs[0]}
	c.failIf(len(docs) > 1, "", nil, "more than one document", "keep one")
	tree := docs[0].Tree
	if config, ok := tree["defaultConfig"].(map[string]any); ok {
		tree = maps.Clone(tree)
		tree["defaultConfig"] = c.liftOnDemand("defaultConfig", config, "proxyMetadata")
	}
	user := &mesh.MeshConfig{}
	if !c.decodeSpec("", "MeshConfig", tree, user) {
		return nil, nil, c.problems
	}
	c.supported("MeshConfig", "", user.ProtoReflect())
	overlay(out.ProtoReflect(), user.ProtoReflect(), tree)
	c.meshConfig(out)
	if len(c.problems) > 0 {
		return nil, nil, c.problems
	}
	return out, c.warnings, nil
}

// overlay copies every field that the user wrote from src over dst, zero values included ("enableTracing: false",
// "mode: REGISTRY_ONLY"). Messages merge field by field; lists and maps are replaced.
func overlay(dst, src protoreflect.Message, tree map[string]any) {
	fields := src.Descriptor().Fields()
	for name, v := range tree {
		f := fields.ByJSONName(name)
		if f == nil {
			f = fields.ByTextName(name)
		}
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

func (c *checker) meshConfig(m *mesh.MeshConfig) {
	c.failIf(!fqdn(m.TrustDomain), "trustDomain", m.TrustDomain, "not a trust domain", `use a DNS name such as "cluster.local"`)
	for i, td := range m.TrustDomainAliases {
		c.failIf(!fqdn(td), index("trustDomainAliases", i), td, "not a trust domain", "use a DNS name")
	}
	c.caCertificates("caCertificates", m)
	c.failIf(!dnsLabel(m.RootNamespace), "rootNamespace", m.RootNamespace, "not a namespace", `use a name such as "istio-system"`)
	c.portNumber("proxyListenPort", m.ProxyListenPort)
	c.portNumber("proxyInboundListenPort", m.ProxyInboundListenPort)
	c.portNumber("proxyHttpPort", m.ProxyHttpPort)
	c.duration("connectTimeout", m.ConnectTimeout)
	c.duration("dnsRefreshRate", m.DnsRefreshRate)
	c.durationNotNegative("protocolDetectionTimeout", m.ProtocolDetectionTimeout)
	c.accessLog(m)
	c.oneOf("meshMTLS.cipherSuites", m.GetMeshMTLS().GetCipherSuites(), "unknown cipher suite", cipherSuites)
	c.oneOf("tlsDefaults.cipherSuites", m.GetTlsDefaults().GetCipherSuites(), "unknown cipher suite", cipherSuites)
	c.oneOf("tlsDefaults.ecdhCurves", m.GetTlsDefaults().GetEcdhCurves(), "unknown curve", curves)
	c.keepalive("tcpKeepalive", m.TcpKeepalive)
	c.exportTo("defaultServiceExportTo", m.DefaultServiceExportTo, exporter{service: true})
	c.exportTo("defaultVirtualServiceExportTo", m.DefaultVirtualServiceExportTo, exporter{service: true})
	c.exportTo("defaultDestinationRuleExportTo", m.DefaultDestinationRuleExportTo, exporter{service: true})
	c.localityLB("localityLbSetting", m.LocalityLbSetting)
	c.zoneAware("zoneAwareLbSetting", m.ZoneAwareLbSetting)
	c.retries("defaultHttpRetryPolicy", m.DefaultHttpRetryPolicy)
	c.clientTLS("outboundTrafficPolicy.tls", m.OutboundTrafficPolicy.GetTls())
	if p := m.DefaultTrafficPolicy; p != nil {
		c.connectionPool("defaultTrafficPolicy.connectionPool", p.ConnectionPool)
		c.outlierDetection("defaultTrafficPolicy.outlierDetection", p.OutlierDetection)
	}
	if d := m.DefaultConfig; d != nil {
		c.proxyConfig("defaultConfig", d)
	}
	for i, s := range m.DiscoverySelectors {
		if _, err := LabelSelector(s); err != nil {
			c.fail(index("discoverySelectors", i), nil, err.Error(),
				"write a selector of labels as in Kubernetes: matchLabels, and matchExpressions of key, operator, values")
		}
	}
	names := map[string]bool{}
	for i, p := range m.ExtensionProviders {
		c.failIf(p.Name == "" || names[p.Name], index("extensionProviders", i)+".name", p.Name, "missing or used twice",
			"name every provider once")
		names[p.Name] = true
	}
}

// durationNotNegative checks a duration that may be 0.
func (c *checker) durationNotNegative(path string, d *durationpb.Duration) {
	if d != nil && c.durationRange(path, d) && d.AsDuration() < 0 {
		c.fail(path, d.AsDuration(), "negative", "use 0s or more")
	}
}

// accessLog checks the access log's format. Envoy would refuse the listener for a format that it cannot parse.
func (c *checker) accessLog(m *mesh.MeshConfig) {
	const at = "accessLogFormat"
	c.printable("accessLogFile", m.AccessLogFile)
	if m.AccessLogFormat == "" {
		return
	}
	if m.AccessLogEncoding != mesh.MeshConfig_JSON {
		c.accessLogText(at, m.AccessLogFormat)
		return
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(m.AccessLogFormat), &fields); err != nil || fields == nil {
		c.fail(at, m.AccessLogFormat, "no JSON object", `write one, like '{"path": "%REQ(:PATH)%"}', or use accessLogEncoding TEXT`)
		return
	}
	c.accessLogFields(at, fields)
}

func (c *checker) accessLogFields(at string, value any) {
	switch v := value.(type) {
	case string:
		c.accessLogText(at, v)
	case []any:
		for i, each := range v {
			c.accessLogFields(index(at, i), each)
		}
	case map[string]any:
		for _, k := range sortedKeys(v) {
			c.accessLogFields(field(at, k), v[k])
		}
	}
}

func (c *checker) accessLogText(at, s string) {
	if err := proxytext.Format(s); err != nil {
		c.fail(at, s, err.Error(), "see Envoy's command operators")
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

func (c *checker) portNumber(path string, n int32) {
	c.failIf(n < 0 || n > 65535, path, n, "not a port", "use 1 to 65535")
}
