package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// TestAStateThatCannotBeWrittenLeavesTheMesh has something in the place of state.json that cannot be replaced, as a
// full disk cannot be written to, while an application is restarted.
func TestAStateThatCannotBeWrittenLeavesTheMesh(t *testing.T) {
	w := newFixture(t, "")
	n, stop := w.start(t)
	w.ready(t, "True")
	pid := func() int { return n.statuses.get(w.cfg.Plan.Pods[0].Containers[0].Name).PID }
	first, file := pid(), w.cfg.Layout.State()
	testkit.Eventually(t, within, func() error {
		return errors.Join(os.RemoveAll(file), os.MkdirAll(filepath.Join(file, "in the way"), 0o700))
	})
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, within, w.prints("the mesh goes on"))
	testkit.Eventually(t, within, func() error {
		if now := pid(); now == 0 || now == first {
			return fmt.Errorf("pid %d, was %d", now, first)
		}
		return nil
	})
	w.ready(t, "True")
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, within, w.prints("the state is written again"))
	if err := stop(); err != nil {
		t.Error(err)
	}
}
