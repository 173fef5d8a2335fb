package serve

import (
	"crypto/sha256"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/acks"
	"fairlead.dev/services/xds-server/internal/serve/subscription"
	"fairlead.dev/services/xds-server/internal/serve/wire"
	"fairlead.dev/services/xds-server/internal/store"
)

// noteTrust is called after a request for the trust bundle. answered is the response that the request acknowledges or
// rejects, nil if it does neither. The first request tells which version the agent has from an earlier stream. The
// caller holds mu.
func (st *stream) noteTrust(req *wire.Request, answered *subscription.Response) {
	ledger := st.server.trust
	if st.agent == nil {
		st.agent = ledger.Open(st.node.ID, st.holder())
		if b := st.heldBundle(req); b != nil {
			ledger.Acked(st.agent, st.server.generation(b))
		}
	}
	if answered != nil && answered.Rejection == nil && len(answered.Blobs) > 0 {
		ledger.Acked(st.agent, st.server.generation(answered.Blobs[0]))
	}
}

// maxHeldBundles is how many versions of the bundle a client may say to hold. There is one.
const maxHeldBundles = 16

// heldBundle returns the current bundle if the first request for it says that the client holds it, so that it is not
// sent and not acknowledged on this stream.
func (st *stream) heldBundle(req *wire.Request) *store.Blob {
	if !st.delta || req.InitialTally.Count() > maxHeldBundles {
		return nil
	}
	current := st.class.Snapshot().Type(contract.SignedBundleType)
	for name, version := range req.Initial() {
		if item, _ := current.Get(name); item.Blob != nil && item.Blob.Version() == version {
			return item.Blob
		}
	}
	return nil
}

// generation of the bundle that a blob has.
func (s *Server) generation(b *store.Blob) acks.Point {
	return s.bundles.Point(b.Version(), b.Resource.GetResource().GetValue())
}

// holder is how the client has shown who it is.
func (st *stream) holder() (h acks.Holder) {
	switch {
	case st.peer == nil:
	case st.peer.Token != nil:
		h.PodUID = st.peer.Token.PodUID
	case st.peer.Method == auth.MethodMTLS:
		if leaf := auth.ClientCertificate(st.ctx); leaf != nil {
			sum := sha256.Sum256(leaf.Raw)
			h.Fingerprint = [acks.FingerprintBytes]byte(sum[:])
		}
	}
	return h
}

// Trust says which generation of the trust bundle the agents verify with.
func (s *Server) Trust() acks.State { return s.trust.State() }
