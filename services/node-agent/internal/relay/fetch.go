package relay

import (
	"context"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// fetchTimeout is how long an xds-server that was reached may take to answer: one that does not know a type says nothing.
const fetchTimeout = 10 * time.Second

// Fetch asks for the one resource of a type before the proxy runs whose node it names, and gives it to take, whose error is sent to the xds-server
// as a rejection and returned. It waits until an xds-server is reached, as long as ctx lasts.
func (r *Relay) Fetch(ctx context.Context, node *corev3.Node, typeURL string, take func(*anypb.Any) error) error {
	up, err := r.connect(ctx, SotW)
	for status.Code(err) == codes.Unavailable && ctx.Err() == nil { // held long enough for a stream of Envoy's
		up, err = r.connect(ctx, SotW)
	}
	if err != nil {
		return err
	}
	defer up.close()
	late := time.AfterFunc(fetchTimeout, up.cancel)
	defer late.Stop()
	if err := up.SendMsg(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL}); err != nil {
		return fmt.Errorf("xds-server %s: %w", up.address(), err)
	}
	answer := &frame{}
	if err := up.RecvMsg(answer); err != nil {
		return fmt.Errorf("xds-server %s does not answer within %s: %w", up.address(), fetchTimeout, err)
	}
	raw := answer.data.Materialize()
	answer.free()
	resp := &discoveryv3.DiscoveryResponse{}
	if err := decode(raw, resp); err != nil {
		return fmt.Errorf("xds-server %s: %w", up.address(), err)
	}
	reply, refused := takeWorld(resp, take)
	if err := up.SendMsg(reply); err == nil && up.CloseSend() == nil {
		_ = up.RecvMsg(answer) // returns when the xds-server has read the answer, and ends the stream
	}
	return refused
}
