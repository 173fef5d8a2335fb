package trustbundle

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// fixture is a Manager on a fake clock, with a file of extra roots.
type fixture struct {
	manager *Manager
	clock   *testkit.Clock
	file    string
	own     string
	out     []string
	outErr  error
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		clock: testkit.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
		file:  filepath.Join(t.TempDir(), "extra.pem"), own: string(testkit.PKI(t).RootPEM),
	}
	publisher := NewPublisher("cluster.local", counter())
	f.manager = NewManager(ManagerConfig{
		Own: func() (Own, <-chan struct{}, error) { return Own{Roots: []string{f.own}}, nil, nil }, ExtraFile: f.file, Publisher: publisher,
		Clock: f.clock, Log: testkit.Logger(t),
		Out: func(text []byte) error {
			if f.outErr == nil {
				f.out = append(f.out, string(text))
			}
			return f.outErr
		},
	})
	return f
}

func (f *fixture) generation() uint64 {
	bundle, _ := f.manager.cfg.Publisher.Current()
	return bundle.Generation
}

func TestRunFollowsTheExtraRootsFile(t *testing.T) {
	f := newFixture(t)
	one, two := testkit.PKI(t), testkit.PKI(t)
	testkit.WriteFile(t, f.file, one.RootPEM)
	if err := f.manager.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := testkit.Background(t, f.manager.Run)
	step := func(content []byte, generation uint64, problem string) {
		t.Helper()
		testkit.WriteFile(t, f.file, content)
		f.clock.WaitFor(t, 1)
		f.clock.Advance(period)
		f.clock.WaitFor(t, 1) // the file has been read
		if got := f.generation(); got != generation {
			t.Errorf("generation %d, want %d", got, generation)
		}
		if err := f.manager.Check(); (err == nil) != (problem == "") || (err != nil && !strings.Contains(err.Error(), problem)) {
			t.Errorf("problem %v, want %q", err, problem)
		}
	}
	both := append(append([]byte{}, one.RootPEM...), two.RootPEM...)
	step(one.RootPEM, 1, "")
	step(both, 2, "")
	step(append(both, one.RootPEM...), 2, "") // the same roots, one of them twice
	step([]byte("-----BEGIN"), 2, "no certificate in PEM")
	step(nil, 2, "no certificate in PEM")
	step([]byte(strings.Repeat("x", maxFileBytes+1)), 2, "too large")
	leaf, err := one.NewSVID("default", "reviews").Current()
	if err != nil {
		t.Fatal(err)
	}
	step(leaf.CertPEM, 2, "not a certificate authority's")
	step(leaf.KeyPEM, 2, `"PRIVATE KEY"`)
	step([]byte(f.own), 3, "")
	stop()
	if len(f.out) != 3 || f.out[2] != f.own || !strings.Contains(f.out[1], string(two.RootPEM)) {
		t.Errorf("written %d times: %q", len(f.out), f.out)
	}
}

// The Manager writes again what it could not write, although the bundle has not changed since.
func TestManagerWritesAgainAfterAFailure(t *testing.T) {
	f := newFixture(t)
	f.manager.cfg.ExtraFile = ""
	f.outErr = errors.New("disk full")
	if err := f.manager.Publish(t.Context()); !errors.Is(err, f.outErr) {
		t.Fatalf("got %v", err)
	}
	f.outErr = nil
	if err := f.manager.Publish(t.Context()); err != nil || len(f.out) != 1 {
		t.Errorf("got %v, written %d times", err, len(f.out))
	}
	if f.generation() != 1 {
		t.Errorf("generation %d, want 1", f.generation())
	}
}

func TestBundleWithoutAGenerationIsNotPublished(t *testing.T) {
	f := newFixture(t)
	f.manager.cfg.ExtraFile = ""
	f.manager.cfg.Publisher = NewPublisher("cluster.local",
		func(context.Context, []string, []string) (Numbered, error) { return Numbered{}, fmt.Errorf("no disk") })
	if err := f.manager.Publish(t.Context()); err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("got %v", err)
	}
	if bundle, _ := f.manager.cfg.Publisher.Current(); bundle != nil {
		t.Error("published a bundle without a number")
	}
}
