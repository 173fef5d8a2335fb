package kubeapi

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// Keeper starts fairlead-keeper of $BIN_DIR with the roots of a file, and ends it with the test.
func Keeper(t testing.TB, kubeconfig, roots string, args ...string) *exec.Cmd {
	t.Helper()
	dir := os.Getenv("BIN_DIR")
	if dir == "" {
		t.Fatal("BIN_DIR names no directory with fairlead-keeper: run `make test-kube`")
	}
	log := &testkit.Buffer{}
	cmd := exec.Command(filepath.Join(dir, "fairlead-keeper"),
		append([]string{"--kubeconfig", kubeconfig, "--root-cert-file", roots}, args...)...) //nolint:gosec // the program under test
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the keeper's log:\n%s", log.String())
		}
	})
	return cmd
}
