package balance_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/balance"
)

const patience = 2 * time.Minute

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

func imbalance(counts []int, streams int) float64 {
	return float64(slices.Max(counts)) * float64(len(counts)) / float64(streams)
}

// Three replicas become six, with proxies that reconnect to any of them. Within a minute all have about the same number
// of streams; no proxy has seen a stream fail or been sent again what it held; and then no stream ends any more.
func TestScaleOut(t *testing.T) {
	streams, times := 3000, 2
	if testing.Short() {
		streams, times = 600, 4
	}
	clock := fasterClock{time.Now(), times}
	s := &kubeService{t: t, clock: clock, mesh: tenServices(), port: "0"}
	s.scale(3)
	proxies, seen, stop := s.connect(streams)
	testkit.Eventually(t, patience, func() error {
		if n := seen.configured.Load(); n != int64(streams) {
			return fmt.Errorf("%d proxies are configured, %d streams open: %w", n, sum(s.counts()), seen.failure())
		}
		return nil
	})
	before, received := seen.moves.Load(), seen.received.Load()

	s.scale(6)
	start := clock.Now()
	within := func(most float64) func() error {
		return func() error {
			if counts := s.counts(); sum(counts) != streams || imbalance(counts, streams) > most {
				return fmt.Errorf("streams %v, %w", counts, seen.failure())
			}
			return nil
		}
	}
	testkit.Eventually(t, time.Minute/time.Duration(times), within(1.15))
	balanced := clock.Now().Sub(start)

	// The last small excesses are given away; a whole period without a move then means that all are within the slack.
	last, quietSince := seen.moves.Load(), clock.Now()
	testkit.Eventually(t, patience, func() error {
		if n := seen.moves.Load(); n != last {
			last, quietSince = n, clock.Now()
		}
		if quiet := clock.Now().Sub(quietSince); quiet < 3*balance.DefaultPeriod/2 {
			return fmt.Errorf("quiet for %s, streams %v", quiet, s.counts())
		}
		return within(1.15)()
	})
	settled := quietSince.Sub(start)
	<-clock.After(3 * balance.DefaultPeriod)
	if n := seen.moves.Load() - last; n != 0 {
		t.Errorf("%d streams closed while balanced: %v", n, s.counts())
	}
	if err := within(1.15)(); err != nil {
		t.Errorf("at the end: %v", err)
	}
	counts := s.counts()
	stop()

	if err := seen.failure(); err != nil {
		t.Error(err)
	}
	if n := seen.resent.Load(); n != 0 {
		t.Errorf("%d resources sent to moved streams that hold them", n)
	}
	if n := seen.received.Load(); n != received {
		t.Errorf("%d resources sent in all after the first configuration", n-received)
	}
	moves := map[int]int{}
	for _, p := range proxies {
		moves[p.moves]++
		if p.moves > 3 {
			t.Errorf("%s was moved %d times", p.id, p.moves)
		}
	}
	total := seen.moves.Load() - before
	if total < int64(streams)/3 || total > int64(streams)*5/4 {
		t.Errorf("%d moves of %d streams", total, streams)
	}
	t.Logf("max/mean <= 1.15 after %s, last move after %s; %d moves, streams by moves %v; at the end %v, max/mean %.3f",
		balanced.Round(time.Second/10),
		settled.Round(time.Second/10), total, moves, counts, math.Round(1000*imbalance(counts, streams))/1000)
}
