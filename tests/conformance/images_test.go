package conformance

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestEveryImageOfTheSuiteIsBuilt(t *testing.T) {
	images, err := Images(&conformance.Manifests)
	if err != nil || len(images) == 0 {
		t.Fatal(images, err)
	}
	for _, image := range images {
		if _, err := (Sources{}).Arguments(image); err != nil {
			t.Error(err)
		}
	}
}

func TestImagesAreFoundWhereverTheyAreNamed(t *testing.T) {
	manifests := fstest.MapFS{
		"base/a.yaml":   {Data: []byte("kind: Pod\nspec: {containers: [{image: b/x:1}], initContainers: [{image: a/y:2}]}\n---\n{}\n")},
		"tests/b.yaml":  {Data: []byte("kind: Deployment\nspec: {template: {spec: {containers: [{image: b/x:1}]}}}\n")},
		"tests/data.go": {Data: []byte("image: c/z:3\n")},
	}
	images, err := Images(manifests)
	if want := []string{"a/y:2", "b/x:1"}; err != nil || !slices.Equal(images, want) {
		t.Errorf("images are %v, %v; want %v", images, err, want)
	}
	manifests["tests/c.yaml"] = &fstest.MapFile{Data: []byte("image: [\n")}
	if _, err := Images(manifests); err == nil || !strings.Contains(err.Error(), "tests/c.yaml") {
		t.Errorf("a manifest that is no YAML is %v; want an error that names it", err)
	}
	if _, err := (Sources{}).Arguments("registry.example/other:1"); err == nil {
		t.Error("an image that nothing builds is accepted")
	}
}
