package local

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/supervise"
)

// neverReady runs a mesh whose application is the named program, without a readiness probe, until enough returns nil.
// The application must never be ready.
func neverReady(t *testing.T, name string, enough func(e processStatus, unready string) error) {
	t.Helper()
	w := newFixture(t, "")
	c := &w.cfg.Plan.Pods[0].Containers[0]
	c.Path, c.Probe, c.Listens = program(t, t.TempDir(), name), nil, []netip.AddrPort{c.Ports[0].Listen}
	n, _ := w.start(t)
	testkit.Eventually(t, within, func() error {
		e := n.statuses.get(c.Name)
		if e.Ready {
			t.Fatal("it is ready")
		}
		return enough(e, strings.Join(n.unready(), "\n"))
	})
	if _, err := os.Stat(w.cfg.ReadyFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mesh is said to be ready: %v", err)
	}
}

func contains(text string, want ...string) error {
	for _, w := range want {
		if !strings.Contains(text, w) {
			return fmt.Errorf("%q lacks %q", text, w)
		}
	}
	return nil
}

func TestApplicationThatIgnoresItsPortIsNotReady(t *testing.T) {
	neverReady(t, "deaf", func(e processStatus, unready string) error {
		return contains(unready, "does not listen on 127.", "; it listens on 127.0.0.1:", "$HOST and $PORT")
	})
}

func TestApplicationThatKeepsEndingIsNotReady(t *testing.T) {
	neverReady(t, "flap", func(e processStatus, unready string) error {
		if e.Restarts < 3 || e.PID != 0 {
			return fmt.Errorf("%d restarts, pid %d", e.Restarts, e.PID)
		}
		return contains(unready, "exit status 7", ".log")
	})
}

func TestRequiredUptime(t *testing.T) {
	bare := plan.Container{}
	listens := plan.Container{Listens: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}}
	probed := plan.Container{Listens: listens.Listens, Probe: &plan.Probe{}}
	for _, tc := range []struct {
		name     string
		c        plan.Container
		restarts int
		lived    time.Duration
		want     time.Duration
	}{
		{"first start, listens", listens, 0, 0, 0},
		{"first start, nobody can ask", bare, 0, 0, minUptime},
		{"ended at once", listens, 1, time.Millisecond, minUptimeAfterExit},
		{"ran for long", listens, 7, time.Minute, 0},
		{"its probe tells, once", probed, 1, time.Millisecond, 0},
		{"ended twice", probed, 2, time.Millisecond, minUptimeAfterExit},
	} {
		e := processStatus{Status: supervise.Status{Restarts: tc.restarts, Lived: tc.lived, Exit: "exit status 7"}}
		got, why := requiredUptime(e, tc.c)
		if got != tc.want || (got == minUptimeAfterExit) != strings.Contains(why, "exit status 7") {
			t.Errorf("%s: %s, %q", tc.name, got, why)
		}
	}
}
