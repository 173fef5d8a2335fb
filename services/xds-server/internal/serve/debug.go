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

// debugType begins the types by which istioctl asks an xDS server about its proxies.
const debugType = "istio.io/debug"

// Debug answers Istio's debug types, for those whom the rule allows: they reveal the whole mesh, so no workload's own
// credential is enough.
type Debug struct {
	Allowed auth.Rule
	// Answer gives the resources of a type; its errors have gRPC statuses and end the stream.
	Answer func(typeURL string, names []string) ([]*anypb.Any, error)
}

func isDebugType(url string) bool { return url == debugType || strings.HasPrefix(url, debugType+"/") }

// questions keeps apart the streams that ask for debug types. Only the goroutine that receives uses it.
type debugRequests struct{ begun, debug bool }

// divert reports whether a request is for a debug type and is to be answered here. A stream asks either for debug
// types or for a proxy's configuration: its node is no proxy's then, and go-control-plane's loop never sends on it.
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
		return status.Error(codes.Unauthenticated, "debug types need an administrator's credential: ask on the secure port, with a certificate or a token")
	case s.debug.Answer == nil || s.debug.Allowed == nil || !s.debug.Allowed.Allowed(*peer):
		return status.Errorf(codes.PermissionDenied, "%s may not ask for debug types, which reveal the whole mesh; use the certificate of an identity that may: "+
			"the administrator's, or one of --debug-identities", peer.ID)
	default:
		return nil
	}
}

// ask gets the answer and logs who has asked for what.
func (s *Server) answerDebug(peer *auth.Peer, typeURL string, names []string) ([]*anypb.Any, error) {
	resources, err := s.debug.Answer(typeURL, names)
	s.log.Info("debug type asked for", "identity", peer.ID.String(), "type", typeURL, "names", names[:min(len(names), 1)], "error", err)
	return resources, err
}

// controlPlane tells istioctl who has answered, in the form that Istio has for that.
func (s *Server) controlPlane() *core.ControlPlane {
	id, err := json.Marshal(map[string]any{"Component": "xds-server", "ID": s.instance, "Info": map[string]string{"version": version.Version}})
	if err != nil {
		return nil // strings only
	}
	return &core.ControlPlane{Identifier: string(id)}
}

// fail ends the stream with an error that its loop would not report, and gives what the loop's Recv returns.
func (st *stream) endWithStatus(err error) error {
	st.end(err)
	return io.EOF
}

// answer answers a state-of-the-world request for a debug type.
func (m *sotwMonitor) answerDebug(req *discovery.DiscoveryRequest) error {
	resources, err := m.stream.server.answerDebug(m.stream.peer, req.GetTypeUrl(), req.GetResourceNames())
	if err != nil {
		return err
	}
	return m.stream.timeSend(nil, func() error {
		return m.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Send(&discovery.DiscoveryResponse{
			TypeUrl: req.GetTypeUrl(), Resources: resources, Nonce: debugType, ControlPlane: m.stream.server.controlPlane(),
		})
	})
}

// answer answers a delta request for a debug type; its resources have the name that was asked for.
func (m *deltaMonitor) answerDebug(req *discovery.DeltaDiscoveryRequest) error {
	resources, err := m.stream.server.answerDebug(m.stream.peer, req.GetTypeUrl(), req.GetResourceNamesSubscribe())
	if err != nil {
		return err
	}
	name := strings.Join(req.GetResourceNamesSubscribe(), ",")
	out := &discovery.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: debugType, ControlPlane: m.stream.server.controlPlane()}
	for _, r := range resources {
		out.Resources = append(out.Resources, &discovery.Resource{Name: name, Resource: r})
	}
	return m.stream.timeSend(nil, func() error {
		return m.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send(out)
	})
}
