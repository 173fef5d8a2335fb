package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/acks"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/quota"
	"fairlead.dev/services/xds-server/internal/serve/subscription"
	"fairlead.dev/services/xds-server/internal/serve/wire"
)

// stream is one ADS stream. It implements plan.Watcher for its class and quota.Waiter. The fields below mu are guarded
// by mu; doc.go gives the order of the locks.
type stream struct {
	server *Server
	grpc   grpc.ServerStream
	delta  bool
	peer   *auth.Peer // nil on the plaintext port
	ctx    context.Context
	// account is charged for what the stream uses.
	account *quota.Account

	connectedAt time.Time
	// wake asks Server.handle to call flushAfterTimeout once the order timeout has passed.
	wake chan struct{}
	stallDetector
	ender
	changeQueue
	debugRequests debugRequests
	// reportQueued is true while the stream is in reports.dirty.
	reportQueued atomic.Bool
	// halfClosed is true once the client has said that it has no more requests.
	halfClosed atomic.Bool

	mu     sync.Mutex
	closed bool
	node   *class.Node
	class  *plan.Class
	// verified is true while the mesh has a Workload of the proxy's verified identity.
	verified bool
	// workload is the name of that Workload; health is what the proxy's agent has told of it, nil before.
	workload string
	health   *configv1.WorkloadHealth
	// topics are those whose change may put the proxy into another class.
	topics mesh.Topics
	// client is what the client subscribes to, and outstanding the responses that it has not answered.
	client      *subscription.Client
	outstanding []*delivery
	outbox      outbox
	// agent is set once the client has asked for the trust bundle.
	agent *acks.Agent
	// unservedTypes are the type URLs that were requested and that no translator makes.
	unservedTypes []string
	// inTurn is true while FlushInTurn runs: it is the stream's turn to use bytes.
	inTurn bool
}

// identify reads the node of the first request, checks it against the peer's identity and joins the stream to its
// class. The caller holds mu. Later calls do nothing.
func (st *stream) identify(req *wire.Request) error {
	if st.node != nil {
		return nil
	}
	claims, err := req.Node()
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "%v: %v", class.ErrMalformed, err)
	}
	node, err := class.ParseNode(claims)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	node.VirtualHosts = st.delta
	if err := st.checkRegistration(node.RegisterGroup); err != nil {
		return err
	}
	if st.peer != nil {
		if err := node.Authorize(st.peer.ID); err != nil {
			return status.Error(codes.PermissionDenied, err.Error())
		}
	}
	if node.Type == class.Proxyless {
		// All proxyless gRPC clients of a workload share one node id, and each has a stream and a status of its own.
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
		if err := st.account.Admit(node.ID, key); err != nil {
			return err
		}
		c := st.server.engine.Acquire(key, st)
		st.server.subscribers.replace(st, st.topics, topics)
		st.topics = topics
		if st.server.engine.State() == state {
			st.node, st.class, st.verified, st.workload = node, c, w != nil && node.Identity != "", w.GetName()
			st.server.reports.opened(st)
			return nil
		}
		// A newer snapshot was applied meanwhile, and Server.reclassify may have run before the stream was in the
		// index.
		st.server.engine.Release(c, st)
		st.account.Retract(key)
	}
}

// close releases everything that the stream holds: class, names, budget, account. Server.handle calls it when the
// stream ends.
func (st *stream) close() {
	st.lock()
	defer st.unlock()
	if st.closed {
		return
	}
	st.closed = true
	st.server.unsent.Remove(st, &st.account.Unsent)
	st.server.subscribers.replace(st, st.topics, nil)
	for _, d := range st.outstanding {
		st.endDelivery(d, "stream closed")
		d.release()
	}
	st.client.Close(st.class != nil)
	if st.agent != nil {
		st.server.trust.Close(st.agent)
	}
	if st.class == nil {
		st.account.Close(nil)
	} else {
		st.account.Close(st.class.Key())
		st.server.engine.Release(st.class, st)
		st.server.reports.closed(st)
		st.server.onDemandNames.StreamEnded(st.proxyKey())
	}
	// receive and transmit may end later than this and keep the stream reachable until then; the names must not stay
	// with it.
	st.outbox.unsent, st.outstanding, st.topics = nil, nil, nil
}
