package process

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Run starts a program that ends with the test. What it writes to files is kept where p says, else as long as the test
// runs; if the test fails, it logs the end of that.
func Run(t testing.TB, p Program) *Process {
	t.Helper()
	if p.Stderr == "" {
		p.Stderr = filepath.Join(t.TempDir(), p.Name+".log")
	}
	if p.Stdout == "" {
		p.Stdout = p.Stderr
	}
	process, err := Start(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Kill()
		if t.Failed() {
			t.Logf("the log of %s ends with\n%s", p.Name, end(process.Log(), 10_000))
		}
	})
	return process
}

// Answer is what a command has printed until it ended, and its exit code.
type Answer struct {
	Out, Said string
	Code      int
}

// Ask runs a command to its end. An exit code other than 0 is no error.
func Ask(cmd *exec.Cmd) (Answer, error) {
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if exited := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exited) {
		return Answer{}, fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err)
	}
	return Answer{Out: out.String(), Said: said.String(), Code: cmd.ProcessState.ExitCode()}, nil
}

// MustAsk is Ask for a test.
func MustAsk(t testing.TB, cmd *exec.Cmd) Answer {
	t.Helper()
	a, err := Ask(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// MustDo runs a command that must succeed, and returns what it prints to its standard output.
func MustDo(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	a := MustAsk(t, cmd)
	if a.Code != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", strings.Join(append([]string{filepath.Base(cmd.Path)}, cmd.Args[1:]...), " "), a.Code, a.Out, a.Said)
	}
	return a.Out
}
