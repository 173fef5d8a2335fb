package caller

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/tests/scenarios/internal/echo"
	"fairlead.dev/tests/scenarios/internal/rawgrpc"
)

// proxyless makes a call by gRPC itself, which asks the control plane for the way.
func (w *worker) proxyless(ctx context.Context, t *target, result *Result) {
	channel, err := w.channel(t.authority)
	if err != nil {
		result.fail(lookingUp, err)
		result.grpcFailed()
		return
	}
	_, fields := w.fields(t, result.ID)
	ctx, cancel := context.WithTimeout(ctx, w.call.Timeout.D())
	defer cancel()
	result.Sent = fmt.Sprintf("gRPC xds:///%s %s\n", t.authority, t.path)
	for _, f := range fields {
		result.Sent += f.name + ": " + f.value + "\n"
		ctx = metadata.AppendToOutgoingContext(ctx, f.name, f.value)
	}
	body, err := proto.Marshal(wrapperspb.String(w.call.Body))
	if err != nil {
		result.fail(talking, err)
		return
	}
	var answer []byte
	var header, trailer metadata.MD
	var server peer.Peer
	err = channel.Invoke(ctx, t.path, &body, &answer, grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&server))
	if server.Addr != nil {
		result.Remote = server.Addr.String()
	}
	code := status.Code(err)
	result.GRPC, result.GRPCMessage = &code, status.Convert(err).Message()
	if err != nil && len(header) == 0 && (code == codes.Unavailable || code == codes.DeadlineExceeded) {
		result.fail(talking, err)
		if code == codes.DeadlineExceeded {
			result.Classes = append(result.Classes, Timeout)
		}
		return
	}
	result.Status, result.Version, result.Header = http.StatusOK, "2", http.Header{}
	for _, md := range []metadata.MD{header, trailer} {
		for name, values := range md {
			result.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	var text wrapperspb.StringValue
	if proto.Unmarshal(answer, &text) == nil {
		result.Body = []byte(text.GetValue())
		result.BodyLength = int64(len(result.Body))
		result.Seen = echo.Decode(result.Body)
	}
}

// channel is the one to an authority, which all requests of a call have in common.
func (r *running) channel(authority string) (*grpc.ClientConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.channels[authority]; c != nil {
		return c, nil
	}
	bootstrap, err := os.ReadFile(r.From.Bootstrap)
	if err != nil {
		return nil, err
	}
	names, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	if err != nil {
		return nil, err
	}
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return nil, err
	}
	c, err := grpc.NewClient("xds:///"+authority, grpc.WithResolvers(names), grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent("scenario"),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawgrpc.Codec{})),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return r.From.Host.Dial(ctx, "tcp", strings.TrimPrefix(address, "passthrough:///"), "")
		}))
	if err == nil {
		r.channels[authority] = c
	}
	return c, err
}
