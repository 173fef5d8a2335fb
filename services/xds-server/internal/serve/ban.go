package serve

import (
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// bans has the status with which the streams of each banned identity end.
type bans struct {
	statuses atomic.Pointer[map[string]error]
}

// of returns the status for a banned caller, nil for others. Callers of the plaintext port have no identity, so that
// they are never banned.
func (idents *bans) of(peer *auth.Peer) error {
	refusals := idents.statuses.Load()
	if refusals == nil || peer == nil {
		return nil
	}
	return (*refusals)[peer.ID.String()]
}

// EnforceBans ends the streams of the identities that the snapshot bans, and refuses new ones until a later snapshot
// lifts the ban. The config source calls it as soon as a revision with other bans has arrived, before Apply: Apply may
// have to wait until proxies have acknowledged the revision before.
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
		if err := s.bans.of(st.peer); err != nil {
			st.end(err)
			ended++
		}
	}
	s.log.Info("bans of identities have changed", "banned", len(refusals), "streams_ended", ended)
}

// Banned returns the status for a banned caller, nil for others. Other services of xds-server call it.
func (s *Server) Banned(caller auth.Peer) error { return s.bans.of(&caller) }

// refuseBanned is called after a stream was registered: either it finds the ban, or EnforceBans finds the stream.
func (s *Server) refuseBanned(st *stream) error {
	err := s.bans.of(st.peer)
	if err != nil {
		s.metrics.banned.Inc()
	}
	return err
}
