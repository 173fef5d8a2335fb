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

// fetchTimeout is how long a connected xds-server may take to answer. One that does not know a type never answers.
const fetchTimeout = 10 * time.Second

// Fetch asks for the one resource of a type on a stream of its own, in the name of node, and passes it to take. It
// sends an error of take to the xds-server as a NACK and returns it. Package app calls it before Envoy starts;
// it tries until ctx ends or an xds-server is reached.
func (r *Relay) Fetch(ctx context.Context, node *corev3.Node, typeURL string, take func(*anypb.Any) error) error {
	up, err := r.connect(ctx, SotW, r.firstHold())
	for status.Code(err) == codes.Unavailable && ctx.Err() == nil { // the time to hold is over
		if r.takeLast(typeURL, take) {
			return nil
		}
		up, err = r.connect(ctx, SotW, r.hold)
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
	reply, rejected := takeSotW(resp, r.keeping(typeURL, take))
	if err := up.SendMsg(reply); err == nil && up.CloseSend() == nil {
		_ = up.RecvMsg(answer) // returns when the xds-server has read the answer, and ends the stream
	}
	return rejected
}
