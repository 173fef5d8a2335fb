package serve

import (
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/plan"
)

// manyNames is the number of names from which a client is expected to request all that its class lists.
const manyNames = 16

// subscribe adds names to a subscription, plans them in the class and charges the account.
func (st *stream) subscribe(sub *subscription, names []string) error {
	if len(names) > manyNames {
		var t plan.Tally
		for _, name := range names {
			t.AddString(name)
		}
		if done, err := st.subscribeListing(sub, t); done {
			return err
		}
	}
	for part := range slices.Chunk(names, planAtOnce) {
		if err := st.subscribePart(sub, part); err != nil {
			return err
		}
	}
	st.plan(sub, nil)
	return nil
}

// planAtOnce is how many names are planned before other streams and revisions get their turn: less than 1 ms.
const planAtOnce = 64

func (st *stream) subscribePart(sub *subscription, names []string) error {
	var added []string
	for _, name := range names {
		if name == "*" {
			continue
		}
		if len(name) > st.server.maxNameBytes {
			return status.Errorf(codes.InvalidArgument, "resource name of %d bytes, at most %d are taken", len(name), st.server.maxNameBytes)
		}
		if sub.names.Has(name) {
			continue
		}
		if err := st.countName(name); err != nil {
			return err
		}
		added = append(added, name)
	}
	slices.Sort(added)
	for i := len(added) - 1; i > 0; i-- {
		if added[i] == added[i-1] {
			st.uncountName(added[i])
		}
	}
	added = slices.Compact(added)
	sub.names.Add(added)
	if len(added) == 0 {
		return nil
	}
	st.plan(sub, added)
	return st.chargeNewNames(sub, added)
}

// subscribeListing does the work of subscribe for a client that requests by name exactly what its class lists. The
// stream then shares the names of the listing, and they need not be planned one by one.
func (st *stream) subscribeListing(sub *subscription, names plan.Tally) (done bool, err error) {
	if names.Count() <= manyNames || sub.names.Len() > 0 || sub.wildcard || sub.url == resource.VirtualHostType {
		return false, nil
	}
	st.class.Plan(st, sub.url, false, nil)
	l := st.class.Snapshot().Type(sub.url).Listing("")
	if !l.HasNames(names) {
		return false, nil
	}
	if st.nameBytes += l.NameBytes + len(l.Names)*nameOverhead; st.nameBytes > st.server.maxSubscribedBytes {
		return true, errTooManyNames
	}
	sub.names.SetShared(l.Names)
	return true, nil
}

// plan makes the class build what the subscription has added. The stream keeps the class's copy of each name, so that
// the text is shared.
func (st *stream) plan(sub *subscription, added []string) {
	listed := sub.wildcard || sub.url == resource.VirtualHostType
	if len(added) == 0 && (!listed || sub.planned) {
		return
	}
	st.account.Planning.Lock()
	st.class.Plan(st, sub.url, listed, added)
	st.account.Planning.Unlock()
	sub.planned = listed || sub.planned
	current := st.class.Snapshot().Type(sub.url)
	for _, name := range added {
		if item, _ := current.Get(name); item.Blob != nil {
			sub.names.Intern(item.Blob.Name())
		}
	}
}

func (st *stream) unsubscribe(sub *subscription, names []string) {
	var dropped []string
	for _, name := range names {
		if !sub.names.Remove(name) {
			continue
		}
		st.uncountName(name)
		if sub.chargedNames.Remove(name) {
			st.refundAccount(name)
		}
		sub.absent.Remove(name)
		sub.requested.Remove(name)
		sub.deferred.Remove(name)
		if !sub.wildcard {
			sub.dirty.Remove(name)
			delete(sub.rejectedVersions, name)
		}
		if sub.url == resource.RouteType {
			st.dropRouteConfig(name)
		}
		dropped = append(dropped, name)
	}
	for part := range slices.Chunk(dropped, planAtOnce) {
		st.account.Planning.Lock()
		st.class.Release(st, sub.url, part)
		st.account.Planning.Unlock()
	}
}
