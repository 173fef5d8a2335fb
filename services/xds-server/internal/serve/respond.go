package serve

import (
	"context"
	"maps"
	"slices"
	"strconv"

	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// draft is a response that may still not go out, and what becomes of the names it was made from.
type draft struct {
	*response
	// done names are settled by it; deferred, absent and found ones among them.
	done, deferred, absent, found []string
	// left is true if some of what is dirty has to wait for a later response.
	left bool
	// served tells, by route configuration, what of it goes out.
	served map[string]int
}

// respond makes the response to an open watch, if there is anything to say, and hands it to the server's loop. It returns false if the
// stream must wait for the budget; nothing has changed then.
func (s *stream) respond(sub *subscription) bool {
	later := s.referred(sub)
	if sub.dirty.len() == 0 && !sub.owed && (sub.deferred.len() == 0 || later) && !s.refuses(sub) {
		return true
	}
	snapshot := s.class.Snapshot()
	current := snapshot.Type(sub.url)
	s.free(sub, current)
	if sub.resend && sub.dirty.len() > 0 {
		s.touchAll(sub, current)
	}
	if !later {
		for _, name := range sub.deferred.sorted() {
			sub.dirty.add(name)
		}
		sub.deferred.clear()
	}
	d := &draft{response: &response{revision: snapshot.Revision}}
	d.stream = s
	if sub.url == resource.VirtualHostType {
		s.collectHosts(sub, current, d)
	} else {
		s.collect(sub, current, d, later)
	}
	if !s.delta && !sub.complete() {
		d.removed = nil // the state of the world cannot say that such a resource is gone
	}
	out, updated := d.response, d.blobs
	empty := len(out.blobs)+len(out.removed)+len(out.missing) == 0
	if empty && (!sub.owed || sub.url == resource.VirtualHostType) {
		s.settle(sub, d)
		sub.answered = sub.answered || sub.url != resource.VirtualHostType
		return true
	}
	if !s.delta && sub.complete() {
		out.blobs = s.whole(sub, current)
		updated = sub.news(out.blobs)
	}
	out.measure()
	if !s.server.budget.take(s, out.size, urgencyOf(sub.answered), s.served) {
		return false
	}
	out.held.Store(int64(out.size))
	if !s.hand(sub, current, out) {
		// The loop's buffer holds one response per type, so this needs a client that opens types by the dozen.
		out.release()
		return true
	}
	s.settle(sub, d)
	if !d.left && sub.dirty.len()+sub.deferred.len() == 0 {
		out.base = s.upTo
	}
	sub.open, sub.outstanding, sub.resend, sub.answered = watch{}, out, false, true
	out.round = s.server.pace.handed()
	sub.owed = sub.owed && sub.url == resource.VirtualHostType && s.unreleased()
	switch sub.url {
	case resource.ClusterType:
		s.followClusters(updated)
	case resource.RouteType:
		s.sentRoutes(out, updated)
	case resource.VirtualHostType:
		out.tables = slices.Sorted(maps.Keys(d.served))
		s.followMirrors(updated)
	}
	s.learn(sub, d.found)
	return true
}

// settle takes over what a draft says of the names.
func (s *stream) settle(sub *subscription, d *draft) {
	if len(d.done) == sub.dirty.len() {
		sub.dirty.clear()
	} else {
		for _, name := range d.done {
			sub.dirty.remove(name)
		}
	}
	if sub.fresh.is(d.done) {
		sub.fresh.clear()
	}
	for _, name := range d.done {
		if sub.fresh.len() == 0 {
			break
		}
		sub.fresh.remove(name)
	}
	for _, b := range d.blobs {
		if sub.absent.len() == 0 {
			break
		}
		sub.absent.remove(b.Name())
	}
	for _, name := range d.deferred {
		sub.deferred.add(name)
	}
	for _, name := range d.absent {
		sub.absent.add(name)
	}
	for name := range d.served {
		if t := s.byName[name]; t != nil {
			t.released, t.whole = true, false
		}
	}
	if len(d.missing) > 0 && sub.url == resource.VirtualHostType {
		for _, name := range s.expired.list {
			s.discharge(name)
		}
		s.expired.clear()
	}
	if sub.url == resource.VirtualHostType {
		s.ghosts.clear()
	}
}

// chunked types may be sent in parts: the client waits for each of their resources by itself. Clusters and listeners may not, because
// Envoy goes on to the next type, or says that it is ready, after the first response.
func (s *stream) chunked(sub *subscription) bool {
	return sub.url == resource.EndpointType || s.delta && (sub.url == resource.RouteType || sub.url == resource.VirtualHostType)
}

// collect puts what dirty names stand for into the response.
func (s *stream) collect(sub *subscription, current *plan.TypeSnapshot, d *draft, later bool) {
	size, chunked := 0, s.chunked(sub)
	if sub.dirty.ordered && len(sub.withheld) == 0 {
		if l := current.Listing(""); sub.dirty.is(l.Names) && (!chunked || l.Size <= s.server.maxResponseBytes) {
			d.blobs, d.done = slices.Clip(l.Blobs), slices.Clip(l.Names)
			return
		}
	}
	for _, name := range sub.dirty.sorted() {
		item, _ := current.Get(name)
		switch {
		case item.Pending:
			d.left = true // it is touched again when it is known
			continue
		case sub.wants(name, item) && item.Blob != nil:
			if sub.withheld[name] == item.Blob.Version() {
				break
			}
			if size += item.Blob.Size(); chunked && size > s.server.maxResponseBytes && len(d.blobs) > 0 {
				d.left = true
				return
			}
			d.blobs = append(d.blobs, item.Blob)
			if !item.Wildcard && sub.wildcard {
				d.found = append(d.found, name)
			}
		case later && !sub.fresh.has(name):
			d.deferred = append(d.deferred, name)
			sub.deferredAt = d.revision
		default:
			if sub.names.has(name) {
				d.absent = append(d.absent, name)
				if b := s.standIn(sub, name); b != nil {
					d.blobs = append(d.blobs, b)
				}
			}
			d.removed = append(d.removed, name)
		}
		d.done = append(d.done, name)
	}
}

// standIn is what a state-of-the-world client is sent for endpoints that it waits for and that there are none of, nil for anything else. A
// response of that protocol cannot say so, and Envoy neither uses a cluster nor acknowledges it before its endpoints have come: it would wait for endpoints
// that have gone since it was sent their cluster, and the update without the cluster for its acknowledgement.
func (s *stream) standIn(sub *subscription, name string) *store.Blob {
	if s.delta || sub.url != resource.EndpointType || !sub.fresh.has(name) {
		return nil
	}
	b, err := s.server.standIns.Put(sub.url, name, &endpoint.ClusterLoadAssignment{ClusterName: name})
	if err != nil { // a name that is not UTF-8: it cannot be sent, either
		return nil
	}
	return b
}

// collectHosts is collect for virtual hosts. All changes of one route configuration go in one response; the first response releases it.
func (s *stream) collectHosts(sub *subscription, current *plan.TypeSnapshot, d *draft) {
	d.missing = append(d.missing, s.expired.sorted()...)
	d.removed = append(d.removed, s.ghosts.sorted()...)
	d.served = map[string]int{}
	size, table, skip, alone := s.collectTables(current, d), "", false, false
	for _, name := range sub.dirty.sorted() {
		t := s.byName[tableOf(name)]
		if t == nil {
			d.left = true
			if !sub.names.has(name) { // its route configuration was given up
				d.done = append(d.done, name)
			}
			continue
		}
		if at := tableOf(name); at != table {
			// Another table: is there room for it beside those before?
			said := len(d.blobs) + len(d.removed)
			skip = size > s.server.maxResponseBytes || said > 0 && (t.alone || alone)
			table, alone, d.left = at, alone || t.alone && !skip, d.left || skip
		}
		if skip {
			continue
		}
		item, _ := current.Get(name)
		if item.Blob != nil && s.early(item.Blob) {
			d.left = true
			continue
		}
		d.served[table]++
		d.done = append(d.done, name)
		switch {
		case s.covers(sub, name, item) && item.Blob != nil:
			if sub.withheld[name] == item.Blob.Version() {
				break
			}
			size += item.Blob.Size()
			d.blobs = append(d.blobs, item.Blob)
			if !item.Wildcard {
				d.found = append(d.found, name)
			}
		case sub.fresh.has(name):
			d.absent = append(d.absent, name)
			d.missing = append(d.missing, name)
		default:
			if sub.names.has(name) {
				d.absent = append(d.absent, name)
			}
			d.removed = append(d.removed, name)
		}
	}
	s.releaseTables(d)
}

// collectTables puts the virtual hosts of tables that are to be sent whole into the response, and returns their bytes.
func (s *stream) collectTables(current *plan.TypeSnapshot, d *draft) (size int) {
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		t := s.byName[name]
		if !t.whole || t.hidden {
			continue
		}
		l := current.Listing(name + "/")
		if size += l.Size; size > s.server.maxResponseBytes && len(d.blobs) > 0 {
			d.left = true
			return size
		}
		d.served[name] += len(l.Blobs)
		d.blobs = append(d.blobs, l.Blobs...)
	}
	return size
}

// releaseTables adds what releases route configurations of which the response holds nothing.
func (s *stream) releaseTables(d *draft) {
	if len(s.byName) == 0 {
		return
	}
	said := map[string]bool{}
	for _, b := range d.blobs {
		said[tableOf(b.Name())] = true
	}
	for _, names := range [][]string{d.removed, d.missing} {
		for _, name := range names {
			said[tableOf(name)] = true
		}
	}
	hosts := s.of(resource.VirtualHostType)
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		if t := s.byName[name]; t.released || t.hidden || said[name] {
			continue
		}
		if _, ok := d.served[name]; !ok && (s.byName[name].whole && d.left || len(s.hostsIn(&hosts.dirty, name)) > 0) {
			continue // its virtual hosts come in a later response
		}
		d.removed = append(d.removed, none(name))
		d.served[name]++
	}
}

// refuses reports whether virtual hosts are to be answered with "not found", or removed because their route configuration was dropped.
func (s *stream) refuses(sub *subscription) bool {
	return sub.url == resource.VirtualHostType && s.expired.len()+s.ghosts.len() > 0
}

// measure works out the bytes of a response.
func (r *response) measure() {
	r.size = 0
	for _, b := range r.blobs {
		r.size += b.Size() + len(b.Name())
	}
	for _, names := range [][]string{r.removed, r.missing} {
		for _, name := range names {
			r.size += len(name)
		}
	}
}

// hand gives a response to the server's loop. The message is the stream's own, because the loop writes the nonce into it; the resources
// are added when it is sent.
func (s *stream) hand(sub *subscription, current *plan.TypeSnapshot, out *response) bool {
	if s.delta {
		m := &discovery.DeltaDiscoveryResponse{
			SystemVersionInfo: strconv.FormatUint(out.revision.GetSequence(), 10), TypeUrl: sub.url, RemovedResources: out.removed,
		}
		out.message = m
		select {
		case sub.open.deltaTo <- &deltaResponse{request: sub.open.delta, message: m, ctx: s.ctx}:
			return true
		default:
			return false
		}
	}
	m := &discovery.DiscoveryResponse{VersionInfo: s.worldVersion(sub, current), TypeUrl: sub.url}
	out.message = m
	select {
	case sub.open.worldTo <- &worldResponse{request: sub.open.world, message: m, ctx: s.ctx}:
		return true
	default:
		return false
	}
}

// whole lists all that the subscription covers. In place of a rejected version stands the last one that was
// acknowledged: a complete response that leaves it out would remove it.
func (s *stream) whole(sub *subscription, current *plan.TypeSnapshot) []*store.Blob {
	var blobs []*store.Blob
	take := func(name string, item plan.Item) bool {
		if item.Blob == nil || !sub.wants(name, item) {
			return true
		}
		b := item.Blob
		if sub.withheld[name] == b.Version() {
			b = sub.good[name]
		}
		if b != nil {
			blobs = append(blobs, b)
		}
		return true
	}
	if sub.wildcard {
		current.Scan(take)
		return blobs
	}
	sub.names.each(func(name string) bool {
		item, _ := current.Get(name)
		return take(name, item)
	})
	return blobs
}

// news are those of blobs that the client has not acknowledged: the dirty ones, and what has changed without the stream's having been told yet.
func (b *subscription) news(blobs []*store.Blob) (fresh []*store.Blob) {
	for _, blob := range blobs {
		if b.good[blob.Name()] != blob {
			fresh = append(fresh, blob)
		}
	}
	return fresh
}

// worldVersion is the version of the state that a state-of-the-world client holds after a response: a hash of the
// resources subscribed to, of rejected ones in the version that the client keeps.
func (s *stream) worldVersion(sub *subscription, current *plan.TypeSnapshot) string {
	if sub.wildcard && sub.names.len() == 0 && len(sub.withheld) == 0 {
		return current.Version()
	}
	return plan.VersionOf(s.whole(sub, current))
}

// deltaResponse and worldResponse carry a finished message through go-control-plane's loops.
type deltaResponse struct {
	request *cache.DeltaRequest
	message *discovery.DeltaDiscoveryResponse
	ctx     context.Context
}

func (r *deltaResponse) GetDeltaDiscoveryResponse() (*discovery.DeltaDiscoveryResponse, error) {
	return r.message, nil
}
func (r *deltaResponse) GetDeltaRequest() *discovery.DeltaDiscoveryRequest { return r.request }
func (r *deltaResponse) GetSystemVersion() (string, error)                 { return r.GetResponseVersion(), nil }
func (r *deltaResponse) GetResponseVersion() string                        { return r.message.GetSystemVersionInfo() }
func (r *deltaResponse) GetContext() context.Context                       { return r.ctx }

// What the client holds is this package's own business.
func (r *deltaResponse) GetNextVersionMap() map[string]string    { return nil }
func (r *deltaResponse) GetReturnedResources() map[string]string { return nil }

type worldResponse struct {
	request *cache.Request
	message *discovery.DiscoveryResponse
	ctx     context.Context
}

func (r *worldResponse) GetDiscoveryResponse() (*discovery.DiscoveryResponse, error) {
	return r.message, nil
}
func (r *worldResponse) GetRequest() *discovery.DiscoveryRequest { return r.request }
func (r *worldResponse) GetVersion() (string, error)             { return r.GetResponseVersion(), nil }
func (r *worldResponse) GetResponseVersion() string              { return r.message.GetVersionInfo() }
func (r *worldResponse) GetContext() context.Context             { return r.ctx }

func (r *worldResponse) GetReturnedResources() map[string]string { return nil }

var (
	_ cache.DeltaResponse = (*deltaResponse)(nil)
	_ cache.Response      = (*worldResponse)(nil)
	_ cache.ConfigWatcher = (*stream)(nil)
)
