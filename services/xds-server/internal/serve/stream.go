package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// stream is one ADS stream: the ConfigWatcher and the callbacks of its own go-control-plane server, and a Watcher of its class.
//
// Locks: mu may be held while calling the class, the engine and the budget, never the other way round.
type stream struct {
	server *Server
	delta  bool
	peer   *auth.Peer // nil on the plaintext port
	ctx    context.Context
	// account is charged for what the stream uses.
	account *account

	connectedAt time.Time
	// wake asks the stream's handler to try again after the order timeout.
	wake chan struct{}
	payloadQueue
	stallDetector
	ender
	changeQueue
	debugRequests debugRequests
	// reported is true while the reporter has yet to look at the stream.
	reportQueued atomic.Bool

	mu     sync.Mutex
	closed bool
	node   *class.Node
	class  *plan.Class
	// verified is true while the mesh has a Workload of the proxy's proven identity.
	verified bool
	// topics whose change may make the class another one.
	topics mesh.Topics
	// types in the order they are sent in.
	types []*subscription
	// aside are the types that were asked for and are not served.
	unservedTypes []string
	// warming are clusters that were sent before any endpoints were asked for.
	warmingClusters [][]*store.Blob
	// nameBytes counts the names that the stream keeps, names is what the account is charged for those that are not the
	// class's own.
	nameBytes int
	names     int64
	// gatedSince is when something first had to wait for what goes before it; zero if nothing waits.
	waitingSince time.Time
	// again is true if the flush in progress has found something for a type that it had passed.
	flushAgain bool
	// served is true while it is the stream's turn to use the budget.
	budgetTurn bool
	acked      *configv1.Revision
	virtualHosts
}

// identify reads the node of the first request and finds the class.
func (st *stream) identify(n *core.Node) error {
	if st.node != nil {
		return nil
	}
	node, err := class.ParseNode(n)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	node.VirtualHosts = st.delta
	if st.peer != nil {
		if err := node.Authorize(st.peer.ID); err != nil {
			return status.Error(codes.PermissionDenied, err.Error())
		}
	}
	if node.Type == class.Proxyless {
		// Each gRPC program of a workload has a stream of its own under one node id, and each has to be asked what it has acknowledged.
		node.ID = fmt.Sprintf("%s#%08x", node.ID, rand.Uint32())
	}
	for {
		state := st.server.engine.State()
		if state.Revision() == nil {
			return status.Error(codes.Unavailable, "no configuration received from config-watcher yet")
		}
		w, err := node.Workload(state)
		if err != nil {
			return status.Error(codes.PermissionDenied, err.Error())
		}
		key, topics := node.Key(state)
		if err := st.account.admit(node.ID, key); err != nil {
			return err
		}
		c := st.server.engine.Acquire(key, st)
		st.server.subscribers.replace(st, st.topics, topics)
		st.topics = topics
		if st.server.engine.State() == state {
			st.node, st.class, st.verified = node, c, w != nil && node.Identity != ""
			st.server.reports.opened(st)
			return nil
		}
		// The mesh has moved on in between, and regroup may have passed by this stream already.
		st.server.engine.Release(c, st)
		st.account.retract(key)
	}
}

// close gives back what the stream holds.
func (st *stream) close() {
	st.lock()
	defer st.unlock()
	if st.closed {
		return
	}
	st.closed = true
	st.server.budget.remove(st)
	st.server.subscribers.replace(st, st.topics, nil)
	for _, sub := range st.types {
		sub.open = watch{}
		if out := sub.outstanding; out != nil {
			st.endOutstanding(sub, out, "stream closed")
			out.release()
		}
		if st.class != nil && !sub.names.shared {
			st.class.Release(st, sub.url, sub.names.all())
		}
	}
	st.account.refundNames(st.names)
	st.account.close(st.class)
	if st.class != nil {
		st.server.engine.Release(st.class, st)
		st.server.reports.closed(st)
		st.server.onDemandNames.streamEnded(st.statusKey())
	}
	// The stream's loop may end later, and hold it until then: not with all that its client has asked for.
	st.types, st.warmingClusters, st.topics, st.virtualHosts = nil, nil, nil, virtualHosts{}
}
