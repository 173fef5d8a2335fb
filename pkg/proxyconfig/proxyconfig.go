// Package proxyconfig computes the ProxyConfig with which a workload's proxy starts. Of merges MeshConfig's
// defaultConfig, the ProxyConfig resources that apply to the workload, and its annotation, in the order of Istio's
// injection. The local runtime of `fairlead up` calls it in place of injection; node-agent uses Config for what it is
// started with. config-watcher, which starts no proxy, uses the names alone (Annotation, OnDemand).
package proxyconfig

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	networking "istio.io/api/networking/v1beta1"
)

// Annotation is the annotation of a workload that holds a ProxyConfig in YAML.
const Annotation = "proxy.istio.io/config"

// OnDemand is the variable in which a ProxyConfig carries Fairlead's field onDemand. No proxy starts with it: the
// control plane reads it from the resources, so that a change takes effect without a restart.
const OnDemand = "FAIRLEAD_ON_DEMAND"

// Fields of a ProxyConfig in JSON.
const (
	concurrency   = "concurrency"
	proxyMetadata = "proxyMetadata"
)

// Resource is a ProxyConfig resource.
type Resource struct {
	Namespace, Name string
	Created         time.Time
	Spec            *networking.ProxyConfig
}

// Workload says which resources apply. Own is the workload's annotation, nil without one.
type Workload struct {
	Namespace string
	Labels    map[string]string
	Own       Config
}

// Config is an Istio ProxyConfig as decoded from JSON or YAML, with the fields of MeshConfig's defaultConfig.
type Config map[string]any

// Of returns a workload's ProxyConfig. For each field, and each entry of a map, the last of these wins: the defaults,
// the resources of the root namespace, those of the workload's namespace, its annotation, the resources that select it.
// Among resources of one of these ranks, the oldest wins. Of does not change its arguments.
func Of(defaults Config, resources []Resource, root string, w Workload) Config {
	var mesh, namespace, selecting []Resource
	for _, r := range resources {
		labels := r.Spec.GetSelector().GetMatchLabels()
		switch {
		case len(labels) > 0:
			if r.Namespace == w.Namespace && has(w.Labels, labels) {
				selecting = append(selecting, r)
			}
		case r.Namespace == root:
			mesh = append(mesh, r)
		case r.Namespace == w.Namespace:
			namespace = append(namespace, r)
		}
	}
	out := over(over(defaults, mesh), namespace)
	return over(Config(merge(out, w.Own)), selecting)
}

func has(labels, wanted map[string]string) bool {
	for k, v := range wanted {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// over merges the resources of one rank into a base, the oldest last.
func over(base Config, rank []Resource) Config {
	slices.SortFunc(rank, func(a, b Resource) int {
		return -cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, r := range rank {
		base = merge(base, fields(r.Spec))
	}
	return base
}

// fields returns a resource's fields under the names of defaultConfig.
func fields(spec *networking.ProxyConfig) Config {
	out := Config{}
	if n := spec.GetConcurrency(); n != nil {
		out[concurrency] = int64(n.GetValue())
	}
	metadata := map[string]any{}
	for k, v := range spec.GetEnvironmentVariables() {
		if k != OnDemand {
			metadata[k] = v
		}
	}
	if len(metadata) > 0 {
		out[proxyMetadata] = metadata
	}
	if kind := spec.GetImage().GetImageType(); kind != "" {
		out["image"] = map[string]any{"imageType": kind}
	}
	return out
}

// merge merges two trees: maps entry by entry, any other value as a whole.
func merge(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil && len(over) > 0 {
		out = map[string]any{}
	}
	for k, v := range over {
		b, isMap := out[k].(map[string]any)
		o, both := v.(map[string]any)
		if isMap && both {
			v = merge(b, o)
		}
		out[k] = v
	}
	return out
}

// Reserved are variables that proxyMetadata may not set, because they decide which code a process loads, where the
// agent writes files, which files of keys and roots it trusts, and which ports it opens for tokens. The files of a
// bootstrap decide the first two.
var Reserved = []string{
	"CA_ROOT_CA", "GLIBC_TUNABLES", "GRPC_XDS_BOOTSTRAP", "ISTIO_BOOTSTRAP", "ISTIO_BOOTSTRAP_OVERRIDE",
	"ISTIO_META_TLS_CLIENT_CERT_CHAIN", "ISTIO_META_TLS_CLIENT_KEY", "ISTIO_META_TLS_CLIENT_ROOT_CERT", "LD_AUDIT", "LD_LIBRARY_PATH",
	"LD_PRELOAD", "OUTPUT_CERTS", "PATH", "PROV_CERT", "STS_PORT", "XDS_ROOT_CA",
}

// Flags returns the arguments of node-agent for the config. A flag wins over the annotation, which the agent also
// reads.
func (c Config) Flags() []string {
	var n float64
	switch v := c[concurrency].(type) {
	case int64:
		n = float64(v)
	case float64:
		n = v
	default:
		return nil
	}
	if n < 0 || n != float64(int32(n)) {
		return nil // the agent refuses the annotation
	}
	return []string{"--concurrency", strconv.Itoa(int(n))}
}

// Variable is a variable of an environment.
type Variable struct{ Name, Value string }

// Environment returns the variables that the config adds to the environment of the agent and its Envoy, sorted by name.
// It includes Reserved ones, which the caller must refuse.
func (c Config) Environment() []Variable {
	metadata, _ := c[proxyMetadata].(map[string]any)
	var out []Variable
	for _, k := range slices.Sorted(maps.Keys(metadata)) {
		if v, ok := metadata[k].(string); ok && k != OnDemand {
			out = append(out, Variable{k, v})
		}
	}
	return out
}
