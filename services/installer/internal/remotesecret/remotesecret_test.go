package remotesecret

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit"
)

// The account that is made is the one of the chart remote, field by field: who installs the chart later finds it.
func TestTheReaderIsTheOneOfTheChart(t *testing.T) {
	text, err := os.ReadFile("../../manifests/testdata/remote/default.yaml")
	testkit.NoError(t, err)
	chart := map[string]string{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
		}
		testkit.NoError(t, yaml.Unmarshal([]byte(document), &o))
		if o.Metadata.Name == Account {
			chart[o.Kind] = string(testkit.Must(yaml.YAMLToJSON([]byte(document)))(t))
		}
	}
	made := Reader("istio-system", Account)
	if len(chart) != 3 || len(made) != 3 {
		t.Fatalf("%d objects of the chart, %d are made", len(chart), len(made))
	}
	for _, o := range made {
		kind := o.GetObjectKind().GroupVersionKind().Kind
		ours, theirs := map[string]any{}, map[string]any{}
		testkit.NoError(t, json.Unmarshal(testkit.Must(json.Marshal(o))(t), &ours))
		testkit.NoError(t, json.Unmarshal([]byte(chart[kind]), &theirs))
		a, b := testkit.Must(json.Marshal(ours))(t), testkit.Must(json.Marshal(theirs))(t)
		if string(a) != string(b) {
			t.Errorf("%s:\nmade  %s\nchart %s", kind, a, b)
		}
	}
}
