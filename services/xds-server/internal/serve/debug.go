package serve

import (
	"encoding/json"
	"io"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/version"
)

// DebugType is the prefix of the types by which istioctl asks an xDS server about its proxies.
const DebugType = "istio.io/debug"

// Debug answers Istio's debug types for the callers whom the rule allows. The answers reveal the whole mesh, so that
// the credential of a workload is not enough.
type Debug struct {
	Allowed auth.Rule
	// Answer returns the resources of a type. Its errors have gRPC statuses and end the stream.
	Answer func(typeURL string, names []string) ([]*anypb.Any, error)
}

func isDebugType(url string) bool { return url == DebugType || strings.HasPrefix(url, DebugType+"/") }

// debugRequests remembers whether a stream has begun, and whether with a debug type. Only the receiving goroutine uses
// it.
type debugRequests struct{ begun, debug bool }

// isDebugRequest reports whether a request is for a debug type, which the monitor then answers itself. A stream may
// request either debug types or the configuration of a proxy: the node of a debug stream is no proxy's, and
// go-control-plane's loop never sends on it.
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

// answerDebug gets the answer and logs who has asked for what.
func (s *Server) answerDebug(peer *auth.Peer, typeURL string, names []string) ([]*anypb.Any, error) {
	resources, err := s.debug.Answer(typeURL, names)
	s.log.Info("debug type asked for", "identity", peer.ID.String(), "type", typeURL, "names", names[:min(len(names), 1)], "error", err)
	return resources, err
}

// controlPlane tells istioctl which server has answered, in Istio's format.
func (s *Server) controlPlane() *core.ControlPlane {
	id, err := json.Marshal(map[string]any{"Component": "xds-server", "ID": s.instance, "Info": map[string]string{"version": version.Version}})
	if err != nil {
		return nil // the map has strings only, which always marshal
	}
	return &core.ControlPlane{Identifier: string(id)}
}

// endWithStatus ends the stream with an error that the loop would not pass on. It returns the error that Recv gives the
// loop.
func (st *stream) endWithStatus(err error) error {
	st.end(err)
	return io.EOF
}

// answerDebug answers a sotw request for a debug type.
func (m *sotwMonitor) answerDebug(req *discovery.DiscoveryRequest) error {
	resources, err := m.stream.server.answerDebug(m.stream.peer, req.GetTypeUrl(), req.GetResourceNames())
	if err != nil {
		return err
	}
	return m.stream.timeSend(nil, func() error {
		return m.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Send(&discovery.DiscoveryResponse{
			TypeUrl: req.GetTypeUrl(), Resources: resources, Nonce: DebugType, ControlPlane: m.stream.server.controlPlane(),
		})
	})
}

// answerDebug answers a delta request for a debug type. Each resource has the requested name.
func (m *deltaMonitor) answerDebug(req *discovery.DeltaDiscoveryRequest) error {
	resources, err := m.stream.server.answerDebug(m.stream.peer, req.GetTypeUrl(), req.GetResourceNamesSubscribe())
	if err != nil {
		return err
	}
	name := strings.Join(req.GetResourceNamesSubscribe(), ",")
	out := &discovery.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: DebugType, ControlPlane: m.stream.server.controlPlane()}
	for _, r := range resources {
		out.Resources = append(out.Resources, &discovery.Resource{Name: name, Resource: r})
	}
	return m.stream.timeSend(nil, func() error {
		return m.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send(out)
	})
}
