package configsource

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// rig is a queue, what is applied from it, and everything that went into it.
type rig struct {
	t        *testing.T
	queue    queue
	sequence uint64
	received *mesh.Snapshot
	applied  *mesh.Snapshot
	// behind are changes of several revisions that config-watcher will send as one, configured their keys that not only
	// revisions of endpoints have changed.
	behind     changes
	configured map[mesh.Key]bool
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, queue: newQueue(), received: mesh.Empty(), applied: mesh.Empty(), configured: map[mesh.Key]bool{}}
}

// commit commits a revision, which is received later.
func (r *rig) commit(upserts []*configv1.Resource, removed ...*configv1.ResourceKey) {
	r.sequence++
	r.received, _ = r.received.Apply(&configv1.Revision{Epoch: "e", Sequence: r.sequence}, upserts, removed)
	next := &revision{}
	next.receive(&configv1.WatchResponse{Upserts: upserts, Removed: removed})
	for _, c := range next.List {
		r.configured[mesh.KeyOf(c.key)] = r.configured[mesh.KeyOf(c.key)] || !onlyEndpoints(next.List)
	}
	r.behind.merge(next.List)
}

// receive commits a revision and receives it, with all that were committed before.
func (r *rig) receive(upserts []*configv1.Resource, removed ...*configv1.ResourceKey) {
	r.commit(upserts, removed...)
	next := &revision{at: position{revision: r.received.Revision()}}
	for _, marked := range []bool{false, true} {
		var part changes
		part.List = lists.Filter(r.behind.List, func(c change) bool { return r.configured[mesh.KeyOf(c.key)] != marked })
		next.receive(&configv1.WatchResponse{Upserts: part.upserts(), Removed: part.removals(), Endpoints: marked})
	}
	r.behind, r.configured = changes{}, map[mesh.Key]bool{}
	r.queue.add(next)
}

func (r *rig) apply(revisions ...*revision) {
	at := r.queue.position()
	for _, rev := range revisions {
		r.applied, _ = r.applied.Apply(at.revision, rev.upserts(), rev.removals())
	}
}

// agree fails the test unless everything that was received is applied.
func (r *rig) agree() {
	r.t.Helper()
	if r.applied.Revision().GetSequence() != r.sequence || r.queue.revisions != 0 || r.queue.size != 0 || len(r.queue.subjects) != 0 ||
		r.queue.urgent {
		r.t.Fatalf("at revision %d of %d, with %+v in the queue", r.applied.Revision().GetSequence(), r.sequence, r.queue)
	}
	held := map[string]string{}
	for _, part := range r.received.Held(1 << 20) {
		for i, k := range part.Keys {
			held[part.Kind+" "+k] = string(part.Hashes[16*i : 16*i+16])
		}
	}
	for _, part := range r.applied.Held(1 << 20) {
		for i, k := range part.Keys {
			if held[part.Kind+" "+k] != string(part.Hashes[16*i:16*i+16]) {
				r.t.Errorf("%s %s is not what was received last", part.Kind, k)
			}
			delete(held, part.Kind+" "+k)
		}
	}
	if len(held) > 0 {
		r.t.Errorf("%d resources are missing", len(held))
	}
}

// labelled is a service, or its endpoints, that says which version of the service it belongs to.
func labelled(host string, version int) *configv1.Resource {
	return meshtest.Service("default", host, 80, func(s *configv1.Service) { s.Labels = map[string]string{"version": fmt.Sprint(version)} })
}

func endpointsOf(host string, version, turn int) *configv1.Resource {
	set := meshtest.Endpoints("default", host, 80, fmt.Sprintf("10.0.%d.%d", version, turn))
	return set
}

// TestEndpointsAreNeverOfAnotherVersionThanTheirService applies random revisions in whatever order the queue gives. In
// some, a Service and its endpoints change together: whoever sees one of them must see the other.
func TestEndpointsAreNeverOfAnotherVersionThanTheirService(t *testing.T) {
	overtaken := 0
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a seed that a failure can be repeated with
		r := newRig(t)
		versions := map[string]int{}
		hosts := []string{"a", "b", "c", "d"}
		r.receive([]*configv1.Resource{meshtest.Mesh(nil)})
		for turn := range 200 {
			host := hosts[random.IntN(len(hosts))]
			receive := r.receive
			if random.IntN(3) == 0 {
				receive = r.commit
			}
			switch random.IntN(8) {
			case 0, 1:
				versions[host] = max(versions[host], -versions[host]) + 1
				receive([]*configv1.Resource{labelled(host, versions[host]), endpointsOf(host, versions[host], turn)})
			case 2:
				if versions[host] > 0 {
					receive(nil, labelled(host, 0).GetKey(), endpointsOf(host, 0, 0).GetKey())
					versions[host] = -versions[host]
				}
			case 3:
				receive([]*configv1.Resource{meshtest.Config(mesh.KindDestinationRule, "default", host, meshtest.DestinationRule(host, 1))})
			case 4, 5, 6:
				if versions[host] > 0 {
					receive([]*configv1.Resource{endpointsOf(host, versions[host], turn),
						meshtest.Workload("default", host, fmt.Sprintf("10.0.0.%d", turn))})
				}
			default:
				if versions[host] < 0 {
					versions[host] = -versions[host]
				}
			}
			before := r.applied.Revision().GetSequence()
			switch random.IntN(4) {
			case 0, 1:
				if len(r.queue.endpoints.List) > 0 {
					r.apply(r.queue.takeEndpoints())
					if len(r.queue.ordered) > 0 {
						overtaken++
					}
				}
			case 2:
				if len(r.queue.ordered) > 0 {
					r.apply(r.queue.takeOrdered(1 + random.IntN(6))...)
				}
			}
			if now := r.applied.Revision().GetSequence(); now < before || now > r.sequence {
				t.Fatalf("seed %d: revision %d after %d", seed, now, before)
			}
			for _, host := range hosts {
				svc := r.applied.ServiceIn(host, "default", 80)
				if svc == nil {
					continue
				}
				for _, set := range r.applied.Endpoints(svc, 80) {
					want := fmt.Sprintf("10.0.%s.", svc.GetLabels()["version"])
					if got := set.GetEndpoints()[0].GetAddress(); len(got) < len(want) || got[:len(want)] != want {
						t.Fatalf("seed %d: version %s of service %s has endpoint %s", seed, svc.GetLabels()["version"], host, got)
					}
				}
			}
		}
		r.receive(nil)
		for len(r.queue.ordered) > 0 {
			r.apply(r.queue.takeOrdered(1)...)
		}
		r.apply(r.queue.takeEndpoints())
		r.agree()
	}
	if overtaken < 100 {
		t.Errorf("endpoints have overtaken configuration %d times", overtaken)
	}
}

// A long queue is merged at its end, so that it never has more than its limits and one state of each resource.
func TestOrderedLaneIsBounded(t *testing.T) {
	r := newRig(t)
	r.receive([]*configv1.Resource{meshtest.Mesh(nil)})
	var large []*configv1.Resource
	for i := range 20_000 {
		large = append(large, labelled(fmt.Sprint("s", i), 0))
	}
	for range 4 {
		r.receive(large)
	}
	if r.queue.size > maxOrderedChanges+len(large) {
		t.Errorf("%d changes in the queue", r.queue.size)
	}
	r.apply(r.queue.takeOrdered(1 << 30)...)
	r.agree()
	for i := range 3 * maxOrdered {
		r.receive([]*configv1.Resource{labelled(fmt.Sprint("s", i%10), i)})
	}
	if n := len(r.queue.ordered); n > maxOrdered {
		t.Errorf("%d revisions in the queue", n)
	}
	r.apply(r.queue.takeOrdered(1 << 30)...)
	r.agree()
}
