package fleet

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/tests/internal/binaries"
)

// TestGates checks the tests' own instrument: a program behind a closed gate is not run until the gate opens, and one
// Pod's gate holds up no other Pod.
func TestGates(t *testing.T) {
	dir := t.TempDir()
	programs := filepath.Join(dir, "programs")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca", "node-agent"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\necho \"$0 $1\" > \"$2\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g, err := newGates(filepath.Join(dir, "bin"), filepath.Join(dir, "gates"), Binaries{Set: binaries.Set{Dir: programs}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	start := func(program, pod string) (out string) {
		out = filepath.Join(dir, program+pod+".out")
		cmd := exec.Command(filepath.Join(dir, "bin", program), "argument", out)
		cmd.Env = append(os.Environ(), "POD_NAME="+pod)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return out
	}
	ran := func(out string) func() error { return func() error { _, err := os.Stat(out); return err } }

	for _, gate := range []string{"ca", "node-agent.late-0"} {
		if err := g.Close(gate); err != nil {
			t.Fatal(err)
		}
	}
	ca, late := start("ca", ""), start("node-agent", "late-0")
	testkit.Eventually(t, testkit.Patience, ran(start("node-agent", "early-0")))
	for _, out := range []string{ca, late} {
		if ran(out)() == nil {
			t.Errorf("%s was written behind a closed gate", out)
		}
	}
	for gate, out := range map[string]string{"ca": ca, "node-agent.late-0": late} {
		if err := g.Open(gate); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, testkit.Patience, ran(out))
	}
	// Closed again, it holds again; release lets everything through.
	if err := g.Close("ca"); err != nil {
		t.Fatal(err)
	}
	again := start("ca", "again")
	g.release()
	testkit.Eventually(t, testkit.Patience, ran(again))
}
