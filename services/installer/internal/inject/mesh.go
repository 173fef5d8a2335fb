package inject

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/proxyconfig"
)

// ParseMesh reads a MeshConfig, as the key mesh of the ConfigMap istio has it, over the defaults. Fields
// that MeshConfig does not have are left out: config-watcher judges the mesh configuration.
func ParseMesh(text []byte) (*meshconfig.MeshConfig, error) {
	mesh := meshdefaults.MeshConfig()
	proxy := mesh.GetDefaultConfig()
	tree, err := parseObject(text)
	if err != nil {
		return nil, fmt.Errorf("mesh configuration: %w; correct the key mesh of the ConfigMap istio", err)
	}
	if own, ok := tree["defaultConfig"].(map[string]any); ok {
		if err := overlayProxy(proxy, own); err != nil {
			return nil, fmt.Errorf("mesh configuration: defaultConfig: %w", err)
		}
		if err := checkProxy(proxy); err != nil {
			return nil, fmt.Errorf("mesh configuration: defaultConfig: %w", err)
		}
	}
	tree = maps.Clone(tree)
	delete(tree, "defaultConfig")
	if err := overlay(mesh, tree); err != nil {
		return nil, fmt.Errorf("mesh configuration: %w", err)
	}
	return mesh, nil
}

// parseObject reads an object in YAML or JSON; an empty text is an empty object.
func parseObject(text []byte) (map[string]any, error) {
	js, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(js, &tree); err != nil {
		return nil, errors.New("it is not an object of fields and values")
	}
	return tree, nil
}

// proxyConfig returns the ProxyConfig of the Pod: the mesh's, over it the resources without a selector, the Pod's
// annotation, and the resources that select the Pod.
func (in *injection) proxyConfig() (*meshconfig.ProxyConfig, error) {
	pod, mesh := in.request.Pod, in.config.mesh
	base := in.meshProxyConfig()
	text, own := pod.Annotations[proxyconfig.Annotation]
	if !own && len(in.request.ProxyConfigs) == 0 {
		return base, nil
	}
	var wide, selecting []proxyconfig.Resource
	for _, r := range in.request.ProxyConfigs {
		if len(r.Spec.GetSelector().GetMatchLabels()) > 0 {
			selecting = append(selecting, r)
		} else {
			wide = append(wide, r)
		}
	}
	w := proxyconfig.Workload{Namespace: pod.Namespace, Labels: pod.Labels}
	out := proto.CloneOf(base)
	if err := overlayProxy(out, proxyconfig.Of(nil, wide, mesh.GetRootNamespace(), w)); err != nil {
		return nil, err
	}
	if own {
		tree, err := parseObject([]byte(text))
		if err == nil {
			in.warnUnknown(tree)
			err = overlayProxy(out, tree)
		}
		if err != nil {
			return nil, badAnnotation(proxyconfig.Annotation, text, err)
		}
	}
	return out, overlayProxy(out, proxyconfig.Of(nil, selecting, mesh.GetRootNamespace(), w))
}

const (
	// caVariable tells the agent where the ca is.
	caVariable = "CA_ADDR"
	// defaultCluster is the id of a cluster whose values say none.
	defaultCluster = "Kubernetes"
)

// meshProxyConfig is the mesh's ProxyConfig. A Pod of another cluster asks for certificates where it asks for
// configuration, as with Istio, by one name that leads to this control plane there: xds-server passes on what is for
// the ca. An address that global.caAddress or the mesh's settings say is meant for all clusters.
func (in *injection) meshProxyConfig() *meshconfig.ProxyConfig {
	p, global := in.config.mesh.GetDefaultConfig(), in.config.known.Global
	cluster := in.request.Env[clusterVariable]
	if cluster == "" || cluster == cmp.Or(global.MultiCluster.ClusterName, defaultCluster) || in.request.LocalCA == "" ||
		global.CAAddress != "" || cmp.Or(p.GetProxyMetadata()[caVariable], in.request.LocalCA) != in.request.LocalCA {
		return p
	}
	p = proto.CloneOf(p)
	if p.ProxyMetadata == nil {
		p.ProxyMetadata = map[string]string{}
	}
	p.ProxyMetadata[caVariable] = p.GetDiscoveryAddress()
	return p
}

func (in *injection) warnUnknown(tree map[string]any) {
	fields := (&meshconfig.ProxyConfig{}).ProtoReflect().Descriptor().Fields()
	for _, name := range sortedKeys(tree) {
		if fields.ByJSONName(name) == nil && fields.ByTextName(name) == nil && name != "onDemand" {
			in.warn("the annotation %s has the field %q, which a ProxyConfig does not have; it has no effect", proxyconfig.Annotation, name)
		}
	}
}

// overlayProxy is overlay, and merges the variables and the headers entry by entry, as Istio does.
func overlayProxy(into *meshconfig.ProxyConfig, tree map[string]any) error {
	variables, headers := into.GetProxyMetadata(), into.GetProxyHeaders()
	if err := overlay(into, tree); err != nil {
		return err
	}
	merged := maps.Clone(variables)
	if merged == nil {
		merged = into.GetProxyMetadata()
	}
	maps.Copy(merged, into.GetProxyMetadata())
	into.ProxyMetadata = merged
	if h := into.GetProxyHeaders(); h != nil && headers != nil && h != headers {
		fields := headers.ProtoReflect()
		fields.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if fd.Message() != nil && !h.ProtoReflect().Has(fd) {
				h.ProtoReflect().Set(fd, v)
			}
			return true
		})
	}
	return nil
}

// overlay sets every field that the tree has, zero values too, each as a whole.
func overlay(into proto.Message, tree map[string]any) error {
	if len(tree) == 0 {
		return nil
	}
	m := into.ProtoReflect()
	tree, _ = durations(tree, m.Descriptor()).(map[string]any)
	text, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	from := m.New()
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, from.Interface()); err != nil {
		return errors.New(strings.NewReplacer("proto:", "", "\u00a0", " ").Replace(err.Error()))
	}
	for name, value := range tree {
		fd := fieldOf(m.Descriptor(), name)
		if fd == nil || value == nil {
			continue
		}
		if from.Has(fd) {
			m.Set(fd, from.Get(fd))
		} else {
			m.Clear(fd)
		}
	}
	return nil
}

func fieldOf(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := d.Fields().ByJSONName(name); fd != nil {
		return fd
	}
	return d.Fields().ByTextName(name)
}

// durations writes the durations of a tree as protobuf's JSON wants them: Istio takes "1m" too.
func durations(v any, d protoreflect.MessageDescriptor) any {
	switch v := v.(type) {
	case string:
		if d.FullName() == "google.protobuf.Duration" {
			if parsed, err := time.ParseDuration(v); err == nil {
				text := protojson.Format(durationpb.New(parsed))
				return strings.Trim(text, `"`)
			}
		}
	case []any:
		out := slices.Clone(v)
		for i := range out {
			out[i] = durations(out[i], d)
		}
		return out
	case map[string]any:
		out := maps.Clone(v)
		for name, value := range v {
			if fd := fieldOf(d, name); fd != nil && fd.Message() != nil && !fd.IsMap() {
				out[name] = durations(value, fd.Message())
			}
		}
		return out
	}
	return v
}
