package relay

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"fairlead.dev/pkg/testkit"
)

// A clock that jumps two days ahead and back, as on a machine that gets its time late, ends no stream. A new stream is
// connected in all three times: at once, or after a back-off where the xds-server was lost just before.
func TestClockJumps(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	clock := testkit.NewClock(time.Now())
	client := f.relay(Config{Addresses: []string{server.address}, Clock: clock, TokenFile: f.Issuer.TokenFile("shop", "web", "istio-ca")})
	first := f.open(client)
	again := func() {
		t.Helper()
		if _, err := f.ask(first, &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
			t.Fatalf("the stream from before: %v", err)
		}
	}
	again()
	for _, jump := range []time.Duration{48 * time.Hour, -48 * time.Hour, -48 * time.Hour, 48 * time.Hour} {
		clock.Advance(jump)
		again()
		// Two days ahead the certificate has expired, and the token is used after a second.
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
					clock.Advance(100 * time.Millisecond)
				}
			}
		}()
		if _, err := f.ask(f.open(client), &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
			t.Errorf("after a jump of %s: %v", jump, err)
		}
		close(stop)
	}

	server.stop()
	if _, err := first.Recv(); err == nil {
		t.Fatal("the stream goes on")
	}
	clock.Advance(-time.Hour) // so the loss is in the future
	f.xds(server.address)
	ended := make(chan error, 1)
	stream := f.open(client)
	go func() {
		_, err := f.ask(stream, &discoveryv3.DeltaDiscoveryRequest{})
		ended <- err
	}()
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(10 * time.Millisecond):
			clock.Advance(100 * time.Millisecond) // ten times the time
		case <-t.Context().Done():
			return
		}
	}
}
