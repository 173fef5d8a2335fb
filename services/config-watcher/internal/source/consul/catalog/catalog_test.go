package catalog

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// follow runs a Catalog of a fake in a bubble, and ends it with the test.
func follow(t *testing.T, f *fake, cfg Config) (*Catalog, *held) {
	t.Helper()
	cfg.Address = "https://consul:8501"
	got := &held{fake: f, services: map[string]map[key]string{}}
	c := New(cfg)
	c.dial = func(*Config, *url.URL) transport { return f }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, got) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	synctest.Wait()
	return c, got
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func secret() string { return "secret" }

// What is hidden from the anonymous token looks like what is gone, so nothing goes until there is a token.
func TestWithoutATokenNothingIsRemovedWhereACLsAreOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.register("web", "n1", "web-1", Passing)
		f.register("web", "n2", "web-2", Passing)
		f.register("db", "n1", "db-1", Passing)
		c, got := follow(t, f, Config{})
		if st := c.Status(); st.State != Forbidden || !strings.Contains(st.Degraded.Error(), "has no token") || !st.Synced {
			t.Errorf("at the start: %+v", st)
		}
		f.deregister("web", "n2", "web-2")
		f.deregister("db", "n1", "db-1")
		f.register("api", "n1", "api-1", Passing)
		pass(3 * time.Minute)
		if len(got.now()["web"]) != 2 || len(got.now()["db"]) != 1 || len(got.now()["api"]) != 1 {
			t.Errorf("without a token: %v", got.now())
		}
		if err := c.Reconnect(Config{Address: "https://consul:8501", Token: secret}); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Second)
		if err := got.differs(); err != nil || c.Status().State != Synced {
			t.Errorf("with a token: %v, %+v", err, c.Status())
		}
	})
}

func TestWithoutACLsNoTokenIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.acls = false
		f.register("web", "n1", "web-1", Passing)
		f.register("web", "n2", "web-2", Passing)
		c, got := follow(t, f, Config{})
		f.deregister("web", "n2", "web-2")
		pass(time.Second)
		if err := got.differs(); err != nil || c.Status().State != Synced {
			t.Errorf("%v, %+v", err, c.Status())
		}
	})
}

func TestStatesNameTheRemedy(t *testing.T) {
	for name, tc := range map[string]struct {
		lies  lies
		state State
		says  string
	}{
		"token unknown":     {lies{Invalid: true}, Forbidden, `403: "ACL not found"`},
		"service hidden":    {lies{Services: map[string]bool{"web": true}}, Forbidden, `give the token service:read`},
		"node hidden":       {lies{Nodes: map[string]bool{"n1": true}}, Forbidden, `node:read`},
		"rights unknown":    {lies{Unresolved: true}, Away, `not even "consul"`},
		"no leader":         {lies{NoLeader: true}, Away, "No cluster leader"},
		"leader unknown":    {lies{UnknownLeader: true, NoLeader: true}, Away, "leader"},
		"nobody there":      {lies{Cut: true}, Away, "connection reset"},
		"too many requests": {lies{TooMany: true}, Away, "429"},
		"torn":              {lies{Torn: true}, Away, "unexpected EOF"},
		"two values":        {lies{Broken: true}, Away, "something follows"},
		"index 0":           {lies{Zero: true}, Away, "X-Consul-Index 0"},
		"another server":    {lies{Page: true}, Away, "no Consul agent is there"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.register("web", "n1", "web-1", Passing)
				c, got := follow(t, f, Config{Token: secret})
				f.lie(tc.lies)
				f.restartAgent()
				pass(2 * time.Minute)
				st := c.Status()
				if st.State != tc.state || st.Degraded == nil || !strings.Contains(st.Degraded.Error(), tc.says) || !st.Synced {
					t.Errorf("%+v, want %s with %q", st, tc.state, tc.says)
				}
				if err := got.differs(); err != nil {
					t.Errorf("not all stays: %v", err)
				}
				f.lie(lies{})
				pass(2 * time.Minute)
				if st := c.Status(); st.State != Synced || st.Degraded != nil {
					t.Errorf("afterwards: %+v", st)
				}
			})
		})
	}
}

// A Consul that does not say what it filters is asked for the rights.
func TestRightsThatAreLostInSilenceRemoveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.forgets = true
		f.register("web", "n1", "web-1", Passing)
		f.register("web", "n2", "web-2", Passing)
		f.register("db", "n3", "db-1", Passing)
		c, got := follow(t, f, Config{Token: secret})
		f.lie(lies{Silent: true, Nodes: map[string]bool{"n2": true}, Services: map[string]bool{"db": true}})
		f.restartAgent()
		pass(5 * time.Minute)
		if err := got.differs(); err != nil || c.Status().State != Forbidden {
			t.Errorf("%v, %+v", err, c.Status())
		}
	})
}

// A server that is behind, of several at one address, does not bring back what was.
func TestOlderAnswersAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		for range 3 {
			f.register("web", "n1", "web-1", Passing)
		}
		_, got := follow(t, f, Config{Token: secret})
		f.register("web", "n1", "web-1", Critical)
		pass(time.Second)
		f.lie(lies{Lagging: true})
		calls := len(got.logged())
		for range 20 {
			f.restartAgent()
			pass(5 * time.Second)
		}
		got.mu.Lock()
		defer got.mu.Unlock()
		for _, call := range got.log[calls:] {
			if strings.HasPrefix(call, "service") {
				t.Errorf("nothing has changed: %s", call)
			}
		}
	})
}

// Whoever asks just after a snapshot was restored, with an index from before, is not told; the names find out.
func TestTheNamesNoticeARestoredSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.register("web", "n1", "web-1", Passing)
		f.register("web", "n2", "web-2", Passing)
		f.register("db", "n1", "db-1", Passing)
		c, got := follow(t, f, Config{Token: secret})
		f.deregister("web", "n2", "web-2")
		f.register("db", "n1", "db-1", Warning)
		pass(time.Second)
		f.takeBack(1, false)
		pass(namesWait + 10*time.Second)
		if err := got.differs(); err != nil || c.Status().IndexResets == 0 {
			t.Errorf("%v, %+v", err, c.Status())
		}
		f.register("web", "n3", "web-3", Passing)
		pass(time.Second)
		f.restore(0, false)
		pass(10 * time.Second)
		if err := got.differs(); err != nil {
			t.Errorf("while all wait: %v", err)
		}
	})
}

// A token that sees some services alone is of use for these.
// After a catalog has gone back, and after Refresh, Whole waits for all services concerned, so that what each has lost
// can be judged together.
func TestWholeComesAfterAllThatACatalogHasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 20
		f := newFake()
		for i := range size {
			f.register(fmt.Sprintf("s%02d", i), "n1", "one", Passing)
		}
		for i := range size {
			f.register(fmt.Sprintf("s%02d", i), "n2", "two", Passing)
		}
		c, got := follow(t, f, Config{Token: secret})
		pass(time.Second)
		services := func() (n int, whole bool) {
			log := got.logged()
			if i := slices.Index(log, "whole"); i >= 0 {
				log, whole = log[:i], true
			}
			for _, line := range log {
				if strings.HasPrefix(line, "service ") {
					n++
				}
			}
			return n, whole
		}
		got.forgetLog()
		f.restore(size-1, false)
		pass(time.Minute)
		if n, whole := services(); n != size || !whole {
			t.Errorf("%d of %d services are handed over before Whole (%t): %v", n, size, whole, got.logged())
		}
		if err := got.differs(); err != nil {
			t.Error(err)
		}
		f.lie(lies{Cut: true})
		got.forgetLog()
		c.Refresh("s01")
		pass(time.Minute)
		if slices.Contains(got.logged(), "whole") {
			t.Error("Whole without a reading")
		}
		f.lie(lies{})
		pass(time.Minute)
		if !slices.Contains(got.logged(), "whole") {
			t.Error("no Whole after a reading")
		}
	})
}

func TestATokenOfSomeServicesFollowsThese(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.lie(lies{Services: map[string]bool{"db": true, "consul": true}})
		f.register("web", "n1", "web-1", Passing)
		f.register("web", "n2", "web-2", Passing)
		f.register("db", "n1", "db-1", Passing)
		f.register("old", "n1", "old-1", Passing)
		time.Sleep(time.Minute) // after which the agent knows the rights
		c, got := follow(t, f, Config{Token: secret})
		if st := c.Status(); st.State != Forbidden || !st.Synced || len(got.now()) != 2 {
			t.Errorf("%+v, %v", st, got.now())
		}
		f.deregister("web", "n2", "web-2")
		f.deregister("old", "n1", "old-1")
		pass(time.Second)
		if len(got.now()["web"]) != 1 {
			t.Errorf("an instance stays: %v", got.now())
		}
		pass(5 * time.Minute)
		if _, stays := got.now()["old"]; stays {
			t.Errorf("a service stays: %v", got.now())
		}
	})
}

// A service that never rests is read ten times a second, and the others as soon as they change.
func TestOneServiceDoesNotStarveTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.register("hot", "n1", "hot-1", Passing)
		f.register("quiet", "n1", "quiet-1", Passing)
		c, got := follow(t, f, Config{Token: secret})
		before := c.Status().Requests
		for i := range 5000 {
			f.register("hot", "n1", "hot-1", []string{Passing, Warning}[i%2])
			if i == 4000 {
				f.register("quiet", "n1", "quiet-1", Critical)
			}
			pass(time.Millisecond)
			if i == 4001 && got.now()["quiet"][key{"n1", "quiet-1"}] != Critical {
				t.Error("the quiet service waits for the other one")
			}
		}
		// 5 s; the names wake up as often.
		if n := c.Status().Requests - before; n > 2*(5*10+2)+5 {
			t.Errorf("%d requests in 5 s", n)
		}
	})
}

func TestLargeAnswersComeSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for size, want := range map[int64]time.Duration{1000: 800 * time.Millisecond, 10_000_000: 9 * time.Second, MaxReply: 60 * time.Second} {
			b, start := newBucket(), time.Now()
			for range 10 {
				b.sized(size, time.Now())
				b.wait(t)
			}
			if took := time.Since(start).Round(100 * time.Millisecond); took < want || took > want+want/10 {
				t.Errorf("ten readings of %d bytes take %s, want %s", size, took, want)
			}
		}
	})
}

func (b bucket) wait(t *testing.T) {
	now := time.Now()
	time.Sleep(b.limiter.ReserveN(now, 1).DelayFrom(now))
}

// An endless answer ends at the bound, and is about one service: the others go on.
func TestEndlessAnswersAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.register("web", "n1", "web-1", Passing)
		c, got := follow(t, f, Config{Token: secret})
		f.lie(lies{Endless: true})
		f.register("web", "n1", "web-1", Warning)
		pass(200 * time.Millisecond)
		if st := c.Status(); st.State != Partial || !strings.Contains(st.Degraded.Error(), `service "web" cannot be read`) ||
			!strings.Contains(st.Degraded.Error(), errEntry.Error()) {
			t.Errorf("%+v", st)
		}
		f.lie(lies{})
		pass(time.Minute)
		if err := got.differs(); err != nil || c.Status().State != Synced {
			t.Errorf("%v, %+v", err, c.Status())
		}
	})
}

func TestTheFilterSelects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.register("web", "n1", "web-1", Passing)
		f.register("db", "n1", "db-1", Passing)
		f.register("ghost", "n1", "ghost-1", Passing)
		only := func(names ...string) func(string) bool {
			return func(name string) bool { return slices.Contains(names, name) }
		}
		c, got := follow(t, f, Config{Token: secret, Filter: only("web", "ghost")})
		if len(got.now()) != 2 || len(f.watched()) != 3 {
			t.Errorf("%v, watched %v", got.now(), f.watched())
		}
		f.deregister("ghost", "n1", "ghost-1")
		pass(time.Second)
		if err := c.Reconnect(Config{Address: "https://consul:8501", Token: secret, Filter: only("db")}); err != nil {
			t.Fatal(err)
		}
		got.mu.Lock()
		got.fake = newFake() // "web" is removed by the user
		got.mu.Unlock()
		pass(time.Second)
		if len(got.now()) != 1 || len(got.now()["db"]) != 1 || len(f.watched()) != 2 {
			t.Errorf("%v, watched %v", got.now(), f.watched())
		}
	})
}

// Twice as many services as watches: all are read, and those in turn within a bound of time.
func TestServicesWithoutAWatchAreReadInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.plain = plainWatches
		for i := range 2*plainWatches - 1 {
			f.register(fmt.Sprintf("s%03d", i), "n1", "1", Passing)
		}
		c, got := follow(t, f, Config{Token: secret})
		pass(3 * time.Second)
		st := c.Status()
		if st.State != Limited || !st.Synced || st.Watches != plainWatches || st.Polled != plainWatches || len(got.now()) != 2*plainWatches {
			t.Fatalf("%+v, %d services", st, len(got.now()))
		}
		f.register("s298", "n1", "1", Critical)
		f.register("s298", "n2", "2", Passing)
		pass(15 * time.Second)
		if err := got.differs(); err != nil {
			t.Error(err)
		}
		before := c.Status().Requests
		pass(time.Minute)
		if n := c.Status().Requests - before; n > 60*(pollPerSecond+4) {
			t.Errorf("%d requests in a minute", n)
		}
		for i := range plainWatches {
			f.deregister(fmt.Sprintf("s%03d", i), "n1", "1")
		}
		pass(2 * time.Minute)
		if st := c.Status(); st.State != Synced || st.Watches != plainWatches || st.Polled != 0 {
			t.Errorf("after half of them are gone: %+v", st)
		}
	})
}

// What an earlier run has handed over is removed only when it is certain that it is gone.
func TestWhatIsKnownStaysUntilItIsCertainlyGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.register("web", "n1", "web-1", Passing)
		known := map[string][]Instance{"web": {{Node: "n9", ID: "web-9"}}, "lost": {{Node: "n1", ID: "lost-1"}}}
		f.lie(lies{Services: map[string]bool{"lost": true}, Nodes: map[string]bool{"n9": true}, NoLeader: true})
		c, got := follow(t, f, Config{Token: secret, Known: known})
		pass(5 * time.Minute)
		if got.count() != 0 || c.Status().Synced {
			t.Errorf("while nothing can be read: %d calls, %+v", got.count(), c.Status())
		}
		f.lie(lies{})
		pass(5 * time.Minute)
		if err := got.differs(); err != nil || !c.Status().Synced {
			t.Errorf("%v, %+v", err, c.Status())
		}
	})
}

func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"https://consul.example.com": "consul.example.com:8501", "http://10.0.0.1/": "10.0.0.1:8500", "https://[fd00::1]:443": "[fd00::1]:443",
	} {
		if u, err := parseAddress(address); err != nil || u.Host != want {
			t.Errorf("%s: %v, %v", address, u, err)
		}
	}
	for _, address := range []string{"", "consul:8500", "ftp://consul", "https://me:secret@consul", "https://consul/v1", "https://consul?x", "https://\x00"} {
		err := New(Config{Address: address}).Run(t.Context(), &held{})
		if err == nil || !strings.Contains(err.Error(), "want http") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
}
