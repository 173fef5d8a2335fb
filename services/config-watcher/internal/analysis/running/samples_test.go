package running

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// pods are the Pods that `fairlead up` makes from the Deployments of a file.
func pods(t *testing.T, text string) []normalise.Change {
	t.Helper()
	docs, problems := manifest.Parse("mesh.yaml", []byte(text))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var out []normalise.Change
	for _, doc := range docs {
		var d struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
			Spec     struct {
				Template struct {
					Metadata struct{ Labels map[string]string }
				}
			}
		}
		js, err := yaml.Marshal(doc.Tree)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(js, &d); err != nil || d.Kind != "Deployment" {
			continue
		}
		if d.Metadata.Namespace == "" {
			d.Metadata.Namespace = "default"
		}
		k := object.Key{Kind: "Pod", Namespace: d.Metadata.Namespace, Name: d.Metadata.Name}
		out = append(out, normalise.Change{Key: k, Object: &object.Object{Key: k, Labels: d.Spec.Template.Metadata.Labels, Body: &object.Pod{}}})
	}
	return out
}

// TestSamples: the sample mesh, and the objects that the guide applies to it, have no findings.
func TestSamples(t *testing.T) {
	dir := "../../../../../samples/bookinfo"
	f := newFixture(t)
	for _, name := range []string{"mesh.yaml", "reviews-v3.yaml"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		f.take(pods(t, string(text))...)
		f.apply(string(text))
		f.want()
	}
	if len(f.workloads) == 0 || len(f.analyzed) == 0 {
		t.Errorf("%d workloads, %d objects", len(f.workloads), len(f.analyzed))
	}
}
