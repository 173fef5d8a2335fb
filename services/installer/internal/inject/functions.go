package inject

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/meshdefaults"
)

// functions are those that Istio gives its templates besides sprig's, under the same names.
var functions = template.FuncMap{
	"formatDuration":         func(d *durationpb.Duration) string { return d.AsDuration().String() },
	"isset":                  func(m map[string]string, key string) bool { _, ok := m[key]; return ok },
	"annotation":             annotationOr,
	"valueOrDefault":         valueOr,
	"env":                    envOr,
	"directory":              func(file string) string { dir, _ := path.Split(file); return dir },
	"contains":               func(part, text string) bool { return strings.Contains(text, part) },
	"toLower":                strings.ToLower,
	"indent":                 indent,
	"kubevirtInterfaces":     func(s string) string { return s },
	"excludeInterfaces":      func(s string) string { return s },
	"excludeInboundPort":     excludeInboundPort,
	"includeInboundPorts":    func(list []corev1.Container) string { return tcpPorts(list) },
	"applicationPorts":       applicationPorts,
	"appendMultusNetwork":    appendMultusNetwork,
	"toJSON":                 func(m map[string]string) string { return toJSON(m, m == nil) },
	"structToJSON":           func(v any) string { return toJSON(v, v == nil) },
	"toJsonMap":              func(all ...map[string]string) string { return toJSON(mergeMaps(all...), false) },
	"fromJSON":               fromJSON,
	"toYaml":                 toYAML,
	"protoToJSON":            protoToJSON,
	"omit":                   omit,
	"omitNil":                omitNil,
	"strdict":                strdict,
	"mergeMaps":              mergeMaps,
	"otelResourceAttributes": otelResourceAttributes,
}

func parseTemplate(text string) (*template.Template, error) {
	t, err := template.New("inject").Funcs(sprig.TxtFuncMap()).Funcs(functions).Parse(text)
	if err == nil {
		pulse(t)
	}
	return t, err
}

func annotationOr(meta metav1.ObjectMeta, name string, other any) string {
	if value, ok := meta.Annotations[name]; ok {
		return value
	}
	return fmt.Sprint(other)
}

func valueOr(value, other any) any {
	if value == nil || value == "" {
		return other
	}
	return value
}

func envOr(name, other string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return other
}

// indent indents every line but the first.
func indent(spaces int, text string) string {
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", max(spaces, 0)))
}

// excludeInboundPort adds a port to a list, unless it is in it, empty or 0.
func excludeInboundPort(port any, list string) string {
	text := strings.TrimSpace(fmt.Sprint(port))
	ports := strings.Split(list, ",")
	if text == "" || text == "0" || slices.Contains(ports, text) {
		return list
	}
	var out []string
	for _, p := range append(ports, text) {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, ",")
}

// tcpPorts lists the containers' ports that are neither of UDP nor of SCTP.
func tcpPorts(list []corev1.Container) string {
	var out []string
	for i := range list {
		for _, p := range list[i].Ports {
			if p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolSCTP {
				out = append(out, strconv.Itoa(int(p.ContainerPort)))
			}
		}
	}
	return strings.Join(out, ",")
}

func applicationPorts(list []corev1.Container) string {
	return tcpPorts(slices.DeleteFunc(slices.Clone(list), func(c corev1.Container) bool { return c.Name == proxyContainer }))
}

// appendMultusNetwork adds a network to Multus' annotation, a list of names or a JSON list of objects, unless it is
// there.
func appendMultusNetwork(list, network string) string {
	if list == "" {
		return network
	}
	end := strings.LastIndex(list, "]")
	if end < 0 {
		for name := range strings.SplitSeq(list, ",") {
			if strings.TrimSpace(name) == network {
				return list
			}
		}
		return list + ", " + network
	}
	var networks []map[string]any
	if json.Unmarshal([]byte(list), &networks) != nil {
		return list
	}
	namespace, name, ok := strings.Cut(network, "/")
	if !ok {
		namespace, name = "", network
	}
	for _, n := range networks {
		if ns, _ := n["namespace"].(string); n["name"] == name && ns == namespace {
			return list
		}
	}
	entry := fmt.Sprintf(`, {"name": %q}`, name)
	if namespace != "" {
		entry = fmt.Sprintf(`, {"name": %q, "namespace": %q}`, name, namespace)
	}
	return list[:end] + entry + list[end:]
}

func toJSON(v any, empty bool) string {
	if empty {
		return "{}"
	}
	text, err := json.Marshal(v)
	if err != nil {
		return "{}"
	}
	return string(text)
}

func fromJSON(text string) any {
	var v any
	if json.Unmarshal([]byte(text), &v) != nil {
		return "{}"
	}
	return v
}

func toYAML(v any) string {
	text, err := yaml.Marshal(v)
	if err != nil {
		return ""
	}
	return string(text)
}

// protoToJSON writes a message as the agent reads it, a ProxyConfig without what equals the defaults.
func protoToJSON(m proto.Message) string {
	if p, ok := m.(*meshconfig.ProxyConfig); ok && p != nil {
		m = withoutDefaults(p)
	}
	if m == nil {
		return "{}"
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		return "{}"
	}
	var compact, escaped bytes.Buffer
	if json.Compact(&compact, text) != nil { // protojson varies its spaces
		return "{}"
	}
	json.HTMLEscape(&escaped, compact.Bytes())
	return escaped.String()
}

// defaultFields are the fields that withoutDefaults leaves out.
var defaultFields = []string{
	"config_path", "binary_path", "control_plane_auth_policy", "service_cluster", "drain_duration", "termination_drain_duration",
	"discovery_address", "envoy_metrics_service", "envoy_access_log_service", "tracing", "proxy_admin_port", "stat_name_length",
	"status_port", "concurrency",
}

func withoutDefaults(p *meshconfig.ProxyConfig) *meshconfig.ProxyConfig {
	out := proto.CloneOf(p)
	m, defaults := out.ProtoReflect(), meshdefaults.ProxyConfig().ProtoReflect()
	for _, name := range defaultFields {
		fd := m.Descriptor().Fields().ByTextName(name)
		if m.Has(fd) == defaults.Has(fd) && m.Get(fd).Equal(defaults.Get(fd)) {
			m.Clear(fd)
		}
	}
	return out
}

func omit(m map[string]string, keys ...string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		if !slices.Contains(keys, k) {
			out[k] = v
		}
	}
	return out
}

// strdict makes a map of keys and values that follow each other.
func strdict(words ...string) map[string]string {
	out := map[string]string{}
	for pair := range slices.Chunk(words, 2) {
		out[pair[0]] = strings.Join(pair[1:], "")
	}
	return out
}

func mergeMaps(all ...map[string]string) map[string]string {
	if len(all) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}

// omitNil leaves out nulls, and what holds nothing but nulls.
func omitNil(v any) any {
	out, _ := withoutNil(v)
	return out
}

func withoutNil(v any) (out any, changed bool) {
	switch v := v.(type) {
	case nil:
		return nil, true
	case map[string]any:
		kept := map[string]any{}
		for k, e := range v {
			e, c := withoutNil(e)
			changed = changed || c
			if e != nil {
				kept[k] = e
			}
		}
		if changed && len(kept) == 0 {
			return nil, true
		}
		return kept, changed
	case []any:
		kept := []any{}
		for _, e := range v {
			e, c := withoutNil(e)
			changed = changed || c
			if e != nil {
				kept = append(kept, e)
			}
		}
		if changed && len(kept) == 0 {
			return nil, true
		}
		return kept, changed
	}
	return v, false
}

// otelResourceAttributes returns the value of OTEL_RESOURCE_ATTRIBUTES by the semantic conventions for Kubernetes
// (https://opentelemetry.io/docs/specs/semconv/non-normative/k8s-attributes/), "" if no tracing provider of the mesh
// wants it.
func otelResourceAttributes(mesh *meshconfig.MeshConfig, annotations, labels map[string]string, namespace string,
	list []corev1.Container) string {
	if !slices.ContainsFunc(mesh.GetExtensionProviders(), func(p *meshconfig.MeshConfig_ExtensionProvider) bool {
		return p.GetOpentelemetry().GetServiceAttributeEnrichment() == meshconfig.MeshConfig_ExtensionProvider_OTEL_SEMANTIC_CONVENTIONS
	}) {
		return ""
	}
	var out []string
	add := func(name string, values ...string) {
		for _, v := range append([]string{annotations["resource.opentelemetry.io/"+name]}, values...) {
			if v != "" {
				out = append(out, name+"="+v)
				return
			}
		}
	}
	version, instance := "", ""
	if len(list) == 1 {
		version = imageVersion(list[0].Image)
	}
	if len(list) > 0 {
		instance = namespace + ".$(POD_NAME)." + list[0].Name
	}
	add("service.namespace", namespace)
	add("service.version", labels["app.kubernetes.io/version"], version)
	add("service.instance.id", instance)
	return strings.Join(out, ",")
}

// imageVersion returns an image's tag, digest, or TAG@DIGEST.
func imageVersion(image string) string {
	image, digest, _ := strings.Cut(image, "@")
	tag := ""
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		tag = image[i+1:]
	}
	if tag != "" && digest != "" {
		return tag + "@" + digest
	}
	return tag + digest
}
