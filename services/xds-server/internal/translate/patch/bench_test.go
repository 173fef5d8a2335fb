package patch_test

import (
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/cluster"
)

// BenchmarkBuild builds a cluster without the wrapper, with it in a mesh without EnvoyFilters, and with an EnvoyFilter
// that patches it.
func BenchmarkBuild(b *testing.B) {
	one := meshtest.EnvoyFilter("istio-system", "f", timeout("", 3))
	for _, c := range []struct {
		name    string
		of      plan.Translator
		filters []*configv1.Resource
	}{
		{"unwrapped", cluster.Translator{}, nil},
		{"none", translator(resource.ClusterType), nil},
		{"one", translator(resource.ClusterType), []*configv1.Resource{one}},
	} {
		b.Run(c.name, func(b *testing.B) {
			view := input.NewView(sidecar(), meshtest.State(b, patchedMesh(c.filters...)...))
			b.ReportAllocs()
			for b.Loop() {
				if m, err := c.of.Build(view.Reader(), "outbound|80||"+web); m == nil || err != nil {
					b.Fatal(m, err)
				}
			}
		})
	}
}
