package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
)

// A response for the agent beyond the bounds is not decoded, and the stream ends with the reason. The versions held are
// bounded too.
func TestAgentResourceIsBounded(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	server.once = agentType
	for i := range maxAgentResources + 1 {
		server.resources = append(server.resources, &discoveryv3.Resource{Name: fmt.Sprint(i), Version: "1"})
	}
	var got taken
	stream := f.open(f.relay(Config{Addresses: []string{server.address},
		AgentResource: &AgentResource{TypeURL: agentType, Authority: "localhost", Take: got.take}}))
	testkit.NoError(t, stream.Subscribe(envoyType))
	err := stream.Drain()
	if !strings.Contains(err.Error(), "more than 16 resources") || len(got.all()) > 0 {
		t.Errorf("%v, took %d", err, len(got.all()))
	}
	if err := decode(make([]byte, maxAgentBytes+1), &discoveryv3.DiscoveryResponse{}); err == nil ||
		!strings.Contains(err.Error(), "more than 16777216") {
		t.Error(err)
	}
	r := &Relay{}
	for i := range 10 * maxAgentResources {
		r.keep(agentType, map[string]string{fmt.Sprint("name", i): "1"}, nil)
	}
	if n := len(r.heldVersions(agentType)); n > maxAgentResources {
		t.Errorf("%d versions are held", n)
	}
}

// One stream more than maxStreams ends with the reason. It is accepted after another one has ended.
func TestStreamsAreBounded(t *testing.T) {
	f := newFixture(t)
	server := f.xds("")
	client := f.relay(Config{Addresses: []string{server.address}})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	first, end := context.WithCancel(ctx)
	defer end()
	for i := range maxStreams {
		of := ctx
		if i == 0 {
			of = first
		}
		stream := testkit.Must(adstest.OpenDelta(of, client, nil))(t)
		if _, err := f.ask(stream, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: envoyType}); err != nil {
			t.Fatal(err)
		}
	}
	another := func() error {
		stream, err := adstest.OpenDelta(ctx, client, nil)
		if err != nil {
			return err
		}
		_, err = f.ask(stream, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: envoyType})
		return err
	}
	if err := another(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "more than 128 streams") {
		t.Errorf("one more: %v", err)
	}
	end()
	testkit.Eventually(t, testkit.Patience, func() error {
		if err := another(); err != nil {
			return errors.New("still rejected: " + err.Error())
		}
		return nil
	})
}
