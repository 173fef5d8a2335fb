package kube

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

// TestKeysInASecret runs the ca's own test of its keys in a Secret, which nobody outside of the ca can call, with an
// API server.
func TestKeysInASecret(t *testing.T) {
	runWithServer(t, "fairlead.dev/services/ca/internal/signer/keys/secret")
}

// TestStateInASecret is TestKeysInASecret for the ca's record.
func TestStateInASecret(t *testing.T) {
	runWithServer(t, "fairlead.dev/services/ca/internal/record/secret")
}

// runWithServer runs the test TestRealAPIServer of a package with the kubeconfig of an API server.
func runWithServer(t *testing.T, pkg string) {
	t.Helper()
	server := kubeapi.Start(t, kubeapi.Options{})
	command := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-run", "^TestRealAPIServer$", pkg)
	command.Env = append(os.Environ(), "CA_TEST_KUBECONFIG="+server.Kubeconfig)
	out, err := command.CombinedOutput()
	if err != nil || strings.Contains(string(out), "--- SKIP") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestRestoredSecrets is TestKeysInASecret for `fairlead ca restore`.
func TestRestoredSecrets(t *testing.T) {
	runWithServer(t, "fairlead.dev/services/installer/internal/cli/ca")
}
