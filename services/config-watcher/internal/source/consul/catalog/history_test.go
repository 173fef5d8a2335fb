package catalog

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// TestMain makes few histories unless -rapid.checks names their number.
func TestMain(m *testing.M) {
	flag.Parse()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("300"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// held is a handler that holds what it is handed, and checks what that removes.
type held struct {
	fake     *fake
	mu       sync.Mutex
	services map[string]map[key]string
	calls    int
	wrong    []error
	log      []string
}

func (h *held) Names(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	h.log = append(h.log, fmt.Sprint("names ", names))
	if !slices.IsSorted(names) {
		h.wrong = append(h.wrong, errors.New("names are not sorted"))
	}
	for name, instances := range h.services {
		if !slices.Contains(names, name) {
			h.removed(name, instances, nil)
			delete(h.services, name)
		}
	}
	for _, name := range names {
		if h.services[name] == nil {
			h.services[name] = map[key]string{}
		}
	}
}

func (h *held) logged() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.log)
}

func (h *held) forgetLog() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = nil
}

// Whole implements Handler.
func (h *held) Whole(bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, "whole")
}

func (h *held) Service(name string, instances []Instance) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	now := map[key]string{}
	for _, i := range instances {
		now[i.key()] = i.Status
	}
	h.log = append(h.log, fmt.Sprint("service ", name, " ", now))
	before, known := h.services[name]
	if !known {
		h.wrong = append(h.wrong, fmt.Errorf("service %s comes before its name", name))
	}
	h.removed(name, before, now)
	h.services[name] = now
}

// now is what is held; nothing in it changes later.
func (h *held) now() map[string]map[key]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.services)
}

// count is how often the handler was called.
func (h *held) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

// removed checks that no instance is removed that passes and was there for long enough to have been read.
func (h *held) removed(name string, before, now map[key]string) {
	for k := range before {
		if _, stays := now[k]; stays {
			continue
		}
		if since, passes := h.fake.passing(name, k); passes && time.Since(since) > 10*time.Second {
			h.wrong = append(h.wrong, fmt.Errorf("%s: %v is removed and passes since %s", name, k, time.Since(since)))
		}
	}
}

func (h *held) problem() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(h.wrong...)
}

// differs compares what is held with the catalog.
func (h *held) differs() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	want := map[string]map[key]string{}
	for name, of := range h.fake.newest().services {
		want[name] = map[key]string{}
		for k, e := range of.instances {
			want[name][k] = e.status()
		}
	}
	if !maps.EqualFunc(h.services, want, maps.Equal[map[key]string, map[key]string]) {
		return fmt.Errorf("held: %v\ncatalog: %v", h.services, want)
	}
	return nil
}

// step is one of a history.
type step struct {
	what    string
	service string
	node    string
	status  string
	n       int
	after   time.Duration
	lies    lies
}

var (
	serviceNames = []string{"web", "db", "a b/ü", "api", "cache"}
	nodeNames    = []string{"n1", "n2", "n3"}
)

func drawStep(t *rapid.T) step {
	s := step{
		what: rapid.SampledFrom([]string{"register", "register", "register", "deregister", "deregister", "node gone", "lie", "lie", "lie",
			"truth", "restore", "restart", "reconnect", "refresh"}).Draw(t, "step"),
		service: rapid.SampledFrom(serviceNames).Draw(t, "service"), node: rapid.SampledFrom(nodeNames).Draw(t, "node"),
		status: rapid.SampledFrom([]string{Passing, Passing, Passing, Warning, Critical}).Draw(t, "status"),
		n:      rapid.IntRange(1, 10).Draw(t, "n"),
		after:  time.Duration(rapid.SampledFrom([]int{0, 0, 1, 50, 1000, 15_000, 90_000, 700_000}).Draw(t, "after")) * time.Millisecond,
	}
	if s.what == "lie" {
		s.lies = drawLies(t)
	}
	return s
}

func drawLies(t *rapid.T) (l lies) {
	for range rapid.IntRange(1, 2).Draw(t, "lies") {
		switch rapid.IntRange(0, 15).Draw(t, "lie") {
		case 0:
			l.Cut = true
		case 1:
			l.Torn = true
		case 2:
			l.NoLeader = true
		case 3:
			l.UnknownLeader = true
		case 4:
			l.OldContact = true
		case 5:
			l.TooMany = true
		case 6:
			l.Broken = true
		case 7:
			l.Zero = true
		case 8:
			l.Page = true
		case 9:
			l.Slow = true
		case 10, 11:
			l.Lagging = true
		case 12:
			l.Emptied = true
		case 13:
			l.Invalid = true
		case 14:
			l.Unresolved = true
		case 15:
			l.Services = map[string]bool{rapid.SampledFrom(serviceNames).Draw(t, "hidden service"): true}
			l.Nodes = map[string]bool{rapid.SampledFrom(nodeNames).Draw(t, "hidden node"): true}
		}
	}
	return l
}

// history is a random one: how it begins, and what happens.
type history struct {
	known bool
	plain bool
	begin []step
	steps []step
}

func (h *history) String() string {
	var out strings.Builder
	for _, s := range h.steps {
		fmt.Fprintf(&out, "%+v\n", s)
	}
	return out.String()
}

// TestNothingIsRemovedThatConsulHas draws histories of a catalog and of how it is read: connections are cut, agents
// restart, snapshots are restored, leaders change, and answers are older, filtered, torn, without rights or nonsense.
// No instance may be removed that the catalog has as passing; in the end, what was handed over is the catalog, and
// nothing is read but that.
func TestNothingIsRemovedThatConsulHas(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{
			known: rapid.Bool().Draw(rt, "an earlier run"), plain: rapid.IntRange(0, 3).Draw(rt, "plain") == 0,
			begin: rapid.SliceOfN(rapid.Custom(drawStep), 0, 8).Draw(rt, "begin"),
			steps: rapid.SliceOfN(rapid.Custom(drawStep), 1, 25).Draw(rt, "steps"),
		}
		var err error
		synctest.Test(t, func(*testing.T) { err = h.run() })
		if err != nil {
			rt.Fatalf("%v\n%s", err, h)
		}
	})
}

func (h *history) run() error {
	f := newFake()
	if h.plain {
		f.plain = 2
	}
	for _, s := range h.begin {
		f.register(s.service, s.node, fmt.Sprint(s.service, "-", s.n%3), s.status)
	}
	time.Sleep(time.Minute)
	got := &held{fake: f, services: map[string]map[key]string{}}
	cfg := Config{Address: "https://consul:8501", Token: func() string { return "secret" }}
	if h.known {
		cfg.Known = map[string][]Instance{}
		for name, of := range f.newest().services {
			got.services[name] = map[key]string{}
			for k, e := range of.instances {
				got.services[name][k] = e.status()
				cfg.Known[name] = append(cfg.Known[name], e.instance())
			}
		}
	}
	c := New(cfg)
	c.dial = func(*Config, *url.URL) transport { return f }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, got) }()
	defer func() {
		cancel()
		<-ended
	}()
	for _, s := range h.steps {
		h.do(f, c, cfg, s)
		time.Sleep(s.after)
		synctest.Wait()
		if err := got.problem(); err != nil {
			return err
		}
	}
	f.lie(lies{})
	time.Sleep(7 * time.Minute)
	synctest.Wait()
	if err := errors.Join(got.problem(), got.differs()); err != nil {
		return fmt.Errorf("%w\nlog: %s\nstatus: %+v", err, strings.Join(got.log, "\n"), c.Status())
	}
	for name := range f.newest().services {
		f.register(name, "last", "last", Passing)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	if err := errors.Join(got.problem(), got.differs(), h.settled(f, c)); err != nil {
		return fmt.Errorf("%w\nlog: %s\nstatus: %+v", err, strings.Join(got.log, "\n"), c.Status())
	}
	return nil
}

func (h *history) do(f *fake, c *Catalog, cfg Config, s step) {
	id := fmt.Sprint(s.service, "-", s.n%3)
	switch s.what {
	case "register":
		f.register(s.service, s.node, id, s.status)
	case "deregister":
		f.deregister(s.service, s.node, id)
	case "node gone":
		for name, of := range f.newest().services {
			for k := range of.instances {
				if k.node == s.node {
					f.deregister(name, k.node, k.id)
				}
			}
		}
	case "lie":
		f.lie(s.lies)
	case "truth":
		f.lie(lies{})
	case "restore":
		f.restore(s.n, s.status == Passing)
	case "restart":
		f.restartAgent()
	case "reconnect":
		if err := c.Reconnect(cfg); err != nil {
			panic(err)
		}
	case "refresh":
		c.Refresh()
	}
}

// settled checks the state at the end of a history.
func (h *history) settled(f *fake, c *Catalog) error {
	st, services := c.Status(), f.newest().services
	want := Synced
	if len(services) > f.plain {
		want = Limited
	}
	if st.State != want || !st.Synced || (want == Synced) != (st.Degraded == nil) {
		return fmt.Errorf("state %s, want %s: %w", st.State, want, st.Degraded)
	}
	f.askedSince()
	time.Sleep(2 * time.Minute)
	for path, n := range f.askedSince() {
		name, is := strings.CutPrefix(path, servicePath)
		if _, there := services[name]; is && !there {
			return fmt.Errorf("service %s is gone, and is read %d times in two minutes", name, n)
		}
	}
	synctest.Wait()
	if h.plain {
		return nil
	}
	watched := map[string]int{namesPath: 1}
	for name := range services {
		watched[servicePath+name] = 1
	}
	if got := f.watched(); !maps.Equal(got, watched) {
		return fmt.Errorf("watched: %v, want %v", got, watched)
	}
	return nil
}
