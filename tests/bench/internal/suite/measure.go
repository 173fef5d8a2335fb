package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fairlead.dev/tests/bench/internal/edge"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/proxy"
)

// A process is quiet when its proxies have received nothing for so long and it has used no more than this of a core
// meanwhile.
const (
	quietFor  = 60 * time.Millisecond
	quietCPU  = 400 * time.Microsecond
	quietStep = 5 * time.Millisecond
	quietMost = 3 * time.Minute
)

// quiet waits until a process has nothing to do. fleet may be nil.
func quiet(ctx context.Context, p *machine.Process, fleet *proxy.Fleet) error {
	ctx, cancel := context.WithTimeout(ctx, quietMost)
	defer cancel()
	since, used := time.Now(), p.CPU()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w while something goes on for longer than %s", ctx.Err(), quietMost)
		case <-p.Ended():
			return errors.New("a server ended:\n" + p.LogTail())
		case <-time.After(quietStep):
		}
		if fleet != nil {
			if err := fleet.Err(); err != nil {
				return fmt.Errorf("%w\n%s", err, p.LogTail())
			}
			if last := fleet.Count().Last; last.After(since) {
				since, used = last, p.CPU()
			}
		}
		now := p.CPU()
		if now-used > quietCPU {
			since, used = time.Now(), now
		}
		if time.Since(since) >= quietFor {
			return nil
		}
	}
}

// idle measures what a process uses of a second in which nothing is asked of it.
func idle(p *machine.Process) (perSecond time.Duration) {
	const sample = 500 * time.Millisecond
	start, used := time.Now(), p.CPU()
	time.Sleep(sample)
	return time.Duration(float64(p.CPU()-used) / time.Since(start).Seconds())
}

// sample is what was measured of one kind of event.
type sample struct {
	// CPU per event: all that was used, divided; Each are the single events', for the spread.
	CPU  time.Duration
	Each []time.Duration
	// Bytes and Responses per event, all proxies together; Reached are the proxies that received something.
	Bytes     int64
	Responses int
	Reached   int
	ByType    map[string]int64
	// Delays from the event to the last thing that a proxy received of it.
	Delays []time.Duration
}

// P99 of the delays.
func (s *sample) P99() time.Duration { return percentile(s.Delays, 0.99) }

// Spread of the single events' CPU.
func (s *sample) Spread() (low, high time.Duration) {
	return percentile(s.Each, 0.1), percentile(s.Each, 0.9)
}

// PerProxy is the bytes of a proxy that received something.
func (s *sample) PerProxy() float64 {
	if s.Reached == 0 {
		return 0
	}
	return float64(s.Bytes) / float64(s.Reached)
}

func percentile(d []time.Duration, q float64) time.Duration { return edge.Percentile(d, q) }

// repeat measures events one after another. event makes one and says when it did.
func repeat(ctx context.Context, p *machine.Process, fleet *proxy.Fleet, times int, event func(i int) (time.Time, error)) (*sample, error) {
	s := &sample{}
	rest := idle(p)
	begin, first := time.Now(), p.CPU()
	for i := range times {
		fleet.Reset()
		start, used := time.Now(), p.CPU()
		at, err := event(i)
		if err != nil {
			return nil, err
		}
		if err := quiet(ctx, p, fleet); err != nil {
			return nil, err
		}
		s.Each = append(s.Each, max(0, p.CPU()-used-time.Duration(float64(rest)*time.Since(start).Seconds())))
		c := fleet.Count()
		s.Bytes += c.Bytes
		s.Responses += c.Responses
		s.Reached, s.ByType = max(s.Reached, len(c.Newest)), c.ByType
		for _, received := range c.Newest {
			s.Delays = append(s.Delays, received.Sub(at))
		}
	}
	s.CPU = max(0, p.CPU()-first-time.Duration(float64(rest)*time.Since(begin).Seconds())) / time.Duration(times)
	s.Bytes /= int64(times)
	s.Responses /= times
	return s, nil
}

// warmup is how many events pass before they count.
const warmup = 3

// change measures revisions, and the floor of the bytes that the last of them caused. undo, if not nil, makes the
// revision that comes between two, which does not count.
func (f *fixture) change(ctx context.Context, name string, times int, do, undo func(turn int) mesh.Change) (got, base *sample, err error) {
	turn := 0
	commit := func(c mesh.Change) (time.Time, error) {
		sequence, at := f.watcher.Commit(c)
		return at, f.watcher.Taken(ctx, sequence, 1)
	}
	back := func() error {
		if undo == nil {
			return nil
		}
		if _, err := commit(undo(turn)); err != nil {
			return err
		}
		return quiet(ctx, f.server.Process, f.fleet)
	}
	for range warmup {
		turn++
		f.fleet.Record(true) // the last one stays
		if _, err := commit(do(turn)); err != nil {
			return nil, nil, err
		}
		if err := quiet(ctx, f.server.Process, f.fleet); err != nil {
			return nil, nil, err
		}
		f.sent = f.fleet.Record(false)
		if f.floor != nil {
			if err := f.floor.Load(f.sent, false); err != nil {
				return nil, nil, err
			}
		}
		if err := back(); err != nil {
			return nil, nil, err
		}
	}
	if undo == nil {
		got, err = repeat(ctx, f.server.Process, f.fleet, times, func(int) (time.Time, error) {
			turn++
			return commit(do(turn))
		})
	} else {
		got, err = f.alternate(ctx, times, func() (time.Time, error) { turn++; return commit(do(turn)) }, back)
	}
	if err != nil {
		return nil, nil, err
	}
	if f.Profile {
		if err := f.profiled(ctx, name, func() error {
			turn++
			if _, err := commit(do(turn)); err != nil {
				return err
			}
			if err := quiet(ctx, f.server.Process, f.fleet); err != nil {
				return err
			}
			return back()
		}); err != nil {
			return nil, nil, err
		}
	}
	if f.floor == nil || got.Responses == 0 {
		return got, nil, nil
	}
	base, err = f.push(ctx, times)
	return got, base, err
}

// alternate is repeat for events that are undone in between.
func (f *fixture) alternate(ctx context.Context, times int, do func() (time.Time, error), back func() error) (*sample, error) {
	all := &sample{}
	for range times {
		s, err := repeat(ctx, f.server.Process, f.fleet, 1, func(int) (time.Time, error) { return do() })
		if err != nil {
			return nil, err
		}
		if err := back(); err != nil {
			return nil, err
		}
		all.CPU += s.CPU / time.Duration(times)
		all.Each, all.Delays = append(all.Each, s.CPU), append(all.Delays, s.Delays...)
		all.Bytes, all.Responses, all.Reached, all.ByType = s.Bytes, s.Responses, s.Reached, s.ByType
	}
	return all, nil
}

// push measures the floor of the script that it holds.
func (f *fixture) push(ctx context.Context, times int) (*sample, error) {
	event := func(int) (time.Time, error) {
		at := time.Now()
		return at, f.floor.Push()
	}
	if _, err := repeat(ctx, f.floor.Process, f.echo, warmup, event); err != nil {
		return nil, err
	}
	return repeat(ctx, f.floor.Process, f.echo, times, event)
}

// profiled repeats an event while a profile is taken.
func (f *fixture) profiled(ctx context.Context, name string, event func() error) error {
	done := f.profile(ctx, f.server, name)
	for {
		select {
		case err := <-done:
			return err
		default:
		}
		if err := event(); err != nil {
			return err
		}
	}
}
