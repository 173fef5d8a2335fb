// Package deploy renders deploy/kustomize as `kubectl apply -k` would and checks the result against Kubernetes' own
// types and against the binaries.
package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"fairlead.dev/proto/fairlead/contract"
)

const (
	base      = "../../deploy/kustomize/base"
	namespace = contract.SystemNamespace
)

// codec decodes strictly: an unknown or a repeated field is an error, as it is for an API server that validates fields.
var codec = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// render runs kustomize on a directory.
func render(dir string) ([]byte, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	return resources.AsYaml()
}

// decode splits YAML documents and decodes each into its type.
func decode(text []byte) ([]runtime.Object, error) {
	var objects []runtime.Object
	var errs []error
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, errors.Join(errs...)
		}
		if err != nil {
			return nil, err
		}
		object, kind, err := codec.Decode(document, nil, nil)
		if err != nil {
			errs = append(errs, fmt.Errorf("%v: %w\n%s", kind, err, firstLines(document)))
			continue
		}
		objects = append(objects, object)
	}
}

func firstLines(document []byte) string {
	lines := strings.SplitN(string(document), "\n", 8)
	return strings.Join(lines[:min(len(lines), 7)], "\n")
}

// mesh is everything that is rendered.
func mesh(t *testing.T) []runtime.Object {
	t.Helper()
	text, err := render(base)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// all are the rendered objects of one type.
func all[T runtime.Object](objects []runtime.Object) []T {
	var found []T
	for _, o := range objects {
		if typed, ok := o.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// named is the object of a type and a name, nil if there is none.
func named[T runtime.Object](objects []runtime.Object, name string) (T, bool) {
	for _, o := range all[T](objects) {
		if accessor, err := meta.Accessor(o); err == nil && accessor.GetName() == name {
			return o, true
		}
	}
	var none T
	return none, false
}

// service is one deployed service and its only container.
func service(t *testing.T, objects []runtime.Object, name string) (*appsv1.Deployment, corev1.Container) {
	t.Helper()
	d, ok := named[*appsv1.Deployment](objects, name)
	if !ok || len(d.Spec.Template.Spec.Containers) != 1 || len(d.Spec.Template.Spec.InitContainers) != 0 {
		t.Fatalf("no Deployment %s with one container", name)
	}
	return d, d.Spec.Template.Spec.Containers[0]
}

var services = []string{"ca", "config-watcher", "injector", "xds-server"}
