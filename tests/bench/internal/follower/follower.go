// Package follower plays an xds-server: it follows a config-watcher and tells when the endpoints of a service have
// come.
package follower

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Follower is a subscriber of a config-watcher.
type Follower struct {
	conn *grpc.ClientConn
	stop context.CancelFunc
	done sync.WaitGroup

	mu sync.Mutex
	// hosts are those that have endpoints; came is called for each that a revision changes, once it is whole.
	hosts map[string]struct{}
	came  func(host string, at time.Time)
	err   error
}

// Start follows the config-watcher with an identity at an address. came is called by one goroutine for each host of
// which a revision has endpoints, with the time at which the revision was whole; it must return quickly.
func Start(ctx context.Context, own tlsconf.Source, server spiffeid.ID, address string,
	came func(host string, at time.Time)) (*Follower, error) {
	conn, err := rpc.Dial(rpc.ClientConfig{Target: address, TLS: tlsconf.Client(own, server), MaxRecvBytes: 64 << 20})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	f := &Follower{conn: conn, stop: stop, came: came, hosts: map[string]struct{}{}}
	stream, err := configv1.NewConfigServiceClient(conn).Watch(ctx, grpc.WaitForReady(true))
	if err == nil {
		err = stream.Send(&configv1.WatchRequest{Message: &configv1.WatchRequest_Hello{Hello: &configv1.WatchHello{
			Subscriber: &configv1.Subscriber{Instance: "xds-server-bench"}}}})
	}
	if err != nil {
		f.Stop()
		return nil, err
	}
	f.done.Go(func() { f.follow(stream) })
	return f, nil
}

// Stop ends it.
func (f *Follower) Stop() {
	f.stop()
	f.done.Wait()
	f.conn.Close()
}

// follow takes revisions over until the stream ends.
func (f *Follower) follow(stream grpc.BidiStreamingClient[configv1.WatchRequest, configv1.WatchResponse]) {
	changed := map[string]struct{}{}
	for {
		m, err := stream.Recv()
		if err == nil {
			for _, r := range m.GetUpserts() {
				if r.GetKey().GetKind() == "EndpointSet" {
					host, _, _ := strings.Cut(r.GetKey().GetName(), ":")
					changed[host] = struct{}{}
				}
			}
			if !m.GetCommit() {
				continue
			}
			err = stream.Send(&configv1.WatchRequest{Message: &configv1.WatchRequest_Ack{Ack: &configv1.WatchAck{
				Sequence: m.GetRevision().GetSequence()}}})
		}
		at := time.Now()
		f.mu.Lock()
		if f.err = err; err != nil {
			f.mu.Unlock()
			return
		}
		for host := range changed {
			f.hosts[host] = struct{}{}
		}
		f.mu.Unlock()
		for host := range changed {
			f.came(host, at)
		}
		clear(changed)
	}
}

// Has returns an error unless endpoints of so many hosts below a domain have come.
func (f *Follower) Has(hosts int, domain string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	n := 0
	for host := range f.hosts {
		if strings.HasSuffix(host, domain) {
			n++
		}
	}
	if n < hosts {
		return fmt.Errorf("endpoints of %d hosts have come, want %d", n, hosts)
	}
	return nil
}
