package oracle

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"fairlead.dev/tests/internal/binaries"
)

// TestSARIFIsValid checks the output for all hand-written meshes, and for none, against the schema of SARIF 2.1.0.
func TestSARIFIsValid(t *testing.T) {
	watcher := filepath.Join(os.Getenv("BIN_DIR"), "config-watcher")
	if os.Getenv("BIN_DIR") == "" {
		watcher = filepath.Join(t.TempDir(), "config-watcher")
		if err := binaries.Build(t.Context(), watcher, "fairlead.dev/services/config-watcher/cmd/config-watcher"); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := jsonschema.NewCompiler().Compile("testdata/sarif-schema-2.1.0.json")
	if err != nil {
		t.Fatal(err)
	}
	cases, err := Cases(root)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for i, c := range cases {
		all.WriteString("---\n" + c.In(i).YAML)
	}
	for name, tc := range map[string]struct {
		text    string
		results bool
	}{
		"all meshes": {all.String(), true},
		"no message": {"{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {istio-injection: enabled}}}", false},
		"broken":     {"a: [", true},
	} {
		file := filepath.Join(t.TempDir(), "a mesh: 100 %.yaml")
		if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, _ := exec.CommandContext(t.Context(), watcher, "analyze", "-o", "sarif", file).Output() // its exit code says what it found
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(out))
		if err != nil {
			t.Fatalf("%s: %v in %.200q", name, err, out)
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if has := bytes.Contains(out, []byte(`"ruleId"`)); has != tc.results {
			t.Errorf("%s: has results: %v", name, has)
		}
		if tc.results && !bytes.Contains(out, []byte("a%20mesh:%20100%20%25.yaml")) {
			t.Errorf("%s: the file's name is no URI reference: %.300s", name, out)
		}
	}
}
