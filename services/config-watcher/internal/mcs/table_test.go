package mcs_test

import (
	"testing"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/mcs"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/status"
)

func oneCart(clusters ...string) *world {
	w := &world{carts: map[string]*cart{}, exports: map[string]int{}, imports: map[string]*imported{}, pods: map[string]int{}}
	for _, c := range clusters {
		w.carts[c] = &cart{}
	}
	return w
}

// TestWithoutDiscoveryServicesPassUnchanged: exports that are made before exports decide change nothing, and are told
// what they are worth.
func TestWithoutDiscoveryServicesPassUnchanged(t *testing.T) {
	w := oneCart("west", "east")
	var got []normalise.Change
	p := newPlane("west", mcs.Config{Hosts: true, Strict: true})
	w.exports["west"] = 1
	w.imports["west"] = &imported{headless: true}
	p.submit(t, []normalise.Change{w.service("west", "west"), w.service("west", "east"), w.slice("west", "west"), w.slice("west", "east"),
		w.export("west", "west"), w.importOf("west", "west")})
	got = p.discovered
	for _, c := range got {
		if c.Key.Kind == "Service" && c.Object.ClusterSet != nil {
			t.Errorf("%s has %+v", c.Key, c.Object.ClusterSet)
		}
	}
	if all := p.endpoints("west", ordinary); len(all) != 2 {
		t.Errorf("endpoints %v", all)
	}
	if len(p.statuses) != 1 {
		t.Errorf("statuses %v", p.statuses)
	}
}

// TestOnlyDiscoveredExportsAreTold: an export of a namespace that the mesh does not discover is left to others, and one
// that is gone is forgotten.
func TestOnlyDiscoveredExportsAreTold(t *testing.T) {
	w := oneCart("west")
	w.exports["west"] = 1
	p := newPlane("west", mcs.Config{Discovery: true})
	p.table.Submit(t.Context(), []normalise.Change{w.service("west", "west"), w.export("west", "west")})
	tell := func(changes ...normalise.Change) {
		p.table.Discovered(changes, p.mesh.Settings(), map[string]status.Sink{"kubernetes": p.statuses})
	}
	if tell(); len(p.statuses) != 0 {
		t.Errorf("an export that was not discovered is told %v", p.statuses)
	}
	if tell(w.export("west", "west")); len(p.statuses) != 1 {
		t.Errorf("statuses %v", p.statuses)
	}
	delete(w.exports, "west")
	if p.submit(t, []normalise.Change{w.export("west", "west")}); len(p.statuses) != 0 {
		t.Errorf("an export that is gone is told %v", p.statuses)
	}
}

// refusing is a sink without room.
type refusing struct{ sink }

func (refusing) Put(status.Target, *status.Status) bool { return false }

// TestConditionsWaitForRoom: what a sink has no room for is offered again.
func TestConditionsWaitForRoom(t *testing.T) {
	w := oneCart("west")
	w.exports["west"] = 1
	p := newPlane("west", mcs.Config{Discovery: true})
	p.table.Submit(t.Context(), []normalise.Change{w.service("west", "west"), w.export("west", "west")})
	p.table.Discovered(p.discovered, p.mesh.Settings(), map[string]status.Sink{"kubernetes": refusing{p.statuses}})
	p.table.Discovered(nil, p.mesh.Settings(), map[string]status.Sink{"kubernetes": p.statuses})
	st := p.statuses[object.Key{Group: kinds.GroupMCS, Kind: kinds.ServiceExport, Namespace: "shop", Name: "cart"}]
	if st == nil || !st.Get("Valid").Holds || !st.ConditionsAlone {
		t.Errorf("status %+v", st)
	}
}
