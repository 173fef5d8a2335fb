package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/services/node-agent/internal/protocount"
)

// AgentResource is an xDS type whose one resource the agent itself uses. Like Istio's agent, the relay asks for it on
// Envoy's stream, because agent and Envoy are one proxy for the xds-server. Envoy never receives the responses.
type AgentResource struct {
	TypeURL string
	// Authority is the :authority of Envoy's streams, which distinguishes them from those of proxyless gRPC clients; ""
	// are the streams of both.
	Authority string
	// Take is called with every new version of the resource, one call at a time per stream. The relay sends an error to
	// the xds-server as a NACK.
	Take func(*anypb.Any) error
	// Adopt, in place of Take, may last. The stream goes on meanwhile, and the xds-server gets its ACK or NACK when
	// Adopt returns. There is one call at a time per stream; ctx ends with the stream, or when a newer version has
	// come, which is next. Package lastgood does not keep such a resource.
	Adopt func(ctx context.Context, a *anypb.Any) error
}

// on reports whether the agent asks for the resource on a stream of this authority.
func (a *AgentResource) on(authority string) bool {
	return a.Authority == "" || a.Authority == authority
}

func authority(ctx context.Context) string {
	if values := metadata.ValueFromIncomingContext(ctx, ":authority"); len(values) > 0 {
		return values[0]
	}
	return ""
}

// agentStream is a stream to an xds-server that also carries the requests and responses for an AgentResource. Towards
// Envoy, or the agentStream of another resource around it, it behaves like a stream without them.
type agentStream struct {
	messageStream
	relay    *Relay
	resource *AgentResource
	delta    bool
	ctx      context.Context //nolint:containedctx // that of the stream

	mu    sync.Mutex // one sender at a time
	asked bool

	adoptions adoptions
}

// SendMsg sends a message of Envoy. After the first one, which has the node, it sends the request for AgentResource.
func (s *agentStream) SendMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	asks := !s.asked && !isDebug(m) // before the message is sent, which frees it
	if err := s.messageStream.SendMsg(m); err != nil || s.asked {
		return err
	}
	s.asked = true
	if !asks {
		return nil
	}
	typeURL := s.resource.TypeURL
	if s.delta {
		return s.messageStream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL,
			InitialResourceVersions: s.relay.heldVersions(typeURL)})
	}
	return s.messageStream.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL})
}

// RecvMsg receives the next message for Envoy. It takes and answers the messages for AgentResource in between.
func (s *agentStream) RecvMsg(m any) error {
	for {
		if err := s.messageStream.RecvMsg(m); err != nil {
			return err
		}
		f, ok := m.(*frame)
		if !ok || typeURL(f.data) != s.resource.TypeURL {
			return nil
		}
		raw := f.data.Materialize()
		f.free()
		resp, err := s.decode(raw)
		if err != nil {
			return err
		}
		if s.resource.Adopt != nil {
			s.adopt(resp)
		} else if err := s.reply(s.take(s.ctx, resp)); err != nil {
			return err
		}
	}
}

// decode decodes a response of the stream's method, if it is within the bounds.
func (s *agentStream) decode(raw []byte) (proto.Message, error) {
	var resp proto.Message = &discoveryv3.DiscoveryResponse{}
	if s.delta {
		resp = &discoveryv3.DeltaDiscoveryResponse{}
	}
	return resp, decode(raw, resp)
}

// reply sends an ACK or NACK.
func (s *agentStream) reply(m proto.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.messageStream.SendMsg(m); err != nil && !errors.Is(err, io.EOF) { // after io.EOF RecvMsg has the error
		return err
	}
	return nil
}

// take passes the resource of a response to AgentResource.Take, or Adopt, and returns the ACK or NACK.
func (s *agentStream) take(ctx context.Context, resp proto.Message) proto.Message {
	use := s.resource.Take
	if s.resource.Adopt != nil {
		use = func(a *anypb.Any) error { return s.resource.Adopt(ctx, a) }
	}
	if sotw, ok := resp.(*discoveryv3.DiscoveryResponse); ok {
		if s.resource.Adopt == nil {
			use = s.relay.keeping(sotw.GetTypeUrl(), use)
		}
		reply, _ := takeSotW(sotw, use)
		return reply
	}
	delta := resp.(*discoveryv3.DeltaDiscoveryResponse) //nolint:forcetypeassert // RecvMsg makes no other
	versions := map[string]string{}
	var err error
	for _, r := range delta.GetResources() {
		if err = use(r.GetResource()); err == nil {
			versions[r.GetName()] = r.GetVersion()
			if s.resource.Adopt == nil {
				s.relay.keepLast(delta.GetTypeUrl(), r.GetName(), r.GetVersion(), r.GetResource())
			}
		}
	}
	s.relay.keep(s.resource.TypeURL, versions, delta.GetRemovedResources())
	return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: delta.GetTypeUrl(), ResponseNonce: delta.GetNonce(), ErrorDetail: detail(err)}
}

// Field numbers: resources of DiscoveryResponse and DeltaDiscoveryResponse, removed_resources of the latter.
const (
	resourcesField = 2
	removedField   = 6
)

// Bounds of a response that the agent decodes; the stream ends with an error beyond them. A decoded message may take
// thirty times its encoded size.
const (
	// maxAgentResources bounds its resources. An xds-server sends one.
	maxAgentResources = 16
	// maxAgentBytes bounds its size. A name takes about 100 bytes of a name table.
	maxAgentBytes = 16 << 20
)

// decode decodes a response for the agent if it is within the bounds.
func decode(raw []byte, into proto.Message) error {
	if len(raw) > maxAgentBytes {
		return fmt.Errorf("response for the agent: %d bytes, more than %d", len(raw), maxAgentBytes)
	}
	if protocount.Field(raw, resourcesField) > maxAgentResources || protocount.Field(raw, removedField) > maxAgentResources {
		return fmt.Errorf("response for the agent: more than %d resources", maxAgentResources)
	}
	if err := proto.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("response for the agent: %w", err)
	}
	return nil
}

// takeSotW passes the resource of a state-of-the-world response to take and returns the ACK or NACK, with take's error.
func takeSotW(resp *discoveryv3.DiscoveryResponse, take func(*anypb.Any) error) (*discoveryv3.DiscoveryRequest, error) {
	var err error
	for _, r := range resp.GetResources() {
		err = take(r)
	}
	return &discoveryv3.DiscoveryRequest{
		TypeUrl: resp.GetTypeUrl(), VersionInfo: resp.GetVersionInfo(), ResponseNonce: resp.GetNonce(), ErrorDetail: detail(err),
	}, err
}

func detail(err error) *status.Status {
	if err == nil {
		return nil
	}
	return &status.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
}

// heldVersions are the versions that the agent holds of a type, for initial_resource_versions of a delta stream.
func (r *Relay) heldVersions(typeURL string) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.held[typeURL])
}

func (r *Relay) keep(typeURL string, versions map[string]string, removed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held == nil {
		r.held = map[string]map[string]string{}
	}
	held := r.held[typeURL]
	if held == nil || len(held)+len(versions) > maxAgentResources {
		held = map[string]string{} // forget old names if the server changes them
		r.held[typeURL] = held
	}
	maps.Copy(held, versions)
	for _, name := range removed {
		delete(held, name)
	}
}

// typeURLField is the field number of type_url in DiscoveryResponse and DeltaDiscoveryResponse.
const typeURLField = 4

// maxTypeURL bounds its length in bytes.
const maxTypeURL = 256

// typeURL returns the type_url of an encoded discovery response, "" if there is none. It skips all other fields unread.
func typeURL(data mem.BufferSlice) string {
	r := data.Reader()
	defer r.Close()
	for r.Remaining() > 0 {
		tag, err := binary.ReadUvarint(r)
		if err != nil {
			return ""
		}
		number, kind := protowire.DecodeTag(tag)
		var skip uint64
		switch kind {
		case protowire.VarintType:
			if _, err := binary.ReadUvarint(r); err != nil {
				return ""
			}
		case protowire.Fixed32Type:
			skip = 4
		case protowire.Fixed64Type:
			skip = 8
		case protowire.BytesType:
			if skip, err = binary.ReadUvarint(r); err != nil || skip > uint64(r.Remaining()) {
				return ""
			}
			if number == typeURLField {
				if skip > maxTypeURL {
					return ""
				}
				text := make([]byte, skip)
				if _, err := io.ReadFull(r, text); err != nil {
					return ""
				}
				return string(text)
			}
		default:
			return ""
		}
		if _, err := r.Discard(int(skip)); err != nil {
			return ""
		}
	}
	return ""
}
