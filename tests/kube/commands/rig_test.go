package commands

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/tests/internal/kubeapi"
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
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, a...) //nolint:gosec // the programs under test
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

func fairlead(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("BIN_DIR")
	if dir == "" {
		t.Fatal("BIN_DIR names no directory with fairlead: run `make test-kube`")
	}
	return filepath.Join(dir, "fairlead")
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
	bin := os.Getenv("ISTIO_BIN")
	if bin == "" {
		t.Skip("ISTIO_BIN names no directory with istioctl: run `make test-kube`")
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "istio.io/istio")
	cmd.Dir = filepath.Join("..", "..", "..", "tools", "istio")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the module cache has no Istio: run `make test-kube`: %v", err)
	}
	return filepath.Join(bin, "istioctl"), filepath.Join(strings.TrimSpace(string(out)), "manifests")
}

// tokenOf asks for a token of an audience.
func tokenOf(audience string) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
}
