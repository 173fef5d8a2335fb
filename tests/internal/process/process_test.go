package process_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/process"
)

// shell starts a script that has written "up" to its log.
func shell(t *testing.T, script string) *process.Process {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	p, err := process.Start(process.Program{Name: "shell", Path: "/bin/sh", Args: []string{"-c", script}, Stdout: log, Stderr: log,
		Env: []string{"WORD=up"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.KillGroup)
	testkit.Eventually(t, testkit.Patience, func() error {
		if !strings.Contains(p.LogTail(), "up") {
			return errors.New("the script has written nothing")
		}
		return nil
	})
	return p
}

func TestAProcessEndsAsItIsAsked(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		end    func(*process.Process) error
		// wrong is in the error of end, empty for none.
		wrong string
	}{
		"on SIGTERM": {`trap 'exit 0' TERM; echo $WORD; while :; do sleep 0.01; done`,
			func(p *process.Process) error { return p.Stop(testkit.Patience) }, ""},
		"on another signal": {`trap 'exit 0' INT; echo $WORD; while :; do sleep 0.01; done`,
			func(p *process.Process) error { return p.StopBy(syscall.SIGINT, testkit.Patience) }, ""},
		"with another status": {`trap 'exit 3' TERM; echo $WORD; while :; do sleep 0.01; done`,
			func(p *process.Process) error { return p.Stop(testkit.Patience) }, "exit status 3"},
		"by force": {`trap '' TERM; echo $WORD; while :; do sleep 0.01; done`,
			func(p *process.Process) error { return p.Stop(10 * time.Millisecond) }, "did not end within 10ms of SIGTERM"},
		"when killed": {`echo $WORD; exec sleep 60`, func(p *process.Process) error { p.Kill(); return nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := shell(t, tc.script)
			err := tc.end(p)
			if got := err != nil; got != (tc.wrong != "") || got && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("got %v, want %q", err, tc.wrong)
			}
			if p.Running() || p.Died() != nil {
				t.Errorf("running %v, died %v: want an end that was wanted", p.Running(), p.Died())
			}
		})
	}
}

func TestUntilGivesUpWhenTheProcessHasEnded(t *testing.T) {
	p := shell(t, `echo $WORD and away; exit 4`)
	err := p.Until(t.Context(), testkit.Patience, func() error { return errors.New("not yet") })
	if err == nil || !strings.Contains(err.Error(), "exit status 4") || !strings.Contains(err.Error(), "up and away") {
		t.Errorf("got %v, want the status and the log", err)
	}
}

func TestUntilEndsInTime(t *testing.T) {
	p := shell(t, `echo $WORD; exec sleep 60`)
	err := p.Until(t.Context(), 30*time.Millisecond, func() error { return errors.New("the reason") })
	if err == nil || !strings.Contains(err.Error(), "not ready within 30ms: the reason") {
		t.Errorf("got %v", err)
	}
	tries := 0
	if err := p.Until(t.Context(), testkit.Patience, func() error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	}); err != nil || tries != 3 {
		t.Errorf("%v after %d tries", err, tries)
	}
}

func TestStartThatFailsNamesTheProgram(t *testing.T) {
	boom := errors.New("boom")
	for name, start := range map[string]func() (*process.Process, error){
		"no such program": func() (*process.Process, error) {
			return process.Start(process.Program{Name: "nothing", Path: "/no/such"}, nil)
		},
		"enter fails": func() (*process.Process, error) {
			return process.Start(process.Program{Name: "nothing", Path: "/bin/true"}, func() error { return boom })
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := start(); err == nil || !strings.Contains(err.Error(), "start nothing") || !errors.Is(err, boom) &&
				!errors.Is(err, os.ErrNotExist) {
				t.Errorf("got %v", err)
			}
		})
	}
}
