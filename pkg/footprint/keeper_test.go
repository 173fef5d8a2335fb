package footprint

import (
	"context"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/pkg/testkit"
)

const mib = 1 << 20

// TestWhenToTrim has a row for each look: how much was allocated before it, and whether it trims.
func TestWhenToTrim(t *testing.T) {
	type look struct {
		allocated uint64
		trims     bool
	}
	rest := func(n int, then ...look) []look { return append(make([]look, n), then...) }
	for name, c := range map[string]struct {
		live  uint64
		took  time.Duration
		off   bool
		looks []look
	}{
		"trims once, idle after the start": {live: 40 * mib, looks: slices.Concat([]look{{300 * mib, false}}, rest(5, look{0, true}), rest(9))},
		"does not trim under load": {live: 40 * mib,
			looks: slices.Concat([]look{{300 * mib, false}}, rest(5, look{2 * mib, false}), rest(5, look{2 * mib, false}),
				rest(5, look{mib / 2, true}))},
		"with a large heap, idle means fewer than a part of it": {live: 1 << 30,
			looks: slices.Concat([]look{{4 << 30, false}, {10 * mib, false}}, rest(4, look{10 * mib, true}))},
		"trims after every burst": {live: 20 * mib,
			looks: slices.Concat([]look{{90 * mib, false}}, rest(5, look{0, true}, look{9 * mib, false}), rest(5, look{0, true}))},
		"does not trim for few allocations": {live: 20 * mib,
			looks: slices.Concat([]look{{90 * mib, false}}, rest(5, look{0, true}, look{7 * mib, false}), rest(9))},
		"does not trim for few allocations beside a large heap": {live: 100 * mib,
			looks: slices.Concat([]look{{500 * mib, false}}, rest(5, look{0, true}, look{20 * mib, false}), rest(9))},
		"little by little": {live: 4 * mib, looks: []look{
			{mib, false}, {mib, false}, {mib, false}, {mib, false}, {mib, false}, {mib, false}, {mib, false}, {mib, true}, {mib, false},
		}},
		"trims less often if trimming takes long": {live: 20 * mib, took: 200 * time.Millisecond,
			looks: slices.Concat([]look{{90 * mib, false}}, rest(5, look{0, true}, look{90 * mib, false}),
				rest(8, look{0, true}))},
		"does not trim with GOGC=off": {live: 40 * mib, off: true, looks: slices.Concat([]look{{300 * mib, false}}, rest(20))},
	} {
		t.Run(name, func(t *testing.T) {
			clock := testkit.NewClock(time.Unix(0, 0))
			k := NewKeeper(clock, nil)
			now := usage{live: c.live, off: c.off}
			trimmed := false
			k.read = func() usage { return now }
			k.trim = func() error { trimmed = true; clock.Advance(c.took); return nil }
			for i, l := range c.looks {
				now.allocated += l.allocated
				clock.Advance(lookEvery)
				trimmed = false
				if k.look(); trimmed != l.trims {
					t.Errorf("look %d: trimmed %t, want %t", i, trimmed, l.trims)
				}
			}
		})
	}
}

// TestReader compares the usage with what the test allocates, and with GOGC=off.
func TestReader(t *testing.T) {
	read := newReader()
	before := read()
	kept := make([]byte, 4*mib)
	after := read()
	if grown := after.allocated - before.allocated; grown < uint64(len(kept)) {
		t.Errorf("%d bytes allocated, want at least %d", grown, len(kept))
	}
	percent := debug.SetGCPercent(-1)
	off := read().off
	debug.SetGCPercent(percent)
	if !off || read().off {
		t.Errorf("collector off %t, afterwards %t", off, read().off)
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(nil, nil)
		trims := 0
		k.read = func() usage { return usage{allocated: 100 * mib, live: mib} }
		k.trim = func() error { trims++; return nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := k.Run(ctx); err != nil || trims != 1 {
			t.Errorf("trimmed %d times, %v", trims, err)
		}
	})
}
