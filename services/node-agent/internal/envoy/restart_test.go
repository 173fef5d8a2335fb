package envoy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
)

func TestRestartsAreBoundedWithinTheWindow(t *testing.T) {
	now := time.Unix(1e9, 0)
	var c crashes
	for i, want := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second} {
		pause, again := c.next(now, 3)
		if pause != want || !again {
			t.Errorf("crash %d: pause %s, again %v; want %s, true", i+1, pause, again, want)
		}
		now = now.Add(time.Minute)
	}
	if _, again := c.next(now, 3); again {
		t.Error("a fourth restart within the window")
	}
	now = now.Add(restartWindow)
	if pause, again := c.next(now, 3); pause != 2*minRestartPause || !again {
		t.Errorf("after the window: pause %s, again %v; want the crash of its edge to count, and no other", pause, again)
	}
	if _, again := new(crashes).next(now, 0); again {
		t.Error("restarted although 0 restarts are allowed")
	}
	many := crashes{}
	for range 100 {
		if pause, _ := many.next(now, 3); pause > maxRestartPause || pause <= 0 {
			t.Fatalf("pause %s", pause)
		}
	}
}

// What the Envoy before was told does not count: the one that runs has served since, and is drained.
func TestEnvoyThatIsStartedAgainIsDrained(t *testing.T) {
	dir := t.TempDir()
	binary, started := filepath.Join(dir, "envoy"), filepath.Join(dir, "started")
	testkit.WriteFile(t, binary, fmt.Appendf(nil, "#!/bin/sh\n[ -e %[1]s ] && exec sleep 600\n>%[1]s\nexit 1\n", started))
	if err := os.Chmod(binary, 0o700); err != nil {
		t.Fatal(err)
	}
	metrics := NewMetrics(prometheus.NewRegistry())
	admin, restarted := &fakeEnvoy{}, make(chan struct{}, 1)
	s := &Supervisor{
		Options: Options{Binary: binary, Dir: dir}, Admin: admin, MaxRestarts: 1, OOMKills: func() (uint64, bool) { return 0, true },
		Metrics: metrics, OnRestart: func() { restarted <- struct{}{} }, Clock: clock.Real(), Log: testkit.Logger(t),
	}
	if err := s.DrainNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopping, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context(), stopping) }()
	<-restarted
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := testutil.ToFloat64(metrics.restarts); n != 1 {
			return fmt.Errorf("%v restarts", n)
		}
		return nil
	})
	admin.set(0, errors.New("connection refused")) // so that Run ends it by a signal
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !slices.Contains(admin.posts, "/drain_listeners?graceful") {
		t.Errorf("it is told %v only", admin.posts)
	}
}

func TestReasonOf(t *testing.T) {
	end := func(script string) error { return exec.CommandContext(t.Context(), "sh", "-c", script).Run() }
	for _, tc := range []struct {
		name          string
		err           error
		before, after uint64
		want          Reason
	}{
		{"an error status", end("exit 1"), 0, 0, Exited},
		{"an error status while another process was killed", end("exit 1"), 0, 1, Exited},
		{"a crash", end("kill -SEGV $$"), 0, 0, Crashed},
		{"a crash while another process was killed", end("kill -ABRT $$"), 0, 1, Crashed},
		{"killed by hand", end("kill -KILL $$"), 3, 3, Killed},
		{"killed by the kernel", end("kill -KILL $$"), 3, 4, OutOfMemory},
		{"no process", errors.New("broken pipe"), 0, 1, Exited},
	} {
		if got := reasonOf(tc.err, tc.before, tc.after); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
		if reasonTexts[tc.want] == "" {
			t.Errorf("no text for %s", tc.want)
		}
	}
}
