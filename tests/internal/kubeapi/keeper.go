package kubeapi

import (
	"os"
	"path/filepath"
	"testing"

	"fairlead.dev/tests/internal/process"
)

// Keeper starts fairlead-keeper of $BIN_DIR with the roots of a file, unless it is "", and ends it with the test.
func Keeper(t testing.TB, kubeconfig, roots string, args ...string) *process.Process {
	t.Helper()
	dir := os.Getenv("BIN_DIR")
	if dir == "" {
		t.Fatal("BIN_DIR names no directory with fairlead-keeper: run `make test-kube`")
	}
	if roots != "" {
		args = append(args, "--root-cert-file", roots)
	}
	return process.Run(t, process.Program{Name: "fairlead-keeper", Path: filepath.Join(dir, "fairlead-keeper"),
		Args: append([]string{"--kubeconfig", kubeconfig}, args...)})
}
