package install_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

func TestManifestDiff(t *testing.T) {
	config := strings.Replace(configMap, "%", "a", 1)
	a, b := clitest.File(t, config), clitest.File(t, strings.Replace(configMap, "%", "b", 1))
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, filepath.Join(dir, "sub", "c.yml"), []byte(config))
	testkit.WriteFile(t, filepath.Join(dir, "notes.txt"), []byte("no object"))
	const changed = "ConfigMap mesh/c\n-    data.hub: a\n+    data.hub: b\n"
	for _, tc := range []struct {
		name, stdin, args, out, says string
		code                         int
	}{
		{"nothing is printed if nothing differs", "", a + " " + a, "", "", process.ExitOK},
		{"a directory is read with those below it", "", a + " " + dir, "", "", process.ExitOK},
		{"a field that differs", "", a + " " + b, changed, "1 of the objects differ", process.ExitFailure},
		{"standard input", config, "- " + b, changed, "1 of the objects differ", process.ExitFailure},
		{"an object of the first alone", "", a + " " + t.TempDir(), "- ConfigMap mesh/c\n", "differ", process.ExitFailure},
		{"an object of the second alone", "", t.TempDir() + " " + b, "+ ConfigMap mesh/c\n", "differ", process.ExitFailure},
		{"what is ignored does not differ", "", a + " " + b + " --ignore ConfigMap:mesh:*", "", "", process.ExitOK},
		{"what is not selected does not differ", "", a + " " + b + " --select Service", "", "", process.ExitOK},
		{"an object that is renamed", "", a + " " + b + " --rename ConfigMap:*:c->::d", "+ ConfigMap mesh/c\n- ConfigMap mesh/d\n", "2 of",
			process.ExitFailure},
		{"nothing as JSON is an empty list", "", a + " " + a + " -o json", "[]\n", "", process.ExitOK},
		{"no such file", "", a + " /none", "", "/none: no such file", process.ExitUsage},
		{"a file without objects", "kind: X\n", "- " + b, "", "document 1 has no kind", process.ExitRefused},
		{"one argument", "", a, "", "accepts 2 arg", process.ExitUsage},
		{"a bad selection", "", a + " " + b + " --select a:b:c:d", "", "--select: ", process.ExitUsage},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, code, err := clitest.Run(tc.stdin, append([]string{"manifest", "diff"}, strings.Fields(tc.args)...)...)
			if code != tc.code || out != tc.out || tc.says != "" && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("exit code %d, output %q, error %v", code, out, err)
			}
		})
	}
	out, _, _ := clitest.Run("", "manifest", "diff", a, b, "-o", "json")
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 || list[0]["object"] != "ConfigMap mesh/c" {
		t.Errorf("JSON %s, %v", out, err)
	}
}
