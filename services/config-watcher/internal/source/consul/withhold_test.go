package consul

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// asked is a Follower that notes what is to be read again.
type asked struct {
	undeclared
	services [][]string
}

// Refresh implements Follower.
func (a *asked) Refresh(services ...string) { a.services = append(a.services, services) }

// played is a reader whose readings the test makes.
type played struct {
	*reader
	t     *testing.T
	clock *testkit.Clock
	mesh  *mesh
	asked *asked
}

func play(t *testing.T) *played {
	t.Helper()
	p := &played{t: t, clock: testkit.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)), asked: &asked{},
		mesh: &mesh{t: t, objects: map[object.Key]*object.Object{}}}
	p.reader = newReader("east", &Config{Log: testkit.Logger(t), Clock: p.clock}, p.mesh.handle)
	var f Follower = p.asked
	p.follower.Store(&f)
	p.rules("consul")
	return p
}

// rules declares that all services are in a namespace.
func (p *played) rules(namespace string) {
	p.declare(&declaration{Registry: registry.Registry{Name: "east", Datacenter: "dc1", Domain: "consul",
		Rules: []registry.Rule{{Services: []string{"*"}, Namespace: namespace}}}})
}

// services are n of them, with so many instances each.
func services(n, each int) map[string][]registry.Instance {
	out := map[string][]registry.Instance{}
	for i := range n {
		name := fmt.Sprintf("s%03d", i)
		out[name] = instances(name, each)
	}
	return out
}

// read makes a complete reading.
func (p *played) read(catalog map[string][]registry.Instance) {
	p.Names(sorted(catalog))
	for _, name := range sorted(catalog) {
		p.Service(name, catalog[name])
	}
	p.Whole(true)
}

// has checks how many ServiceEntries and WorkloadEntries there are, and how many services and endpoints are withheld.
func (p *played) has(entries, workloads, services, endpoints int) {
	p.t.Helper()
	var have [2]int
	for key := range p.mesh.objects {
		if key.Kind == "ServiceEntry" {
			have[0]++
		} else {
			have[1]++
		}
	}
	held := map[string]int{}
	for _, w := range p.Status().Withheld {
		held[w.What] = w.Objects
	}
	if have != [2]int{entries, workloads} || held["services"] != services || held["endpoints"] != endpoints {
		p.t.Errorf("%d services and %d endpoints, %d and %d of them withheld; want %d, %d, %d, %d", have[0], have[1], held["services"],
			held["endpoints"], entries, workloads, services, endpoints)
	}
	if n := p.Status().Objects; n != entries+workloads {
		p.t.Errorf("status counts %d objects", n)
	}
}

// TestWhatIsWithheldGivesWayToAServiceOfItsHost: the names of two services differ in case alone, so that their objects
// are the same ones. What is removed in the end is not the other one's.
func TestWhatIsWithheldGivesWayToAServiceOfItsHost(t *testing.T) {
	for before, now := range map[string]string{"Cache": "cache", "cache": "Cache"} {
		p := play(t)
		p.read(map[string][]registry.Instance{before: instances(before, 12)})
		p.has(1, 12, 0, 0)
		p.read(map[string][]registry.Instance{now: instances(now, 1)})
		p.has(1, 1, 0, 12)
		p.clock.Advance(withheld.Wait)
		p.confirm(p.clock.Now())
		p.read(map[string][]registry.Instance{now: instances(now, 1)})
		p.has(1, 1, 0, 0)
	}
}

// TestRulesThatAreChangedBackFindTheirServices: the Follower does not tell them again.
func TestRulesThatAreChangedBackFindTheirServices(t *testing.T) {
	p := play(t)
	p.read(services(2, 1))
	rules := p.decl.Rules
	p.declare(&declaration{Registry: registry.Registry{Name: "east", Datacenter: "dc1", Domain: "consul",
		Rules: []registry.Rule{{Services: []string{"other"}, Namespace: "consul"}}}})
	p.has(0, 0, 0, 0)
	p.declare(&declaration{Registry: registry.Registry{Name: "east", Datacenter: "dc1", Domain: "consul", Rules: rules}})
	p.has(2, 2, 0, 0)
}

// TestAnEmptiedCatalogIsHeld: nothing is removed until a second reading 30 s later, which is asked for; what is new
// counts at once, also as rules change.
func TestAnEmptiedCatalogIsHeld(t *testing.T) {
	p := play(t)
	p.read(services(20, 2))
	p.has(20, 40, 0, 0)
	p.read(map[string][]registry.Instance{"new": instances("new", 1)})
	p.has(21, 41, 20, 40)
	if row := p.row(); row.State != Held || row.Held != 60 || p.Status().State() != source.Held {
		t.Errorf("%+v", row)
	}
	p.rules("shop")
	p.has(21, 41, 20, 40)
	p.clock.Advance(withheld.Wait - 1)
	p.confirm(p.clock.Now())
	if len(p.asked.services) > 0 {
		t.Error("it is asked for too early")
	}
	p.clock.Advance(1)
	p.Whole(true) // the reading that was going on is not the second one
	p.has(21, 41, 20, 40)
	p.confirm(p.clock.Now())
	p.confirm(p.clock.Now())
	if len(p.asked.services) != 1 {
		t.Fatalf("asked for %v", p.asked.services)
	}
	p.Whole(false) // one with too few rights
	p.has(21, 41, 20, 40)
	p.Whole(true)
	p.has(1, 1, 0, 0)
	if st := p.Status(); st.State() == source.Held {
		t.Errorf("%+v", st)
	}
}

// TestInstancesThatServicesLackAreJudgedTogether: those of a catalog that was restored with all its names, each service
// in a reading of its own.
func TestInstancesThatServicesLackAreJudgedTogether(t *testing.T) {
	p := play(t)
	p.read(services(20, 3))
	p.read(services(20, 1))
	p.has(20, 60, 0, 40)
	// What comes back is in force as before, and some are changed.
	back := services(10, 3)
	for name, list := range back {
		list[2].Status = registry.StatusCritical
		p.Service(name, list)
	}
	p.Whole(true)
	p.has(20, 60, 0, 20)
	p.clock.Advance(withheld.Wait)
	p.confirm(p.clock.Now())
	if len(p.asked.services) != 1 || len(p.asked.services[0]) != 10 {
		t.Errorf("asked for %v", p.asked.services)
	}
	p.Whole(true)
	p.has(20, 40, 0, 0)
}

// TestFewAndHalfGoAtOnce, as what is deregistered one after the other does.
func TestFewAndHalfGoAtOnce(t *testing.T) {
	p := play(t)
	p.read(services(20, 2))
	p.read(services(10, 2))
	p.has(10, 20, 0, 0)
	for _, n := range []int{5, 1} {
		p.read(services(n, 2))
		p.has(n, 2*n, 0, 0)
	}
	p.read(nil)
	p.has(0, 0, 0, 0)
	// New ones are no reason to miss others less.
	p.read(services(12, 1))
	other := map[string][]registry.Instance{}
	for name, list := range services(60, 1) {
		other["x"+name] = list
	}
	p.read(other)
	p.has(72, 72, 12, 12)
}

// TestOneLargeServiceIsHeld: with most of the endpoints, though it is one of many services.
func TestOneLargeServiceIsHeld(t *testing.T) {
	p := play(t)
	all := services(20, 1)
	all["large"] = instances("large", 50)
	p.read(all)
	p.read(services(20, 1))
	p.has(21, 70, 0, 50)
	if n := p.Accept(); n != 50 {
		t.Errorf("accepts %d", n)
	}
	p.has(20, 20, 0, 0)
	if n := p.Accept(); n != 0 {
		t.Errorf("accepts %d again", n)
	}
}

// TestWhatIsBackIsNotHeld, wholly, and what is missing again waits anew.
func TestWhatIsBackIsNotHeld(t *testing.T) {
	p := play(t)
	p.read(services(20, 2))
	p.read(nil)
	p.has(20, 40, 20, 40)
	p.clock.Advance(withheld.Wait - 1)
	p.read(services(20, 2))
	p.has(20, 40, 0, 0)
	p.read(nil)
	p.clock.Advance(1)
	p.confirm(p.clock.Now())
	p.Whole(true)
	p.has(20, 40, 20, 40)
}

// TestRulesOfTheUserAreNotHeld: services that no rule matches any more go at once.
func TestRulesOfTheUserAreNotHeld(t *testing.T) {
	p := play(t)
	p.read(services(20, 2))
	p.declare(&declaration{Registry: registry.Registry{Name: "east", Datacenter: "dc1", Domain: "consul",
		Rules: []registry.Rule{{Services: []string{"s000"}, Namespace: "consul"}}}})
	p.read(services(1, 2))
	p.has(1, 2, 0, 0)
	p.forget()
	p.has(0, 0, 0, 0)
}

// TestTheFirstReadingIsComparedWithTheSavedState: that a restart comes between changes nothing.
func TestTheFirstReadingIsComparedWithTheSavedState(t *testing.T) {
	r := newRig(t)
	set := func(catalog map[string][]registry.Instance) {
		r.dc.set(func(m map[string][]registry.Instance) {
			clear(m)
			for name, list := range catalog {
				m[name] = list
			}
		})
	}
	set(services(20, 1))
	r.file("east.yaml", declare())
	r.run()
	r.rows("east SYNCED")
	held := func() {
		t.Helper()
		r.rows("east HELD: 20 of 20 endpoints, 20 of 20 services are missing")
		if n := len(r.mesh.copy()); n != 40 {
			t.Errorf("%d objects", n)
		}
	}
	r.stop()
	set(nil)
	r.run()
	held()
	r.run() // what is withheld is saved
	held()
	all := r.Sources()
	i := slices.IndexFunc(all, func(s source.Source) bool { return s.Name() == "consul/east" })
	if n := all[i].(source.Withholder).Accept(); n != 40 {
		t.Errorf("accepts %d", n)
	}
	r.mesh.becomes("[]")
	r.rows("east SYNCED")
}

// TestASecondReadingIsMadeAndRemoves, by Registries themselves.
func TestASecondReadingIsMadeAndRemoves(t *testing.T) {
	r := newRig(t)
	clock := testkit.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	r.dc.set(put("web", instances("web", 12)))
	r.file("east.yaml", declare())
	r.run(func(c *Config) { c.Clock, c.Secrets = clock, nil })
	r.rows("east SYNCED")
	r.dc.set(put("web", instances("web", 1)))
	r.rows("east HELD: 11 of 12 endpoints are missing")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		for ctx.Err() == nil {
			if clock.Waiters() > 0 {
				clock.Advance(checkEvery)
			}
		}
	}()
	r.mesh.becomes("[consul web.service.consul:1]")
}
