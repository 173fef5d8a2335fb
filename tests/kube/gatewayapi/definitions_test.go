// Package gatewayapi tests that config-watcher judges objects of the Gateway API without an API server as an API server
// does that has their definitions.
package gatewayapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
)

const group = "gateway.networking.k8s.io"

func TestMain(m *testing.M) { os.Exit(kubeapi.Main(m)) }

// entry is one object of the corpus.
type entry struct {
	Kind, Version, Want string
	Spec                map[string]any
}

// verdict is what config-watcher says of an object.
type verdict struct {
	Name   string
	Errors []struct{ Field, Message string }
	Spec   map[string]any
}

// text is all that it says.
func (v verdict) text() string {
	var out []string
	for _, e := range v.Errors {
		out = append(out, e.Field+": "+e.Message)
	}
	return strings.Join(out, "\n")
}

// TestDefinitionsHoldWithoutAnAPIServer: of the corpus and of random changes of it, config-watcher accepts what an API
// server accepts, refuses the same fields, and fills in the same defaults.
func TestDefinitionsHoldWithoutAnAPIServer(t *testing.T) {
	corpus := read(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	const mutants = 400
	entries := slices.Clone(corpus)
	good := slices.DeleteFunc(slices.Clone(corpus), func(e entry) bool { return e.Want != "" })
	for range mutants {
		of := good[random.IntN(len(good))]
		spec := clone(t, of.Spec)
		for range 1 + random.IntN(2) {
			mutate(random, spec)
		}
		entries = append(entries, entry{Kind: of.Kind, Version: of.Version, Spec: spec})
	}
	verdicts := judged(t, entries)
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "experimental"))
	config := rest.CopyConfig(s.Config)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	accepted, refused := 0, 0
	for i, e := range entries {
		got := verdicts[i]
		stored, err := create(t, client, e, i)
		spec, _ := json.Marshal(e.Spec)
		what := fmt.Sprintf("%s %s %s", e.Kind, e.Version, spec)
		switch {
		case (err == nil) != (len(got.Errors) == 0):
			t.Errorf("%s\nthe API server says %v\nconfig-watcher %s", what, err, got.text())
		case err == nil:
			accepted++
			if want := stored["spec"]; !same(t, got.Spec, want) {
				t.Errorf("%s\nis stored as   %v\nconfig-watcher %v", what, want, got.Spec)
			}
		default:
			refused++
			if want := fields(err); want != nil && !slices.Equal(got.fields(), want) {
				t.Errorf("%s\nthe API server refuses %v: %v\nconfig-watcher %v: %s", what, want, err, got.fields(), got.text())
			}
		}
		if want := e.Want; i < len(corpus) && ((want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) ||
			!strings.Contains(got.text(), want)) {
			t.Errorf("%s\nwant %q\nthe API server says %v\nconfig-watcher %s", what, want, err, got.text())
		}
	}
	t.Logf("%d objects of the corpus, %d changed ones: %d accepted, %d refused", len(corpus), mutants, accepted, refused)
	if accepted < len(entries)/10 || refused < len(entries)/10 {
		t.Error("the changes are too many or too few")
	}
}

func read(t *testing.T) []entry {
	t.Helper()
	text, err := os.ReadFile("testdata/corpus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out []entry
	if err := yaml.UnmarshalStrict(text, &out); err != nil {
		t.Fatal(err)
	}
	for i, e := range out {
		if out[i].Spec = clone(t, e.Spec); e.Version == "" {
			out[i].Version = "v1"
		}
	}
	return out
}

// clone copies a tree, and makes whole numbers of it.
func clone(t *testing.T, tree map[string]any) map[string]any {
	t.Helper()
	js, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := utiljson.Unmarshal(js, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	var left, right any
	if err := errors.Join(json.Unmarshal(x, &left), json.Unmarshal(y, &right)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(left, right)
}

func (e entry) object(i int) *unstructured.Unstructured {
	meta := map[string]any{"name": "o" + strconv.Itoa(i)}
	if e.Kind != "GatewayClass" {
		meta["namespace"] = metav1.NamespaceDefault
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/" + e.Version, "kind": e.Kind, "metadata": meta, "spec": e.Spec,
	}}
}

// judged are config-watcher's verdicts on objects, in their order.
func judged(t *testing.T, entries []entry) []verdict {
	t.Helper()
	var docs bytes.Buffer
	for i, e := range entries {
		js, err := json.Marshal(e.object(i).Object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&docs, "---\n%s\n", js)
	}
	cmd := exec.CommandContext(t.Context(), binaries.Built(t, "config-watcher"), "validate", "-o", "json", "--defaults", "-")
	cmd.Stdin = &docs
	var exit *exec.ExitError
	out, err := cmd.Output()
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var all struct{ Objects []verdict }
	if err := json.Unmarshal(out, &all); err != nil || len(all.Objects) != len(entries) {
		t.Fatalf("%d verdicts on %d objects, %v", len(all.Objects), len(entries), err)
	}
	for i, v := range all.Objects {
		if v.Name != "o"+strconv.Itoa(i) {
			t.Fatalf("verdict %d is on %s", i, v.Name)
		}
	}
	return all.Objects
}

// create has the API server judge an object, as kubectl asks for it, and returns what it would store.
func create(t *testing.T, client dynamic.Interface, e entry, i int) (map[string]any, error) {
	t.Helper()
	plural := strings.ToLower(e.Kind) + "s"
	if strings.HasSuffix(plural, "classs") {
		plural = strings.TrimSuffix(plural, "s") + "es"
	}
	plural = strings.Replace(plural, "policys", "policies", 1)
	resource := client.Resource(schema.GroupVersionResource{Group: group, Version: e.Version, Resource: plural})
	o := e.object(i)
	to := dynamic.ResourceInterface(resource)
	if o.GetNamespace() != "" {
		to = resource.Namespace(o.GetNamespace())
	}
	stored, err := to.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll},
		FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			t.Fatal(err)
		}
		return nil, err
	}
	return stored.Object, nil
}

// choice and format are messages of errors without a field.
var (
	choice = regexp.MustCompile(`"([^"]+)" must validate `)
	format = regexp.MustCompile(`Checked value must be .* in (\S+)$`)
)

// fields are those that the API server has refused by a definition; nil if it has refused the object for a field that
// it does not know.
func fields(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || !apierrors.IsInvalid(err) {
		return nil
	}
	out := map[string]bool{}
	for _, c := range status.Status().Details.Causes {
		for _, of := range []*regexp.Regexp{choice, format} {
			if m := of.FindStringSubmatch(c.Message); m != nil {
				c.Field = m[1]
			}
		}
		if c.Field != "<nil>" { // that rules were not checked
			out[c.Field] = true
		}
	}
	return slices.Sorted(maps.Keys(out))
}

func (v verdict) fields() []string {
	out := map[string]bool{}
	for _, e := range v.Errors {
		out[e.Field] = true
	}
	return slices.Sorted(maps.Keys(out))
}

// values are what a mutation writes.
var values = []any{nil, "", "a", "*", "a.example", "*.a.example", "/a", "/a/../b", "HTTP", "TCP", "HTTPS", "Exact", "Service", "URLRewrite",
	"RequestRedirect", "Terminate", "1s", "1h", int64(-1), int64(0), int64(1), int64(80), int64(70000), 1.5, true, []any{}, map[string]any{},
	strings.Repeat("a", 254), strings.Repeat("a.", 130)}

// mutate changes one place of a tree: a value, an item more or less, a name of a field.
func mutate(random *rand.Rand, tree map[string]any) {
	at := places(tree)
	at[random.IntN(len(at))](random)
}

// places are functions that change one place each.
func places(tree any) (out []func(*rand.Rand)) {
	switch t := tree.(type) {
	case map[string]any:
		out = append(out, func(r *rand.Rand) { t["unknown"] = values[r.IntN(len(values))] })
		for _, name := range slices.Sorted(maps.Keys(t)) {
			out = append(out, func(r *rand.Rand) { t[name] = values[r.IntN(len(values))] }, func(*rand.Rand) { delete(t, name) })
			if list, ok := t[name].([]any); ok && len(list) > 0 {
				out = append(out, func(r *rand.Rand) { t[name] = append(slices.Clone(list), list[r.IntN(len(list))]) },
					func(r *rand.Rand) { t[name] = slices.Repeat(list, 1+r.IntN(20)) })
			}
			out = append(out, places(t[name])...)
		}
	case []any:
		for i := range t {
			out = append(out, func(r *rand.Rand) { t[i] = values[r.IntN(len(values))] })
			out = append(out, places(t[i])...)
		}
	}
	return out
}
