package kinds

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// A definition of the chart base serves the versions that the table has, and each kind that is not Kubernetes' own has
// one. Of the Gateway API, those of the experimental channel serve every version.
func TestEveryKindHasItsDefinition(t *testing.T) {
	const dir = "../../../../services/installer/manifests/charts/base/files"
	files, err := filepath.Glob(filepath.Join(dir, "crds/*.*.*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	experimental, err := filepath.Glob(filepath.Join(dir, "gateway-api/experimental/*.*.*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, experimental...)
	served := map[[2]string][]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Metadata struct{ Name string }
			Spec     struct {
				Group, Scope string
				Names        struct{ Kind string }
				Versions     []struct {
					Name   string
					Served bool
				}
			}
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		if want := crd.Metadata.Name + ".yaml"; filepath.Base(f) != want {
			t.Errorf("%s is the definition %s", f, want)
		}
		key := [2]string{crd.Spec.Group, crd.Spec.Names.Kind}
		for _, v := range crd.Spec.Versions {
			if v.Served {
				served[key] = append(served[key], v.Name)
			}
		}
		if k := Find(key[0], key[1]); k != nil && k.ClusterScoped != (crd.Spec.Scope == "Cluster") {
			t.Errorf("%s: scope %s", f, crd.Spec.Scope)
		}
	}
	for _, k := range All() {
		if k.NewSpec == nil && k.Group != GroupFairlead && k.Group != GroupGatewayAPI {
			continue
		}
		versions := served[[2]string{k.Group, k.Name}]
		slices.Sort(versions)
		if want := slices.Sorted(slices.Values(k.Versions)); !slices.Equal(versions, want) {
			t.Errorf("%s %s: the definition serves %q, the table has %q", k.Group, k.Name, versions, want)
		}
	}
}
