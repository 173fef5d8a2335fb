package serve

import (
	"maps"
	"sort"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// table is a route configuration that the client holds and whose virtual hosts are resources of their own, named
// "<route configuration>/<host>". The client says only once that it takes virtual hosts; it is sent those of every route configuration
// that it subscribes to, after the configuration itself, for it drops those that it has no configuration for.
type table struct {
	// released is true once the client has its first virtual hosts: until then, even if there are none, its listener waits.
	released bool
	// hidden is true while the configuration that the client holds takes no virtual hosts. The client keeps those it has and shows them
	// again later, so names that change meanwhile are kept.
	hidden  bool
	changed nameSet
	// whole is true while all its virtual hosts are to be sent, without their names being marked.
	whole bool
	// alone is true after a rejection that may be another table's fault: its virtual hosts are sent apart from others'.
	alone bool
}

// tables are what a stream knows of its virtual hosts.
type tables struct {
	byName map[string]*table
	// retained are the route configurations that the client held when it connected: only theirs are the virtual hosts it says it holds.
	retained map[string]struct{}
	// routesSeen is true once the client has said which route configurations it holds.
	routesSeen bool
	// stated are versions of virtual hosts that the client says it holds, by route configuration, until that configuration lives.
	stated map[string]map[string]string
	// statedListing takes the place of stated where the client says it holds just what a listing has.
	statedListing *plan.Listing
	// ghosts are virtual hosts of route configurations that the client has dropped. It has dropped these too, but would say that it holds
	// them when it connects again: they are removed by name.
	ghosts nameSet
	// expired names were asked for on demand beyond the limit: they are answered with "not found" and forgotten.
	expired nameSet
	warned  bool
}

// tableOf returns the name of the route configuration that a virtual host belongs to: what precedes the last slash.
func tableOf(host string) string { return host[:max(strings.LastIndexByte(host, '/'), 0)] }

// none is a name that no virtual host has: its removal releases a route configuration that has none.
func none(table string) string { return table + "/none" }

// touchHost marks a virtual host if it belongs to a configuration that the client holds.
func (s *stream) touchHost(hosts *subscription, name string) bool {
	t := s.byName[tableOf(name)]
	switch {
	case t == nil:
		return false
	case t.hidden:
		t.changed.add(name)
		return false
	case t.whole && !hosts.names.has(name):
		return true // it goes out with the others
	default:
		s.touch(hosts, name)
		return true
	}
}

// touchTable marks all virtual hosts of a route configuration.
func (s *stream) touchTable(hosts *subscription, current *plan.TypeSnapshot, name string) {
	if t := s.byName[name]; t != nil && t.whole {
		return
	}
	s.eachHost(hosts, current, name, func(host string, _ *store.Blob) { s.touch(hosts, host) })
}

// eachHost calls f for the virtual hosts that a table is to have.
func (s *stream) eachHost(hosts *subscription, current *plan.TypeSnapshot, name string, f func(host string, b *store.Blob)) {
	current.ScanPrefix(name+"/", func(host string, item plan.Item) bool {
		if tableOf(host) == name && (item.Wildcard || hosts.names.has(host)) {
			f(host, item.Blob)
		}
		return true
	})
}

// touchTables marks all virtual hosts of all route configurations.
func (s *stream) touchTables(hosts *subscription, current *plan.TypeSnapshot) {
	for name, t := range s.byName {
		if !t.hidden {
			s.touchTable(hosts, current, name)
		}
	}
}

// sentRoutes is called when a response with route configurations was handed over: their virtual hosts follow it.
func (s *stream) sentRoutes(out *response, sent []*store.Blob) {
	for _, b := range sent {
		if b.VirtualHosts && s.delta {
			if s.openTable(b.Name()) {
				out.tables = append(out.tables, b.Name())
			}
		} else {
			s.hideTable(b.Name())
		}
	}
	for _, name := range out.removed {
		s.hideTable(name)
	}
}

// openTable notes that the client holds a route configuration that takes virtual hosts, and reports whether it is new.
func (s *stream) openTable(name string) bool {
	t, ok := s.byName[name]
	if !ok {
		if s.byName == nil {
			s.byName = map[string]*table{}
		}
		t = &table{}
		s.byName[name] = t
		if hosts := s.of(resource.VirtualHostType); hosts != nil {
			s.fill(hosts, name, t)
		}
		return true
	}
	if t.hidden {
		t.hidden = false
		if hosts := s.of(resource.VirtualHostType); hosts != nil {
			s.touchTable(hosts, s.class.Snapshot().Type(hosts.url), name)
			for _, host := range t.changed.list {
				s.touch(hosts, host)
			}
		}
		t.changed.clear()
		if hosts := s.of(resource.VirtualHostType); hosts != nil {
			hosts.owed = s.unreleased()
		}
	}
	return false
}

// hideTable notes that a route configuration takes no virtual hosts, or is gone.
func (s *stream) hideTable(name string) {
	t := s.byName[name]
	if t == nil || t.hidden {
		return
	}
	t.hidden, t.whole = true, false
	hosts := s.of(resource.VirtualHostType)
	if hosts == nil {
		return
	}
	s.eachHost(hosts, s.class.Snapshot().Type(hosts.url), name, func(host string, _ *store.Blob) { t.changed.add(host) })
	for _, host := range s.hostsIn(&hosts.dirty, name) {
		t.changed.add(host)
		hosts.dirty.remove(host)
	}
	hosts.owed = s.unreleased()
}

// closeTable forgets a route configuration, with all its virtual hosts: the client has dropped it.
func (s *stream) closeTable(name string) {
	if _, ok := s.retained[name]; ok {
		delete(s.retained, name)
		s.forgetStated(name)
	}
	t, ok := s.byName[name]
	if !ok {
		return
	}
	delete(s.byName, name)
	hosts := s.of(resource.VirtualHostType)
	if hosts == nil {
		return
	}
	if t.released {
		for _, host := range s.class.Snapshot().Type(hosts.url).Listing(name + "/").Names {
			s.ghosts.add(host)
		}
	}
	for _, host := range s.hostsIn(&hosts.dirty, name) {
		hosts.dirty.remove(host)
	}
	for _, host := range s.hostsIn(&hosts.unsure, name) {
		s.trust(hosts, host)
	}
	maps.DeleteFunc(hosts.withheld, func(host, _ string) bool { return tableOf(host) == name })
	hosts.owed = s.unreleased()
}

// hostsIn lists those of a set that belong to a route configuration.
func (s *stream) hostsIn(set *nameSet, table string) []string {
	var found []string
	for _, host := range set.list {
		if tableOf(host) == table {
			found = append(found, host)
		}
	}
	return found
}

// unreleased reports whether some route configuration waits for its first virtual hosts.
func (s *stream) unreleased() bool {
	for _, t := range s.byName {
		if !t.released && !t.hidden {
			return true
		}
	}
	return false
}

// fill marks the virtual hosts of a new table that the client does not hold, and those that it holds and should not.
func (s *stream) fill(hosts *subscription, name string, t *table) {
	for _, host := range s.hostsIn(&s.ghosts, name) {
		s.ghosts.remove(host)
	}
	current := s.class.Snapshot().Type(hosts.url)
	held := s.stated[name]
	_, retained := s.retained[name]
	if retained && s.statedListing != nil {
		t.released = true
		s.compareListing(hosts, current, name)
		return
	}
	if !retained || len(held) == 0 {
		s.forgetStated(name)
		hosts.owed = true
		if len(hosts.withheld)+hosts.unsure.len()+hosts.names.len()+hosts.dirty.len() == 0 {
			t.whole = true
			return
		}
		s.touchTable(hosts, current, name)
		hosts.names.each(func(host string) bool {
			if tableOf(host) == name {
				s.touch(hosts, host)
			}
			return true
		})
		return
	}
	t.released = true
	s.adopt(hosts, held)
	current = s.class.Snapshot().Type(hosts.url)
	s.eachHost(hosts, current, name, func(host string, b *store.Blob) {
		if b == nil || held[host] != b.Version() {
			s.touch(hosts, host)
		}
	})
	for host := range held {
		if item, _ := current.Get(host); !item.Wildcard && !hosts.names.has(host) {
			s.touch(hosts, host)
		}
	}
	s.forgetStated(name)
}

// compareListing marks the virtual hosts of a table that are not as in the listing that the client says it holds.
func (s *stream) compareListing(hosts *subscription, current *plan.TypeSnapshot, name string) {
	is, was := current.Listing(name+"/"), s.statedListing
	i := sort.SearchStrings(was.Names, name+"/")
	for _, b := range is.Blobs {
		for ; i < len(was.Names) && was.Names[i] < b.Name(); i++ {
			s.touch(hosts, was.Names[i]) // gone meanwhile
		}
		if i < len(was.Names) && was.Names[i] == b.Name() {
			if i++; was.Blobs[i-1] == b {
				continue
			}
		}
		s.touch(hosts, b.Name())
	}
	for ; i < len(was.Names) && strings.HasPrefix(was.Names[i], name+"/"); i++ {
		s.touch(hosts, was.Names[i])
	}
}

func (s *stream) forgetStated(name string) {
	for host := range s.stated[name] {
		s.discharge(host)
	}
	delete(s.stated, name)
}

// openHosts takes over the first request for virtual hosts: what the client says it holds counts once the route configuration lives.
func (s *stream) openHosts(hosts *subscription, holds *holding) error {
	s.plan(hosts, nil)
	if l := s.class.Snapshot().Type(hosts.url).Listing(""); !holds.none() && l.HasVersions(holds.tally) {
		s.statedListing = l
		for name, t := range s.byName {
			s.fill(hosts, name, t)
		}
		hosts.answered = hosts.dirty.len() == 0 && !hosts.owed
		return nil
	}
	held := holds.all()
	for host, version := range held {
		name := tableOf(host)
		if _, ok := s.retained[name]; s.routesSeen && !ok {
			continue
		}
		if len(host) > s.server.maxNameBytes {
			continue
		}
		if reason := s.charge(host); reason != "" {
			return s.account.refuse(s.node.ID, BudgetNames, reason)
		}
		if s.stated == nil {
			s.stated = map[string]map[string]string{}
		}
		if s.stated[name] == nil {
			s.stated[name] = map[string]string{}
		}
		s.stated[name][host] = version
	}
	for name, t := range s.byName {
		s.fill(hosts, name, t)
	}
	if len(held) == 0 {
		s.recall(hosts)
	}
	hosts.answered = len(hosts.dirty.list) == 0 && !hosts.owed && len(held) > 0
	return nil
}

// openRoutes takes over which route configurations the client says it holds; those that are not sent again live from here.
func (s *stream) openRoutes(routes *subscription, held map[string]string) {
	s.routesSeen = true
	if len(held) > 0 {
		s.retained = make(map[string]struct{}, len(held))
	}
	current := s.class.Snapshot().Type(routes.url)
	for name := range held {
		if routes.names.has(name) {
			s.retained[name] = struct{}{}
		}
	}
	for name := range s.retained {
		if item, _ := current.Get(name); item.Blob != nil && item.Blob.VirtualHosts && !routes.dirty.has(name) {
			s.openTable(name)
		}
	}
	for name := range s.stated {
		if _, ok := s.retained[name]; !ok {
			s.forgetStated(name)
		}
	}
}

// rejectedRoutes takes back that the client holds route configurations that it had from a response it has rejected.
func (s *stream) rejectedRoutes(out *response) {
	for _, name := range out.tables {
		if _, ok := s.retained[name]; !ok {
			s.closeTable(name)
		}
	}
}

// covers reports whether the item is something that the client is to have.
func (s *stream) covers(sub *subscription, name string, item plan.Item) bool {
	if sub.url != resource.VirtualHostType {
		return sub.wants(name, item)
	}
	t := s.byName[tableOf(name)]
	return t != nil && !t.hidden && (item.Wildcard || sub.names.has(name))
}
