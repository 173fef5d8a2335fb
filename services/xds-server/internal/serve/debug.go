package serve

import (
	"encoding/json"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/version"
	"fairlead.dev/services/xds-server/internal/serve/wire"
)

// DebugType is the prefix of the types by which istioctl asks an xDS server about its proxies.
const DebugType = "istio.io/debug"

// Debug answers Istio's debug types for the callers whom the rule allows. The answers reveal the whole mesh, so that
// the credential of a workload is not enough.
type Debug struct {
	Allowed auth.Rule
	// Answer returns the resources of a type, about the proxies of a server. Its errors have gRPC statuses and end the
	// stream.
	Answer func(fleet *Server, typeURL string, names []string) ([]*anypb.Any, error)
}

func isDebugType(url string) bool { return url == DebugType || strings.HasPrefix(url, DebugType+"/") }

// debugRequests remembers whether a stream has begun, and whether with a debug type. Only the receiving goroutine uses
// it.
type debugRequests struct{ begun, debug bool }

// isDebugRequest reports whether a request is for a debug type. A stream may request either debug types or the
// configuration of a proxy: the node of a debug stream is no proxy's, and transmit never sends on it.
func (st *stream) isDebugRequest(typeURL string) (bool, error) {
	first := !st.debugRequests.begun
	st.debugRequests.begun = true
	debug := isDebugType(typeURL)
	switch {
	case !debug && !st.debugRequests.debug:
		return false, nil
	case !debug:
		return false, status.Errorf(codes.InvalidArgument, "this stream has asked for debug types; ask for %q on another one", typeURL)
	case !first && !st.debugRequests.debug:
		return false, status.Errorf(codes.InvalidArgument, "%s is asked for on a stream of its own, not on a proxy's", typeURL)
	}
	st.debugRequests.debug = true
	return true, st.server.mayDebug(st.peer)
}

func (s *Server) mayDebug(peer *auth.Peer) error {
	switch {
	case peer == nil:
		return status.Error(codes.Unauthenticated,
			"debug types need an administrator's credential: ask on the secure port, with a certificate or a token")
	case s.debug.Answer == nil || s.debug.Allowed == nil || !s.debug.Allowed.Allowed(*peer):
		return status.Errorf(codes.PermissionDenied,
			"%s may not ask for debug types, which reveal the whole mesh; use the certificate of an identity that may: "+
				"the administrator's, or one of --debug-identities", peer.ID)
	default:
		return nil
	}
}

// answerDebug answers a request for a debug type, unless it is the ACK of an answer, and logs who has asked for what.
func (st *stream) answerDebug(req *wire.Request) error {
	if req.Nonce == DebugType {
		return nil
	}
	names := req.Names()
	resources, err := st.server.debug.Answer(st.server, req.TypeURL, names)
	st.server.log.Info("debug type asked for", "identity", st.peer.ID.String(), "type", req.TypeURL, "names", names[:min(len(names), 1)],
		"error", err)
	if err != nil {
		return err
	}
	var answer proto.Message
	if st.delta { // each resource has the requested name
		m := &discovery.DeltaDiscoveryResponse{TypeUrl: req.TypeURL, Nonce: DebugType, ControlPlane: st.server.controlPlane()}
		for _, r := range resources {
			m.Resources = append(m.Resources, &discovery.Resource{Name: strings.Join(names, ","), Resource: r})
		}
		answer = m
	} else {
		answer = &discovery.DiscoveryResponse{
			TypeUrl: req.TypeURL, Resources: resources, Nonce: DebugType, ControlPlane: st.server.controlPlane(),
		}
	}
	return st.timeSend(func() error { return st.grpc.SendMsg(answer) })
}

// controlPlane tells istioctl which server has answered, in Istio's format.
func (s *Server) controlPlane() *core.ControlPlane {
	id, err := json.Marshal(map[string]any{"Component": "xds-server", "ID": s.instance, "Info": map[string]string{"version": version.Version}})
	if err != nil {
		return nil // the map has strings only, which always marshal
	}
	return &core.ControlPlane{Identifier: string(id)}
}
