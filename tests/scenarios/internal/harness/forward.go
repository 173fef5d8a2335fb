package harness

import (
	"context"
	"io"
	"net"
	"sync"
)

// forward brings connections of the hub to the API server, which runs where the tests run, until the returned function
// is called.
func forward(at string, hub func(ctx context.Context, network, address string) (net.Listener, error)) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	lis, err := hub(ctx, "tcp", at)
	if err != nil {
		cancel()
		return nil, err
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return // closed
			}
			all.Go(func() { pipe(ctx, conn, at) })
		}
	})
	return func() error {
		cancel()
		err := lis.Close()
		all.Wait()
		return err
	}, nil
}

// pipe copies between a connection and a new one to an address, until either ends or ctx does.
func pipe(ctx context.Context, from net.Conn, to string) {
	defer from.Close()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer conn.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, conn}, {conn, from}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // the other way ends with it
			ended <- struct{}{}
		}()
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
