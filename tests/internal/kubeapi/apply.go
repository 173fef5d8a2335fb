package kubeapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"fairlead.dev/pkg/testkit"
)

// crds is the resource of CustomResourceDefinitions.
var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Decode returns the objects of YAML documents, or of JSON.
func Decode(content []byte) ([]*unstructured.Unstructured, error) {
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	var objects []*unstructured.Unstructured
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(u.Object) > 0 {
			objects = append(objects, u)
		}
	}
}

// Apply applies objects on the server's side, in their order. The namespace of an object that names none is default.
func Apply(ctx context.Context, config *rest.Config, objects ...*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	for _, u := range objects {
		kind := u.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return err
		}
		var target dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			namespace := u.GetNamespace()
			if namespace == "" {
				namespace = metav1.NamespaceDefault
			}
			target = client.Resource(mapping.Resource).Namespace(namespace)
		}
		if _, err := target.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "test", Force: true}); err != nil {
			return fmt.Errorf("apply %s %s/%s: %w", kind.Kind, u.GetNamespace(), u.GetName(), err)
		}
	}
	return nil
}

// Apply applies YAML documents as the administrator.
func (s *Server) Apply(t testing.TB, documents string) {
	t.Helper()
	objects, err := Decode([]byte(documents))
	if err == nil {
		err = Apply(t.Context(), s.Config, objects...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ApplyCRDs applies the CustomResourceDefinitions of files, MeshCRDs if none is given, returns when the API server
// serves them, and returns their names.
func (s *Server) ApplyCRDs(t testing.TB, files ...string) []string {
	t.Helper()
	if len(files) == 0 {
		files = []string{MeshCRDs(t)}
	}
	names, err := ApplyCRDs(t.Context(), s.Config, files...)
	if err != nil {
		t.Fatal(err)
	}
	s.Established(t, names...)
	return names
}

// ApplyCRDs applies the CustomResourceDefinitions of files, or of directories as MeshCRDs has them, all at once, and
// returns their names.
func ApplyCRDs(ctx context.Context, config *rest.Config, files ...string) ([]string, error) {
	var objects []*unstructured.Unstructured
	var all []string
	for _, path := range files {
		found, err := definitions(path)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	for _, file := range all {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found, err := Decode(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, found...)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(objects))
	failed := make([]error, len(objects))
	var running sync.WaitGroup
	for i, u := range objects {
		names[i] = u.GetName()
		if u.GetKind() != "CustomResourceDefinition" {
			return nil, fmt.Errorf("%s %s is no CustomResourceDefinition", u.GetKind(), u.GetName())
		}
		running.Go(func() {
			_, failed[i] = client.Resource(crds).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "test", Force: true})
		})
	}
	running.Wait()
	return names, errors.Join(failed...)
}

// Established waits until the API server serves CustomResourceDefinitions.
func (s *Server) Established(t testing.TB, names ...string) {
	t.Helper()
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		list, err := client.Resource(crds).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		served, found := map[string]bool{}, map[string][]metav1.APIResource{}
		for i := range list.Items {
			served[list.Items[i].GetName()] = established(&list.Items[i]) && s.discovered(t, &list.Items[i], found)
		}
		for _, name := range names {
			if !served[name] {
				return fmt.Errorf("the API server does not serve %s", name)
			}
		}
		return nil
	})
}

func established(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, ok := c.(map[string]any)
		return ok && condition["type"] == "Established" && condition["status"] == "True"
	})
}

// discovered reports whether clients find every served version of a definition, which they do a moment after it is
// established. found keeps what the API server has listed of each version of a group.
func (s *Server) discovered(t testing.TB, definition *unstructured.Unstructured, found map[string][]metav1.APIResource) bool {
	t.Helper()
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, v := range versions {
		version, ok := v.(map[string]any)
		if !ok || version["served"] != true {
			continue
		}
		of := fmt.Sprintf("%s/%v", group, version["name"])
		if _, asked := found[of]; !asked {
			list, err := s.Client(t).Discovery().ServerResourcesForGroupVersion(of)
			if err != nil {
				return false
			}
			found[of] = list.APIResources
		}
		if !slices.ContainsFunc(found[of], func(r metav1.APIResource) bool { return r.Name == plural }) {
			return false
		}
	}
	return true
}

// MeshCRDs returns the directory of this repository's CustomResourceDefinitions, for ApplyCRDs: that of
// the chart base.
func MeshCRDs(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for up := dir; ; up = filepath.Dir(up) {
		if _, err := os.Stat(filepath.Join(up, "go.work")); err == nil {
			return filepath.Join(up, "services", "installer", "manifests", "charts", "base", "files", "crds")
		}
		if up == filepath.Dir(up) {
			t.Fatalf("no go.work in %s or above", dir)
		}
	}
}

// GatewayAPICRDs returns the directory of the CustomResourceDefinitions of the Gateway API, of a channel: "standard" or
// "experimental".
func GatewayAPICRDs(t testing.TB, channel string) string {
	t.Helper()
	return filepath.Join(filepath.Dir(MeshCRDs(t)), "gateway-api", channel)
}

// definitions lists the files of a path: those of definitions in a directory, and a file itself.
func definitions(path string) ([]string, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return []string{path}, err
	}
	all, err := filepath.Glob(filepath.Join(path, "*.*.*.yaml"))
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no definitions in %s", path)
	}
	return all, err
}
