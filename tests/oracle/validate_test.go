package oracle

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/tests/internal/binaries"
)

// TestFairleadValidate runs `fairlead validate` with the real config-watcher beside it, as docs/guide/errors.md shows
// it.
func TestFairleadValidate(t *testing.T) {
	bin := os.Getenv("BIN_DIR")
	if bin == "" {
		bin = t.TempDir()
		err := binaries.Build(t.Context(), bin+"/", "fairlead.dev/services/installer/cmd/fairlead",
			"fairlead.dev/services/config-watcher/cmd/config-watcher")
		if err != nil {
			t.Fatal(err)
		}
	}
	fairlead, err := filepath.Abs(filepath.Join(bin, "fairlead"))
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile(filepath.Join(root, "docs", "guide", "errors.md"))
	if err != nil {
		t.Fatal(err)
	}
	mesh, err := os.ReadFile(filepath.Join(root, "samples", "bookinfo", "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		code int
		out  string
	}{
		"a good file":    {[]string{"samples/bookinfo/mesh.yaml"}, process.ExitOK, " accepted, 0 refused, 0 with warnings"},
		"standard input": {[]string{"-f", "-"}, process.ExitOK, " accepted, 0 refused, 0 with warnings"},
		"a bad file": {[]string{"--filename", "samples/bookinfo/broken.yaml"}, process.ExitRefused,
			"samples/bookinfo/broken.yaml:16: VirtualService default/reviews: spec.http[0].route[0].weight: -10: "},
		"a directory":     {[]string{"-f", "samples", "-o", "yaml"}, process.ExitRefused, "same object as at samples/bookinfo/mesh.yaml:"},
		"nothing there":   {[]string{"-f", "samples/none.yaml"}, process.ExitUsage, "samples/none.yaml: no such file or directory"},
		"nothing is said": {nil, process.ExitUsage, "name a file or a directory with -f"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := exec.CommandContext(t.Context(), fairlead, append([]string{"validate"}, tc.args...)...)
			cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = root, bytes.NewReader(mesh), &out, &out
			err := cmd.Run()
			var exited *exec.ExitError
			if err != nil && !errors.As(err, &exited) {
				t.Fatal(err)
			}
			if cmd.ProcessState.ExitCode() != tc.code || !strings.Contains(out.String(), tc.out) {
				t.Errorf("exit code %d, output\n%s", cmd.ProcessState.ExitCode(), out.String())
			}
			if name == "a bad file" && !strings.Contains(string(guide), out.String()) {
				t.Errorf("the guide does not show this output:\n%s", out.String())
			}
		})
	}
}
