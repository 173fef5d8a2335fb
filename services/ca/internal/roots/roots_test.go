package roots

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/trust"
)

// bench is a keeper on a fake clock, with a file of extra roots.
type bench struct {
	keeper *Keeper
	clock  *testkit.Clock
	file   string
	own    string
	out    []string
	outErr error
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{
		clock: testkit.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
		file:  filepath.Join(t.TempDir(), "extra.pem"), own: string(testkit.PKI(t).RootPEM),
	}
	generation := uint64(0)
	publisher := trust.NewPublisher("cluster.local", func(context.Context, []string) (uint64, error) { generation++; return generation, nil })
	b.keeper = New(Config{
		Own: b.own, ExtraFile: b.file, Publisher: publisher, Clock: b.clock, Log: testkit.Logger(t),
		Out: func(text []byte) error {
			if b.outErr == nil {
				b.out = append(b.out, string(text))
			}
			return b.outErr
		},
	})
	return b
}

func (b *bench) generation() uint64 {
	bundle, _ := b.keeper.cfg.Publisher.Current()
	return bundle.Generation
}

func TestRunFollowsTheFile(t *testing.T) {
	b := newBench(t)
	one, two := testkit.PKI(t), testkit.PKI(t)
	testkit.WriteFile(t, b.file, one.RootPEM)
	if err := b.keeper.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.keeper.Run(ctx) }()
	step := func(content []byte, generation uint64, trouble string) {
		t.Helper()
		testkit.WriteFile(t, b.file, content)
		b.clock.WaitFor(t, 1)
		b.clock.Advance(period)
		b.clock.WaitFor(t, 1) // the file has been read
		if got := b.generation(); got != generation {
			t.Errorf("generation %d, want %d", got, generation)
		}
		if err := b.keeper.Check(); (err == nil) != (trouble == "") || (err != nil && !strings.Contains(err.Error(), trouble)) {
			t.Errorf("trouble %v, want %q", err, trouble)
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
	step([]byte(b.own), 3, "")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(b.out) != 3 || b.out[2] != b.own || !strings.Contains(b.out[1], string(two.RootPEM)) {
		t.Errorf("written %d times: %q", len(b.out), b.out)
	}
}

// What could not be written is written at the next look, though the bundle has not changed since.
func TestWritingIsTriedAgain(t *testing.T) {
	b := newBench(t)
	b.keeper.cfg.ExtraFile = ""
	b.outErr = errors.New("disk full")
	if err := b.keeper.Publish(t.Context()); !errors.Is(err, b.outErr) {
		t.Fatalf("got %v", err)
	}
	b.outErr = nil
	if err := b.keeper.Publish(t.Context()); err != nil || len(b.out) != 1 {
		t.Errorf("got %v, written %d times", err, len(b.out))
	}
	if b.generation() != 1 {
		t.Errorf("generation %d, want 1", b.generation())
	}
}

func TestNumberingFails(t *testing.T) {
	b := newBench(t)
	b.keeper.cfg.ExtraFile = ""
	b.keeper.cfg.Publisher = trust.NewPublisher("cluster.local", func(context.Context, []string) (uint64, error) { return 0, fmt.Errorf("no disk") })
	if err := b.keeper.Publish(t.Context()); err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("got %v", err)
	}
	if bundle, _ := b.keeper.cfg.Publisher.Current(); bundle != nil {
		t.Error("published a bundle without a number")
	}
}
