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

	"fairlead.dev/services/node-agent/internal/wire"
)

// Own is a type of which the agent takes the one resource there is for itself. It asks for it on Envoy's stream, as Istio's agent does: it is
// the same proxy for the xds-server. Envoy never sees it.
type Own struct {
	TypeURL string
	// Authority is what Envoy calls this server, by which its streams are told from those of gRPC programs.
	Authority string
	// Take is given the resource whenever it is another one; an error is sent to the xds-server as a rejection. One call at a time per stream.
	Take func(*anypb.Any) error
}

func authority(ctx context.Context) string {
	if values := metadata.ValueFromIncomingContext(ctx, ":authority"); len(values) > 0 {
		return values[0]
	}
	return ""
}

// guest is a stream to an xds-server on which requests and responses for Own travel among Envoy's.
type guest struct {
	*upstream
	relay *Relay
	delta bool

	mu    sync.Mutex // one sender at a time
	asked bool
}

// SendMsg sends a message of Envoy's. Own is asked for after the first, which says who this proxy is.
func (g *guest) SendMsg(m any) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.upstream.SendMsg(m); err != nil || g.asked {
		return err
	}
	g.asked = true
	typeURL := g.relay.own.TypeURL
	if g.delta {
		return g.upstream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, InitialResourceVersions: g.relay.heldVersions()})
	}
	return g.upstream.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL})
}

// RecvMsg gives the next message that is for Envoy.
func (g *guest) RecvMsg(m any) error {
	for {
		if err := g.upstream.RecvMsg(m); err != nil {
			return err
		}
		f, ok := m.(*frame)
		if !ok || typeURL(f.data) != g.relay.own.TypeURL {
			return nil
		}
		raw := f.data.Materialize()
		f.free()
		reply, err := g.take(raw)
		if err != nil {
			return err
		}
		g.mu.Lock()
		err = g.upstream.SendMsg(reply)
		g.mu.Unlock()
		if err != nil && !errors.Is(err, io.EOF) { // after io.EOF RecvMsg has the error
			return err
		}
	}
}

// take hands the resource of a response on and makes the answer.
func (g *guest) take(raw []byte) (proto.Message, error) {
	if g.delta {
		resp := &discoveryv3.DeltaDiscoveryResponse{}
		if err := decode(raw, resp); err != nil {
			return nil, err
		}
		versions := map[string]string{}
		var err error
		for _, r := range resp.GetResources() {
			if err = g.relay.own.Take(r.GetResource()); err == nil {
				versions[r.GetName()] = r.GetVersion()
			}
		}
		g.relay.keep(versions, resp.GetRemovedResources())
		return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce(), ErrorDetail: detail(err)}, nil
	}
	resp := &discoveryv3.DiscoveryResponse{}
	if err := decode(raw, resp); err != nil {
		return nil, err
	}
	reply, _ := takeWorld(resp, g.relay.own.Take)
	return reply, nil
}

// Numbers of fields in discovery responses: resources in both kinds, removed_resources in the incremental one.
const (
	resourcesField = 2
	removedField   = 6
)

// Bounds of a response that the agent decodes, beyond which its stream ends. Decoded, a message may take thirty times
// its bytes.
const (
	// maxOwnResources bounds its resources: of each type there is one for the agent.
	maxOwnResources = 16
	// maxOwnBytes bounds it as a whole: a name takes about 100 bytes of a name table.
	maxOwnBytes = 16 << 20
)

// decode decodes a response for the agent, unless it is more than an xds-server has to send.
func decode(raw []byte, into proto.Message) error {
	if len(raw) > maxOwnBytes {
		return fmt.Errorf("response for the agent: %d bytes, more than %d", len(raw), maxOwnBytes)
	}
	if wire.Count(raw, resourcesField) > maxOwnResources || wire.Count(raw, removedField) > maxOwnResources {
		return fmt.Errorf("response for the agent: more than %d resources", maxOwnResources)
	}
	if err := proto.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("response for the agent: %w", err)
	}
	return nil
}

// takeWorld hands on the resource of a response that has all there is, and makes the answer; the error is that of take.
func takeWorld(resp *discoveryv3.DiscoveryResponse, take func(*anypb.Any) error) (*discoveryv3.DiscoveryRequest, error) {
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

// heldVersions is what the agent has of Own, for a server that may send differences only.
func (r *Relay) heldVersions() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.held)
}

func (r *Relay) keep(versions map[string]string, removed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held == nil || len(r.held)+len(versions) > maxOwnResources {
		r.held = map[string]string{} // names that change are no reason to keep them all
	}
	maps.Copy(r.held, versions)
	for _, name := range removed {
		delete(r.held, name)
	}
}

// typeURLField is type_url's number in both kinds of discovery response.
const typeURLField = 4

// maxTypeURL bounds what is read of it.
const maxTypeURL = 256

// typeURL finds that of a discovery response, of whose resources it reads the lengths only; "" if there is none.
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
