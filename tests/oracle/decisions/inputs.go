package decisions

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/policygen"
)

// inputsNamespace is that of the objects in the inputs of Istio's tests, workloadLabels are its workload's.
const inputsNamespace = "foo"

func workloadLabels(namespace string) map[string]string {
	return map[string]string{"app": "httpbin", "version": "v1", "set": namespace}
}

// inputs reads the inputs of the tests of Istio's builder of filters, each as a set of its own.
func inputs(t *testing.T, dir string) []policygen.Set {
	t.Helper()
	files := testkit.Must(filepath.Glob(filepath.Join(dir, "*", "*-in.yaml")))(t)
	if len(files) == 0 {
		t.Fatalf("%s has no inputs */*-in.yaml", dir)
	}
	var sets []policygen.Set
	for i, file := range files {
		raw := testkit.Must(os.ReadFile(file))(t)
		name := fmt.Sprintf("input %s/%s", filepath.Base(filepath.Dir(file)), filepath.Base(file))
		objects, err := policygen.Parse(raw)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		sets = append(sets, setOf(name, fmt.Sprintf("i%d", i), i, inputsNamespace, objects))
	}
	return sets
}

// examples are the sets of the differences' examples.
func examples(t *testing.T) []policygen.Set {
	t.Helper()
	var sets []policygen.Set
	for i, d := range Differences {
		objects, err := policygen.Parse([]byte(d.Example.YAML))
		if err != nil {
			t.Fatalf("%s: %v", d.What, err)
		}
		sets = append(sets, setOf("the example of "+d.What, fmt.Sprintf("e%d", i), i, "own", objects))
	}
	return sets
}

// setOf places objects of a namespace in that of a set.
func setOf(name, namespace string, n int, from string, objects []policygen.Object) policygen.Set {
	s := policygen.Set{Name: name, Namespace: namespace, Labels: workloadLabels(namespace), Address: policygen.AddressOf(n)}
	for _, o := range objects {
		o.Namespace = strings.ReplaceAll(o.Namespace, from, namespace)
		s.Objects = append(s.Objects, o)
	}
	return s
}
