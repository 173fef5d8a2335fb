// Package witness has a proxy tell the tests what it knows of connections and requests, whatever the mesh has it log: a
// Witness stands between the proxy and its agent and adds an access log of its own to the listeners that the proxy is
// sent. No object and no setting of the mesh has anything to do with it.
package witness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"fairlead.dev/tests/scenarios/internal/rawgrpc"
)

const (
	// largest is more than an agent sends in one message.
	largest = 64 << 20
	// retry is how long a Witness waits at most before it looks again for an agent that is not there.
	retry = 100 * time.Millisecond
)

// Witness passes on the streams of one proxy.
type Witness struct {
	server *grpc.Server
	agent  *grpc.ClientConn
	ended  chan error
	add    *addition
}

// Start stands between the agent's unix socket and a new one at socket, which the user with an id may open. The proxy
// writes its log to a file, which that user may write.
func Start(socket, agent, log string, uid int) (*Witness, error) {
	add, err := newAddition(log)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	lis, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if err := errors.Join(file.Close(), os.Chown(log, uid, uid), os.Chown(socket, uid, uid), os.Chmod(socket, 0o600)); err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	w := &Witness{add: add, ended: make(chan error, 1)}
	if w.agent, err = grpc.NewClient("unix:"+agent, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawgrpc.Codec{}), grpc.MaxCallRecvMsgSize(largest), grpc.MaxCallSendMsgSize(largest)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialAs(ctx, uid, agent) }),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: retry / 10, Multiplier: 2, MaxDelay: retry}})); err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	w.server = grpc.NewServer(grpc.ForceServerCodec(rawgrpc.Codec{}), grpc.UnknownServiceHandler(w.pass), grpc.MaxRecvMsgSize(largest),
		grpc.MaxSendMsgSize(largest))
	go func() { w.ended <- w.server.Serve(lis) }()
	return w, nil
}

// dialAs connects to a unix socket as a user: the agent looks who it is. The thread that has been the user ends if it
// cannot be root again.
func dialAs(ctx context.Context, uid int, socket string) (conn net.Conn, err error) {
	done, own := make(chan struct{}), os.Geteuid()
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = effective(uid); err != nil {
			runtime.UnlockOSThread()
			return
		}
		conn, err = new(net.Dialer).DialContext(ctx, "unix", socket)
		if effective(own) == nil {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return conn, err
}

// effective makes a user the effective one of this thread alone.
func effective(uid int) error {
	same := ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 { //nolint:gosec // an id
		return errno
	}
	return nil
}

// Close ends all streams.
func (w *Witness) Close() error {
	w.server.Stop()
	return errors.Join(<-w.ended, w.agent.Close())
}

// pass passes a stream on until either side ends it.
func (w *Witness) pass(_ any, proxy grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(proxy)
	if !ok {
		return status.Error(codes.Internal, "a stream of no method")
	}
	ctx, cancel := context.WithCancel(proxy.Context())
	defer cancel()
	var options []grpc.CallOption
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
		if names := md.Get(":authority"); len(names) > 0 { // by which the agent knows Envoy's streams
			options = append(options, grpc.CallAuthority(names[0]))
		}
	}
	agent, err := w.agent.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, options...)
	if err != nil {
		return err
	}
	go func() {
		for {
			var raw []byte
			err := proxy.RecvMsg(&raw)
			if errors.Is(err, io.EOF) {
				_ = agent.CloseSend() // it never fails
				return
			}
			if err != nil || agent.SendMsg(&raw) != nil {
				cancel()
				return
			}
		}
	}()
	changed := w.add.of(method)
	for {
		var raw []byte
		err := agent.RecvMsg(&raw)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if changed != nil {
			if raw, err = changed(raw); err != nil {
				return fmt.Errorf("add the tests' access log: %w", err)
			}
		}
		if err := proxy.SendMsg(&raw); err != nil {
			return err
		}
	}
}

// Program writes a program to a file that runs envoy with the arguments given to it, and has the bootstrap among them
// lead to a Witness at socket in the place of agent: both are paths as the bootstrap names them, of the same length,
// for the bootstrap may be JSON or a binary message.
func Program(file, envoy, agent, socket string) error {
	if len(agent) != len(socket) {
		return fmt.Errorf("the sockets %s and %s are not of the same length", agent, socket)
	}
	replace := fmt.Sprintf("s#%s#%s#g", strings.ReplaceAll(agent, ".", `\.`), socket)
	text := `#!/bin/sh
set -e
n=$#
while [ "$n" -gt 0 ]; do
	arg=$1
	shift
	if [ "$previous" = -c ]; then
		next=${arg%.*}.witness.${arg##*.}
		LC_ALL=C sed '` + replace + `' "$arg" > "$next"
		arg=$next
	fi
	previous=$arg
	set -- "$@" "$arg"
	n=$((n - 1))
done
exec ` + envoy + ` "$@"
`
	return os.WriteFile(file, []byte(text), 0o755)
}
