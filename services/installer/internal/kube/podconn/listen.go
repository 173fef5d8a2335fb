package podconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// maxForwarded bounds the connections that one Forward serves at once.
const maxForwarded = 256

// Forward is a local port whose connections go to a port of a Pod.
type Forward struct {
	listener net.Listener
	dial     func(ctx context.Context) (net.Conn, error)
	failed   func(error)
}

// Listen binds a local address, host:port, and forwards its connections by dial, once Serve is called. failed is told
// why a connection could not be made.
func Listen(address string, dial func(ctx context.Context) (net.Conn, error), failed func(error)) (*Forward, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; choose another port with --port, or 0 for any", address, err)
	}
	return &Forward{listener: l, dial: dial, failed: failed}, nil
}

// Address is the local address.
func (f *Forward) Address() string { return f.listener.Addr().String() }

// Serve forwards connections until ctx ends, and then ends them.
func (f *Forward) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = f.listener.Close() })
	defer stop()
	slots := make(chan struct{}, maxForwarded)
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			cancel()
			return fmt.Errorf("listen on %s: %w", f.Address(), err)
		}
		select {
		case slots <- struct{}{}:
		default:
			f.failed(fmt.Errorf("%d connections are open; one more was closed", maxForwarded))
			_ = conn.Close()
			continue
		}
		all.Go(func() {
			defer func() { <-slots }()
			f.forward(ctx, conn)
		})
	}
}

func (f *Forward) forward(ctx context.Context, local net.Conn) {
	defer local.Close()
	remote, err := f.dial(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.failed(err)
		}
		return
	}
	defer remote.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = local.Close(), remote.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := io.Copy(local, remote); err != nil && ctx.Err() == nil && !errors.Is(err, io.ErrClosedPipe) &&
			!errors.Is(err, net.ErrClosed) {
			f.failed(err)
		}
		_ = local.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(remote, local)
		_ = remote.Close()
	})
	both.Wait()
}
