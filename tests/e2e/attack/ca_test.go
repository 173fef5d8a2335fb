package attack

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// testBundleWatches: one identity opens more bundle watches than the ca has for all; another identity's is accepted.
func testBundleWatches(t *testing.T, f *fixture) {
	const (
		watches = 20_500
		// watchesEach is how many are opened on one connection: a server that allows fewer would only let the rest
		// wait.
		watchesEach = 25
	)
	id, other := f.identity(t, batch, time.Hour), f.identity(t, rightful, time.Hour)
	address := f.service(t, "ca").GRPCAddress
	f.under(t, attack{refused: true, unmeasured: true, run: func(ctx context.Context, s *score) {
		var wg, opened sync.WaitGroup
		turns := make(chan struct{}, openers)
		for c := range watches / watchesEach {
			conn, err := id.dial(address)
			if err != nil {
				s.failed(ctx, err)
				return
			}
			defer conn.Close()
			for i := range watchesEach {
				opened.Add(1)
				wg.Go(func() {
					turns <- struct{}{}
					over := sync.OnceFunc(func() { <-turns; opened.Done() })
					defer over()
					// One that is neither let in nor refused keeps no other from trying.
					defer time.AfterFunc(handshakeWithin, over).Stop()
					s.failed(ctx, watchBundle(ctx, conn, fmt.Sprintf("made-up-%d-%d", c, i), func() { s.did("watches opened", 1); over() }))
				})
			}
			if ctx.Err() != nil {
				break
			}
		}
		tried := make(chan struct{})
		go func() { defer close(tried); opened.Wait() }()
		select {
		case <-tried:
		case <-time.After(loadedWithin):
		}
		// All that one identity can have is taken: another one is let in.
		if err := otherWatch(ctx, other, address); err != nil && ctx.Err() == nil {
			t.Errorf("a rightful bundle watch: %v", err)
		}
		s.loaded()
		wg.Wait()
	}})
}

// watchBundle opens a watch, calls got at the first bundle, and stays until ctx or the watch ends.
func watchBundle(ctx context.Context, conn *grpc.ClientConn, subscriber string, got func()) error {
	got = sync.OnceFunc(got)
	stream, err := cav1.NewTrustServiceClient(conn).WatchBundle(ctx)
	if err != nil {
		return err
	}
	if stream.Send(&cav1.WatchBundleRequest{Subscriber: subscriber}) != nil {
		_, err := stream.Recv()
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		got()
	}
}

func otherWatch(ctx context.Context, id *identity, address string) error {
	conn, err := id.dial(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	accepted := false
	err = watchBundle(ctx, conn, "rightful", func() { accepted = true; cancel() })
	if accepted {
		return nil
	}
	return err
}

// testCertificateRequests: one identity asks for more certificates at once than the ca lets wait, without end; another
// gets its own.
func testCertificateRequests(t *testing.T, f *fixture) {
	const (
		workers = 1600
		conns   = 64 // so that the calls of one are not too many for it
	)
	id, pod := f.identity(t, batch, time.Hour), f.Pod(t, rightful)
	address := f.service(t, "ca").GRPCAddress
	f.under(t, attack{refused: true, unmeasured: true, run: func(ctx context.Context, s *score) {
		var wg sync.WaitGroup
		var opened []*grpc.ClientConn
		for range conns {
			conn, err := id.dial(address)
			if err != nil {
				s.failed(ctx, err)
				return
			}
			defer conn.Close()
			opened = append(opened, conn)
		}
		for i := range workers {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, err := request(ctx, opened[i%conns], time.Hour)
					if err != nil {
						s.failed(ctx, err)
						rested(ctx)
						continue
					}
					s.did("certificates issued", 1)
				}
			})
		}
		var worst time.Duration
		for range 5 {
			start := time.Now()
			for {
				_, err := f.issue(ctx, address, pod.Agent.TokenFile, pod.IP, time.Hour)
				if err == nil || ctx.Err() != nil {
					break
				}
				if status.Code(err) != codes.ResourceExhausted || time.Since(start) > patience {
					t.Errorf("a rightful request after %s: %v", time.Since(start).Round(time.Millisecond), err)
					break
				}
				rested(ctx) // as an agent does
			}
			worst = max(worst, time.Since(start))
		}
		t.Logf("rightful requests were answered within %s", worst.Round(time.Millisecond))
		if worst > firstWithin {
			t.Errorf("a rightful workload waited %s for its certificate, at most %s is allowed", worst.Round(time.Millisecond), firstWithin)
		}
		s.loaded()
		wg.Wait()
	}})
}

// brief is a caller whose connections are opened with a certificate that soon expires, and stay.
type brief struct {
	id    *identity
	until time.Time
	conns map[string]*grpc.ClientConn
	// ended gets the time at which the last stream has ended that was opened while the certificate was valid.
	ended chan time.Time
}

const (
	// briefly is the shortest life that the ca gives a certificate.
	briefly = time.Minute
	// late is how long after its certificate's end a stream may live.
	late = 15 * time.Second
)

// brief opens the connections. Its xds-server is the one that is not attacked.
func (f *fixture) brief(t *testing.T) *brief {
	t.Helper()
	b := &brief{id: f.identity(t, batch, briefly), conns: map[string]*grpc.ClientConn{}, ended: make(chan time.Time, 1)}
	leaf, err := x509.ParseCertificate(b.id.certificate.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if b.until = leaf.NotAfter; time.Until(b.until) > 2*briefly {
		t.Fatalf("asked for a certificate of %s, got one until %s", briefly, b.until)
	}
	for _, service := range []string{"xds-server-1", "ca"} {
		conn, err := b.id.dial(f.service(t, service).GRPCAddress)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // the test is over
		b.conns[service] = conn
		if err := b.call(t.Context(), service, patience); err != nil {
			t.Fatalf("%s with a valid certificate: %v", service, err)
		}
	}
	ctx, conn := t.Context(), b.conns["xds-server-1"]
	go func() {
		// One that is sent away to another xds-server comes again while it may.
		for ok := true; ok && time.Now().Before(b.until); ok = rested(ctx) {
			stream, err := adstest.OpenDelta(ctx, conn, node(b.id.pod))
			if err == nil && stream.Subscribe(resource.ClusterType, "*") == nil {
				_ = stream.Drain()
			}
		}
		b.ended <- time.Now()
	}()
	return b
}

// call makes one call on the connection to a service.
func (b *brief) call(ctx context.Context, service string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if service == "ca" {
		_, err := request(ctx, b.conns[service], time.Hour)
		return err
	}
	stream, err := adstest.OpenDelta(ctx, b.conns[service], node(b.id.pod))
	if err == nil {
		_ = stream.Subscribe(resource.ClusterType, "*") // Recv tells why the stream has ended
		_, err = stream.Recv()
	}
	return err
}

// testExpiredCertificate: connections outlive the certificate that they were opened with. What is called then is
// refused, and what runs is ended.
func testExpiredCertificate(t *testing.T, f *fixture) {
	b := f.opened
	testkit.Eventually(t, 2*briefly, func() error {
		if left := time.Until(b.until); left > -time.Second {
			return fmt.Errorf("the certificate is valid for another %s", left)
		}
		return nil
	})
	for service := range b.conns {
		err := b.call(t.Context(), service, asked)
		if err == nil {
			t.Errorf("%s served a call whose certificate has expired", service)
		}
		t.Logf("%s: %v", service, err)
	}
	var at time.Time
	select {
	case at = <-b.ended:
	case <-time.After(max(time.Until(b.until.Add(late)), time.Second)):
		t.Fatalf("a stream lives %s after its certificate's end", late)
	}
	after := at.Sub(b.until).Round(time.Millisecond)
	if t.Logf("the stream ended %s after the certificate", after); after > late {
		t.Errorf("a stream lived %s after its certificate's end, at most %s are allowed", after, late)
	}
}
