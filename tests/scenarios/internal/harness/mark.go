package harness

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/document"
	"fairlead.dev/tests/scenarios/internal/held"
)

// Snapshot is how a fleet was at a time.
type Snapshot struct {
	objects map[string]document.Document
	running map[string]bool
	held    map[string]held.Known
	// sent is what the proxies had been sent by then.
	sent    map[string]held.Sent
	counted map[string]counters
	// logs are the lengths of the log files.
	logs map[string]int64
}

// Mark remembers how things are.
func (h *Harness) Mark(ctx context.Context) (*Snapshot, error) {
	h.changing.Lock()
	defer h.changing.Unlock()
	return h.snapshot(ctx, nil, nil)
}

// snapshot looks at the fleet; held is what all proxies hold and counted what they have counted, if that is known.
func (h *Harness) snapshot(ctx context.Context, held map[string]held.Known, counted map[string]counters) (*Snapshot, error) {
	s := &Snapshot{objects: h.store.Snapshot(), running: map[string]bool{}, held: held, counted: counted, logs: h.logLengths()}
	for _, l := range h.order {
		s.running[l.spec.Name] = l.shown
	}
	var err error
	if s.sent, err = h.sent(ctx); err != nil {
		return s, err
	}
	return s, wait.Both(
		func() (err error) {
			if counted == nil {
				s.counted, err = h.counters(ctx)
			}
			return err
		},
		func() (err error) {
			if held == nil {
				s.held, err = h.look(ctx)
			}
			return err
		})
}

// Reset makes things what they were, and waits until every proxy has acknowledged that. What is different then is the
// error.
func (h *Harness) Reset(ctx context.Context, s *Snapshot) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	diff, err := h.reset(ctx, s)
	if err == nil && len(diff) > 0 {
		err = fmt.Errorf("after the scenario: %s", strings.Join(diff, "; "))
	}
	return err
}

func (h *Harness) reset(ctx context.Context, s *Snapshot) ([]string, error) {
	if err := h.ground.revive(ctx, s); err != nil {
		return nil, err
	}
	if err := h.store.Restore(ctx, s.objects); err != nil {
		return nil, err
	}
	if err := h.store.Acked(ctx, 0); err != nil {
		return nil, err
	}
	if err := wait.Both(h.ground.disconnect, h.dropFiles); err != nil {
		return nil, err
	}
	return h.diff(ctx, s)
}

// revive starts what ran at a snapshot, and ends what did not. It implements ground.
func (h *Harness) revive(ctx context.Context, s *Snapshot) error {
	for _, service := range h.plane.Services {
		if !service.Running() {
			if err := restart(ctx, service); err != nil {
				return err
			}
		}
	}
	var down []*workload
	for _, l := range h.order {
		switch was := s.running[l.spec.Name]; {
		case was && !l.running():
			down = append(down, l)
		case !was && l.shown:
			l.shown = false
			if err := l.stop(); err != nil {
				return err
			}
		}
	}
	if err := wait.Each(down, func(l *workload) error { return l.start(ctx) }); err != nil {
		return err
	}
	for _, l := range h.order {
		l.shown = s.running[l.spec.Name]
		l.ready = l.shown
	}
	return nil
}

// disconnect cuts all connections but those to the control plane: what proxies keep open for later does not go on to
// the next scenario. It implements ground.
func (h *Harness) disconnect() error {
	hub := h.network.Hub
	keep := func(local, remote netip.AddrPort) bool {
		return remote.Addr() == hub.IP || remote.Addr() == hub.IP6 || local.Addr() == hub.IP || local.Addr() == hub.IP6
	}
	return wait.Each(h.hosts(), func(host *netns.Host) error {
		return host.Disconnect(func(local, remote netip.AddrPort) bool {
			return keep(local, remote) || host == hub && local.Addr().IsLoopback() // config-watcher's to the API server
		})
	})
}

// diff compares what the proxies hold with a snapshot. What Envoy is still about to take away is given time.
func (h *Harness) diff(ctx context.Context, s *Snapshot) ([]string, error) {
	proxies, began := h.proxies(), time.Now()
	for {
		out, of, err := h.differences(ctx, s, proxies)
		if err != nil || len(out) == 0 || time.Since(began) > settleWithin {
			return out, err
		}
		proxies = of // the others have settled
		if err := wait.Pause(ctx, seldom); err != nil {
			return out, err
		}
	}
}

// seldom is how long to rest between two looks at everything that a proxy holds.
const seldom = 40 * time.Millisecond

// Begin remembers how things are before a scenario.
func (h *Harness) Begin(ctx context.Context) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	var held map[string]held.Known
	var counted map[string]counters
	if h.mark != nil {
		held, counted = h.mark.held, h.mark.counted // as End has found them
	}
	var err error
	h.mark, err = h.snapshot(ctx, held, counted)
	return err
}

// End restores what was at Begin, and reports what could not be, and what did not hold meanwhile. allow tells what need
// not: "warming" and "error-log".
func (h *Harness) End(ctx context.Context, allow func(what string) bool) []string {
	h.changing.Lock()
	defer h.changing.Unlock()
	s := h.mark
	var problems []string
	if !allow("warming") {
		problems = h.warming(ctx)
	}
	died := h.ground.died()
	diff, err := h.reset(ctx, s)
	if err != nil {
		problems = append(problems, fmt.Sprintf("things are not as they were before the scenario: %v", err))
	}
	if err != nil || len(diff) > 0 {
		h.mark = nil // what the next scenario finds, it has to look at itself
	}
	problems = append(problems, diff...)
	problems = append(problems, died...)
	problems = append(problems, h.rejected(ctx, s)...)
	problems = append(problems, h.deprecated(ctx)...)
	if !allow("error-log") {
		problems = append(problems, h.errorLines(s)...)
	}
	return problems
}

// died lists the processes that ended unasked. It implements ground.
func (h *Harness) died() []string {
	var out []string
	look := func(p *netns.Process) {
		if p == nil {
			return
		}
		if err := p.Died(); err != nil {
			out = append(out, fmt.Sprintf("%s died: %v", p.Name, err))
		}
	}
	for _, s := range h.plane.Services {
		look(s.Process())
	}
	for _, l := range h.order {
		look(l.agent)
		look(l.app)
	}
	slices.Sort(out)
	return out
}
