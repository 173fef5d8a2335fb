package binaries

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Built returns the path of a program of a directory that the make target of every suite sets.
func Built(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("BIN_DIR")
	if dir == "" {
		t.Fatalf("BIN_DIR names no directory with %s: run `make build` and set it to bin, or run the target of this suite", name)
	}
	return filepath.Join(dir, name)
}

// Istioctl returns the path of Istio's own istioctl. Without it the test is skipped.
func Istioctl(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("ISTIO_BIN")
	if dir == "" {
		t.Skip("ISTIO_BIN names no directory with istioctl: set it to what `tools/build-cached.sh istio` prints")
	}
	return filepath.Join(dir, "istioctl")
}

// IstioManifests is the directory of Istio's own install package, in the module cache.
func IstioManifests(t testing.TB) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "istio.io/istio")
	cmd.Dir = filepath.Join(filepath.Dir(Tools()), "tools", "istio")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		t.Fatalf("the module cache has no Istio: run `tools/build-cached.sh istio`: %v", err)
	}
	return filepath.Join(dir, "manifests")
}
