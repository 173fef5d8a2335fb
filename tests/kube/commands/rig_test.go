package commands

import (
	"os/exec"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// start starts an API server that asks no webhooks: nothing serves them here.
func start(t *testing.T) *kubeapi.Server {
	t.Helper()
	s := kubeapi.Start(t, kubeapi.Options{
		Args: []string{"--disable-admission-plugins=ServiceAccount,MutatingAdmissionWebhook,ValidatingAdmissionWebhook"}})
	s.Apply(t, namespaces)
	return s
}

// run runs a program with a kubeconfig and returns what it printed and its exit code.
func run(t *testing.T, path, kubeconfig, stdin string, a ...string) (out, said string, code int) {
	t.Helper()
	return program(t, path, stdin, append(a, "--kubeconfig", kubeconfig)...)
}

func program(t *testing.T, path, stdin string, a ...string) (out, said string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, a...) //nolint:gosec // the programs under test
	cmd.Stdin = strings.NewReader(stdin)
	answer := process.MustAsk(t, cmd)
	return answer.Out, answer.Said, answer.Code
}

func fairlead(t *testing.T) string {
	t.Helper()
	return binaries.Built(t, "fairlead")
}

// does runs fairlead as the administrator; the exit code must be the expected one.
func does(t *testing.T, s *kubeapi.Server, code int, a ...string) (out, said string) {
	t.Helper()
	out, said, got := run(t, fairlead(t), s.Kubeconfig, "", a...)
	if got != code {
		t.Fatalf("fairlead %v: exit code %d, expected %d\n%s%s", a, got, code, out, said)
	}
	return out, said
}

func decode(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := kubeapi.Decode([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return objects
}

// istio returns istioctl of ISTIO_BIN, and Istio's own install package in the module cache.
func istio(t *testing.T) (istioctl, manifests string) {
	t.Helper()
	return binaries.Istioctl(t), binaries.IstioManifests(t)
}

// tokenOf asks for a token of an audience.
func tokenOf(audience string) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
}
