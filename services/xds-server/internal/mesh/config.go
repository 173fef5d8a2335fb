package mesh

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Config is one object of Istio's APIs, decoded. It is immutable.
type Config[T proto.Message] struct {
	Key                 Key
	Spec                T
	Labels, Annotations map[string]string
	// Created decides between conflicting objects: the oldest wins. The zero time is the oldest.
	Created time.Time
	// ExportedTo lists the namespaces that may use the object; ["*"] means all.
	ExportedTo []string
	Source     *configv1.SourceRef
	// HeldClosed is true if the object stands in the place of one that cannot be used, see configv1.IstioConfig.
	HeldClosed bool
	// Hash of the whole object.
	Hash Hash
	// Rules keeps what authz.Compile makes of an AuthorizationPolicy; nil for other kinds.
	Rules *authz.Memo
}

// Kinds whose spec is all that is decoded.
type (
	// VirtualService of networking.istio.io.
	VirtualService = Config[*networking.VirtualService]
	// DestinationRule of networking.istio.io.
	DestinationRule = Config[*networking.DestinationRule]
	// Gateway of networking.istio.io.
	Gateway = Config[*networking.Gateway]
	// Sidecar of networking.istio.io.
	Sidecar = Config[*networking.Sidecar]
	// PeerAuthentication of security.istio.io.
	PeerAuthentication = Config[*security.PeerAuthentication]
)

// Older reports whether c precedes o where the oldest wins: by creation time, then namespace, then name.
func (c *Config[T]) Older(o *Config[T]) bool {
	if !c.Created.Equal(o.Created) {
		return c.Created.Before(o.Created)
	}
	if c.Key.Namespace != o.Key.Namespace {
		return c.Key.Namespace < o.Key.Namespace
	}
	return c.Key.Name < o.Key.Name
}

// Visible reports whether the object may be used from the namespace.
func (c *Config[T]) Visible(namespace string) bool { return visible(c.ExportedTo, namespace) }

// decodeConfig decodes the spec of a resource into spec.
func decodeConfig[T proto.Message](e *entry, r *configv1.Resource, spec T) (*Config[T], error) {
	c := r.GetIstioConfig()
	// Istio's API versions share one wire form: the kind matters, not the version.
	if got := string(c.GetSpec().MessageName().Name()); got != e.key.Kind {
		return nil, fmt.Errorf("spec is a %q", got)
	}
	if err := proto.Unmarshal(c.GetSpec().GetValue(), spec); err != nil {
		return nil, fmt.Errorf("decode spec: %w", err)
	}
	cfg := &Config[T]{
		Key: e.key, Spec: spec, Labels: c.GetLabels(), Annotations: c.GetAnnotations(),
		ExportedTo: c.GetExportedTo(), Source: c.GetSource(), HeldClosed: c.GetHeldClosed(), Hash: e.hash,
	}
	if _, ok := any(spec).(*security.AuthorizationPolicy); ok {
		cfg.Rules = &authz.Memo{}
	}
	if c.GetCreationTime() != nil {
		cfg.Created = c.GetCreationTime().AsTime()
	}
	return cfg, nil
}

// visible reports whether an object exported to these namespaces may be used from ns.
func visible(exportedTo []string, ns string) bool {
	return slices.Contains(exportedTo, "*") || slices.Contains(exportedTo, ns)
}

// explicit lists the namespaces that see an object which not everybody sees.
func explicit(exportedTo []string) []string {
	if slices.Contains(exportedTo, "*") {
		return nil
	}
	return exportedTo
}

// Matches reports whether every label of the selector is among the labels; an empty selector matches all.
func Matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Covering yields the host itself and then the wildcard hosts that cover it, the most specific first:
// a.b.c, *.b.c, *.c, *.
func Covering(host string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if !yield(host) || host == "*" {
			return
		}
		rest := strings.TrimPrefix(host, "*.")
		if rest != host {
			// The wildcard itself was yielded above.
			if _, after, ok := strings.Cut(rest, "."); ok {
				rest = after
			} else {
				rest = ""
			}
		} else if _, after, ok := strings.Cut(host, "."); ok {
			rest = after
		} else {
			rest = ""
		}
		for rest != "" {
			if !yield("*." + rest) {
				return
			}
			_, rest, _ = strings.Cut(rest, ".")
		}
		yield("*")
	}
}

// wildcardOr returns "*" for a wildcard host and the host itself otherwise.
func wildcardOr(host string) string {
	if strings.HasPrefix(host, "*") {
		return "*"
	}
	return host
}

// merge collects the objects under several prefixes, each once, oldest first.
func merge[T interface {
	comparable
	Older(T) bool
}](x index[T], prefixes ...string) []T {
	var found []T
	for _, p := range prefixes {
		x.scan(p, func(_ string, v T) bool {
			found = append(found, v)
			return true
		})
	}
	if len(prefixes) > 1 {
		slices.SortStableFunc(found, func(a, b T) int {
			if a == b {
				return 0
			}
			if a.Older(b) {
				return -1
			}
			return 1
		})
		found = slices.Compact(found)
	}
	return found
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
