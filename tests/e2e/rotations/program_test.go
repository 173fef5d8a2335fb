package rotations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/hostmesh"
)

// chat answers each message with the same; a call is one message.
const chat = "/fairlead.test.Echo/Chat"

func answer(_ any, stream grpc.ServerStream) error {
	for {
		m := &wrapperspb.StringValue{}
		if err := stream.RecvMsg(m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := stream.SendMsg(m); err != nil {
			return err
		}
	}
}

func newServer() *grpc.Server { return grpc.NewServer(grpc.UnknownServiceHandler(answer)) }

// startProgram serves as the program without a proxy, once its agent has written the bootstrap. gRPC's part of the
// program is in the tests' process; its sockets are on the program's host.
func (r *rig) startProgram() {
	r.t.Helper()
	m := r.members[proxied]
	var bootstrap []byte
	testkit.Eventually(r.t, hostmesh.Ready, func() (err error) {
		bootstrap, err = os.ReadFile(r.bootstrap)
		return err
	})
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	testkit.NoError(r.t, err)
	server, err := xds.NewGRPCServer(grpc.Creds(creds), grpc.UnknownServiceHandler(answer), xds.BootstrapContentsForTesting(bootstrap))
	testkit.NoError(r.t, err)
	m.names, err = xds.NewXDSResolverWithConfigForTesting(bootstrap)
	testkit.NoError(r.t, err)
	lis := m.host.Listen(7070)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lis) }()
	r.t.Cleanup(func() {
		server.Stop()
		<-ended
	})
}

// way is how a member reaches the gRPC of another.
type way struct {
	from *member
	to   string
	// target and options are gRPC's.
	target  string
	options []grpc.DialOption
}

// way returns that of a member to another's service, through the sidecar or by xDS.
func (r *rig) way(from, to string) way {
	r.t.Helper()
	m := r.members[from]
	dial := grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return m.host.Dial(ctx, strings.TrimPrefix(address, "passthrough:///"))
	})
	if m.names == nil {
		return way{m, to, "passthrough:///" + service(to) + ":7070", []grpc.DialOption{dial,
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(to + ".apps.example:7070")}}
	}
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	testkit.NoError(r.t, err)
	w := way{m, to, "xds:///" + to + ".apps.example:7070", []grpc.DialOption{dial, grpc.WithResolvers(m.names),
		grpc.WithTransportCredentials(creds)}}
	// A program keeps its channel, and with it what its agent has told. Each call has another channel of its own.
	kept, err := grpc.NewClient(w.target, w.options...)
	testkit.NoError(r.t, err)
	kept.Connect()
	r.t.Cleanup(func() { kept.Close() })
	return w
}

func (w way) String() string { return w.from.name + " to " + w.to }

// call sends a message over a new connection, and wants it back.
func (w way) call(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.say("once"); err != nil {
		return err
	}
	if err := c.stream.CloseSend(); err != nil {
		return err
	}
	if err := c.stream.RecvMsg(&wrapperspb.StringValue{}); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the call does not end well: %w", err)
	}
	return nil
}

// conversation is an open stream.
type conversation struct {
	conn   *grpc.ClientConn
	stream grpc.ClientStream
}

func (w way) open(ctx context.Context) (*conversation, error) {
	conn, err := grpc.NewClient(w.target, w.options...)
	if err != nil {
		return nil, err
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, chat)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &conversation{conn, stream}, nil
}

func (c *conversation) close() { _ = c.conn.Close() }

func (c *conversation) say(text string) error {
	if err := c.stream.SendMsg(wrapperspb.String(text)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	m := &wrapperspb.StringValue{}
	if err := c.stream.RecvMsg(m); err != nil {
		return err
	}
	if m.GetValue() != text {
		return fmt.Errorf("got %q, want %q", m.GetValue(), text)
	}
	return nil
}

// patience is how long an answer may take.
const patience = 15 * time.Second
