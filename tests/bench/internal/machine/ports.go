package machine

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"
)

// FreePorts finds addresses on loopback that nobody listens on.
func FreePorts(n int) ([]string, error) {
	var addresses []string
	for range n {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer lis.Close()
		addresses = append(addresses, lis.Addr().String())
	}
	return addresses, nil
}

// readyWithin bounds the start of a service: xds-server builds nothing before its first proxy, config-watcher reads the
// whole mesh.
const readyWithin = 2 * time.Minute

// Ready waits until a service says on its ops port that it is ready.
func Ready(ctx context.Context, p *Process, ops string) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	client := &http.Client{Timeout: time.Second}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ops+"/readyz", nil)
		if err != nil {
			return err
		}
		if res, err := client.Do(req); err == nil {
			_ = res.Body.Close() // the status says it all
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", p.cmd.Path, ctx.Err(), p.LogTail())
		case <-p.exited:
			return fmt.Errorf("%s ended: %w\n%s", p.cmd.Path, p.err, p.LogTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
