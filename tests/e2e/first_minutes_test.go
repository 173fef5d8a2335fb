package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// TestInterruptedDemoFails interrupts the demonstration at its first line. It ends everything and exits with 1: a
// script that runs it must not take it for shown.
func TestInterruptedDemoFails(t *testing.T) {
	name := filepath.Join(t.TempDir(), "output")
	out, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	output := func() string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	cmd := exec.Command(binaries.Path("fairlead"), "demo", "--envoy", binaries.Envoy, "--mesh", "../../samples/bookinfo/mesh.yaml")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if !strings.Contains(output(), "== Bring the mesh up") {
			return fmt.Errorf("output:\n%s", output())
		}
		return nil
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the demonstration ended with %v", err)
	}
	if !strings.Contains(output(), "interrupted") {
		t.Errorf("output:\n%s", output())
	}
}

// TestTakenRangeNamesItsMesh starts a second mesh on the addresses of a first one.
func TestTakenRangeNamesItsMesh(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml"}})
	m.WaitReady(t)
	state := m.State(t)
	taken, err := netip.MustParseAddr(state.Pods[0].IP).Prefix(16)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binaries.Path("fairlead"), "up", "-f", "testdata/echo.yaml", "--envoy", binaries.Envoy,
		"--run-dir", t.TempDir(), "--loopback-range", taken.String())
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("the second mesh ended with %v:\n%s", err, out)
	}
	if text := strings.TrimSpace(string(out)); strings.Contains(text, "\n") || !strings.Contains(text, m.RunDir()) ||
		!strings.Contains(text, fmt.Sprintf("pid %d", state.PID)) || !strings.Contains(text, "--loopback-range auto") {
		t.Errorf("it does not name the mesh in %s with pid %d in one line:\n%s", m.RunDir(), state.PID, text)
	}
}
