package serve

import (
	"context"
	"net/netip"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// checkRegistration refuses a proxy that wants to be registered and has proven no identity: nobody could say whose
// WorkloadEntry it gets.
func (st *stream) checkRegistration(group string) error {
	if group == "" || st.peer != nil {
		return nil
	}
	return status.Errorf(codes.PermissionDenied,
		"the proxy wants to be registered in WorkloadGroup %q and has proven no identity; connect to the TLS port with a certificate or a "+
			"token, or unset AUTO_REGISTER_GROUP", group)
}

// registration is what config-watcher is told of a proxy that wants to be registered; nil of all others. The caller
// holds mu.
func (st *stream) registration() *configv1.Registration {
	if st.node.RegisterGroup == "" || st.node.Identity == "" {
		return nil
	}
	r := &configv1.Registration{
		Group: st.node.RegisterGroup, Network: st.node.Metadata["NETWORK"], PeerAddress: peerAddress(st.ctx), Probed: st.node.Probed,
	}
	if len(st.node.Addresses) > 0 {
		r.Address = st.node.Addresses[0]
	}
	return r
}

// peerAddress is the address that a stream's connection comes from; empty if it is not one of IP.
func peerAddress(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	at, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil {
		return ""
	}
	return at.Addr().Unmap().WithZone("").String()
}

// RefuseRegistrations ends the streams of proxies whose registration config-watcher refuses. The reporter calls it.
func (s *Server) RefuseRegistrations(refused []*configv1.RefusedRegistration) {
	for _, r := range refused {
		s.reports.mu.Lock()
		of := append([]*stream(nil), s.reports.nodes[r.GetNodeId()]...)
		s.reports.mu.Unlock()
		for _, st := range of {
			if st.node.Identity == r.GetIdentity() && st.node.RegisterGroup != "" {
				st.end(status.Error(codes.PermissionDenied, r.GetMessage()))
			}
		}
	}
}
