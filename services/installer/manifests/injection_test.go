package manifests_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/inject"
)

// injection is what the injector of an installation does.
func injection(t *testing.T, revision string, set ...string) *inject.Config {
	t.Helper()
	objects, err := decode(text(t, withoutCRDs(generate(t, open(t), "minimal", nil, append(set, "revision="+revision)...).Objects)))
	if err != nil {
		t.Fatal(err)
	}
	data := map[string]string{}
	for _, o := range objects {
		if c, ok := o.(*corev1.ConfigMap); ok {
			for k, v := range c.Data {
				data[k] = v
			}
		}
	}
	mesh, err := inject.ParseMesh([]byte(data["mesh"]))
	if err != nil {
		t.Fatal(err)
	}
	config, err := inject.ParseConfig([]byte(data["config"]), []byte(data["values"]), mesh, revision)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// TestTemplatesOfInjection holds what the templates make of Pods: testdata/injection/in has a Pod for each file, with
// the settings of the installation as its first line.
func TestTemplatesOfInjection(t *testing.T) {
	files, err := filepath.Glob("testdata/injection/in/*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d Pods, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var pod corev1.Pod
			if err := yaml.UnmarshalStrict(in, &pod); err != nil {
				t.Fatal(err)
			}
			var set []string
			classic, revision := false, ""
			first, _, _ := strings.Cut(string(in), "\n")
			for _, word := range strings.Fields(strings.TrimPrefix(first, "#")) {
				switch {
				case word == "classic":
					classic = true
				case strings.HasPrefix(word, "revision="):
					revision = strings.TrimPrefix(word, "revision=")
				default:
					set = append(set, word)
				}
			}
			result, err := injection(t, revision, set...).Inject(inject.Request{Pod: &pod, NativeSidecars: !classic})
			if err != nil {
				t.Fatal(err)
			}
			out, err := yaml.Marshal(result.Pod)
			if err != nil {
				t.Fatal(err)
			}
			head := ""
			if !result.Injected {
				head = fmt.Sprintf("# not injected: %s\n", result.Reason)
			}
			for _, w := range result.Warnings {
				head += "# " + w + "\n"
			}
			testkit.Golden(t, filepath.Join("testdata/injection/out", filepath.Base(file)), []byte(head+string(out)))
		})
	}
}
