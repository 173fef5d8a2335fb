package kubernetes

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestBestVersion: of the versions that config-watcher can read, the first that the API server has is read, unless
// nothing is known of a better one.
func TestBestVersion(t *testing.T) {
	gk := schema.GroupKind{Group: "networking.istio.io", Kind: "Sidecar"}
	versions := []string{"v1", "v1beta1", "v1alpha3"}
	for name, c := range map[string]struct {
		serves, broken []string
		want           string
		known          bool
	}{
		"all":                      {versions, nil, "v1", true},
		"older ones":               {[]string{"v1alpha3", "v1beta1"}, nil, "v1beta1", true},
		"newer ones too":           {[]string{"v2", "v1alpha3"}, nil, "v1alpha3", true},
		"none":                     {nil, nil, "", true},
		"only newer ones":          {[]string{"v2"}, nil, "", true},
		"the best is not answered": {[]string{"v1beta1"}, []string{"v1"}, "", false},
		"a worse is not answered":  {[]string{"v1beta1"}, []string{"v1alpha3"}, "v1beta1", true},
		"nothing is answered":      {nil, versions, "", false},
	} {
		r := &resources{kinds: map[schema.GroupVersionKind]served{}, broken: map[schema.GroupVersion]bool{}}
		for _, v := range c.serves {
			r.kinds[gk.WithVersion(v)] = served{v, "sidecars"}
		}
		for _, v := range c.broken {
			r.broken[schema.GroupVersion{Group: gk.Group, Version: v}] = true
		}
		if got, known := r.find(versions, gk); got.version != c.want || known != c.known {
			t.Errorf("%s: version %q, known %v", name, got.version, known)
		}
	}
}
