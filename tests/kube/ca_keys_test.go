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
	server := kubeapi.Start(t, kubeapi.Options{})
	command := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-run", "^TestRealAPIServer$",
		"fairlead.dev/services/ca/internal/signer/keys/secret")
	command.Env = append(os.Environ(), "CA_TEST_KUBECONFIG="+server.Kubeconfig)
	out, err := command.CombinedOutput()
	if err != nil || strings.Contains(string(out), "--- SKIP") {
		t.Errorf("%v\n%s", err, out)
	}
}
