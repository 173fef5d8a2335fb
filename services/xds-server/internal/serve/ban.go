package serve

import (
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// bans are the identities that administrators have shut out, each with what its streams are told.
type bans struct {
	statuses atomic.Pointer[map[string]error]
}

// of returns why an authenticated caller is refused, nil if it is not. A caller of the plaintext port has no identity
// that could be banned.
func (idents *bans) of(peer *auth.Peer) error {
	refusals := idents.statuses.Load()
	if refusals == nil || peer == nil {
		return nil
	}
	return (*refusals)[peer.ID.String()]
}

// EnforceBans ends the streams of identities that the state bans, and refuses new ones until it no longer does. The
// client of config-watcher calls it as soon as it holds a revision with other bans: before the revision is applied,
// which may wait for proxies that are busy.
func (s *Server) EnforceBans(state *mesh.Snapshot) {
	refusals := map[string]error{}
	for _, b := range state.IdentityBans() {
		text := fmt.Sprintf("identity %s is banned from this mesh", b.GetIdentity())
		if b.GetReason() != "" {
			text += ": " + b.GetReason()
		}
		if b.GetUntil() != nil {
			text += fmt.Sprintf(" (until %s)", b.GetUntil().AsTime().Format("2006-01-02T15:04:05Z07:00"))
		}
		refusals[b.GetIdentity()] = status.Error(codes.PermissionDenied, text+"; an administrator lifts it with `fairlead config unban`")
	}
	s.bans.statuses.Store(&refusals)
	ended := 0
	for _, st := range s.all() {
		if why := s.bans.of(st.peer); why != nil {
			st.end(why)
			ended++
		}
	}
	s.log.Info("bans of identities have changed", "banned", len(refusals), "streams_ended", ended)
}

// Banned returns why an authenticated caller is shut out of the mesh, nil if it is not.
func (s *Server) Banned(caller auth.Peer) error { return s.bans.of(&caller) }

// refuseBanned is asked when a stream is registered, so that EnforceBans either finds it or has been here before it.
func (s *Server) refuseBanned(st *stream) error {
	why := s.bans.of(st.peer)
	if why != nil {
		s.metrics.banned.Inc()
	}
	return why
}
