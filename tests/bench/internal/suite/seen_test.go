package suite

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/tests/bench/internal/wire"
)

func TestMarkedAddressesHaveTheirNumbers(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 65535, 65536, 1<<22 - 1} {
		if got, ok := markedNumber(markedAddress(n)); !ok || got != n {
			t.Errorf("%d is %s is %d, %v", n, markedAddress(n), got, ok)
		}
	}
	for _, other := range []string{"10.64.0.1", "100.64.x.1", ""} {
		if n, ok := markedNumber(other); ok {
			t.Errorf("%q has number %d", other, n)
		}
	}
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// assignment has endpoints with addresses.
func assignment(t *testing.T, addresses ...string) []byte {
	var all []*endpoint.LbEndpoint
	for _, at := range addresses {
		all = append(all, &endpoint.LbEndpoint{HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{
			Address: &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{Address: at}}},
		}}})
	}
	return encoded(t, &endpoint.ClusterLoadAssignment{Endpoints: []*endpoint.LocalityLbEndpoints{{LbEndpoints: all}}})
}

func TestNoteFindsMarks(t *testing.T) {
	for name, tc := range map[string]struct {
		body []byte
		want []string
	}{
		"two, one of them twice": {encoded(t, &clusterv3.Cluster{Name: "mark-a-1.x", AltStatName: "mark-a-1.y mark-b-22."}),
			[]string{"mark-a-1.", "mark-b-22."}},
		"one without an end": {encoded(t, &clusterv3.Cluster{Name: "mark-a-1"}), nil},
		"none":               {encoded(t, &clusterv3.Cluster{Name: "a"}), nil},
	} {
		if got := note(wire.Cluster, "", tc.body).(*noted); !slices.Equal(got.marks, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got.marks, tc.want)
		}
	}
	got := note(wire.Endpoint, "", assignment(t, markedAddress(7), "10.0.0.2", markedAddress(9), "10.0.0.1")).(*noted)
	if want := []string{"10.0.0.1", "10.0.0.2", markedAddress(7), markedAddress(9)}; !slices.Equal(got.addresses, want) || got.newest != 9 {
		t.Errorf("got %q, newest %d", got.addresses, got.newest)
	}
}

// response is what a proxy acknowledges: one resource, about a host.
func response(typeURL, host string, n *noted) *wire.Content {
	return &wire.Content{Type: typeURL, Resources: []wire.Held{{Name: "of " + host}}, Hosts: []string{host}, Notes: []any{n}}
}

func TestAChangeIsOverWhenEveryProxyHasAcknowledgedEveryStage(t *testing.T) {
	s := newSeen(2)
	marked := &noted{marks: []string{"mark-1."}, newest: -1}
	began := make(chan struct{})
	go func() {
		<-began
		for _, a := range []struct {
			proxy int
			kind  string
			n     *noted
		}{
			{0, wire.Cluster, marked}, {0, wire.Cluster, marked}, {1, wire.VirtualHost, marked}, {1, wire.Listener, marked}, {0, wire.Route, marked},
			{1, wire.Cluster, &noted{marks: []string{"mark-2."}}}, {1, wire.Cluster, marked},
		} {
			s.acknowledged(a.proxy, response(a.kind, "a", a.n), time.Now())
		}
	}()
	delays, err := s.change(t.Context(), "mark-1.", [][]string{{wire.Cluster}, routeTypes},
		func(context.Context) error { close(began); return nil })
	if err != nil || len(delays) != 2 {
		t.Errorf("got %v, %v; want a delay of each proxy", delays, err)
	}
	delays, err = s.changeOf(t.Context(), 1, "mark-5.", [][]string{policyTypes}, func(context.Context) error {
		s.acknowledged(1, response(wire.Extension, "a", &noted{marks: []string{"mark-5."}, newest: -1}), time.Now())
		return nil
	})
	if err != nil || len(delays) != 1 {
		t.Errorf("got %v, %v; want a delay of the one proxy that is concerned", delays, err)
	}
	if _, err := s.change(t.Context(), "mark-3.", nil, func(context.Context) error { return errors.New("refused") }); err == nil ||
		!strings.Contains(err.Error(), "refused") {
		t.Errorf("a change that fails ends with %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.change(ended, "mark-4.", [][]string{routeTypes}, func(context.Context) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "2 of 2 proxies have not acknowledged mark-4.") {
		t.Errorf("a change that nobody acknowledges ends with %v", err)
	}
}

func TestEndpointsThatDifferFromTheAPIAreFound(t *testing.T) {
	api := map[string][]string{"a": {"10.0.0.1"}, "b": {"10.0.0.2"}}
	all := func(int, string) bool { return true }
	hold := func(s *seen, host string, addresses ...string) {
		s.acknowledged(0, response(wire.Endpoint, host, &noted{addresses: addresses, newest: -1}), time.Now())
	}
	for name, tc := range map[string]struct {
		do   func(*seen)
		want int
	}{
		"equal":           {func(*seen) {}, 0},
		"another address": {func(s *seen) { hold(s, "a", "10.0.0.9") }, 1},
		"one missing":     {func(s *seen) { hold(s, "a") }, 1},
		"removed": {func(s *seen) {
			s.acknowledged(0, &wire.Content{Type: wire.Endpoint, Removed: []string{"of a"}}, time.Now())
		}, 1},
		"of a host that the API has not": {func(s *seen) { hold(s, "c", "10.0.0.9") }, 0},
		"of two Services":                {func(s *seen) { hold(s, "a"); hold(s, "b") }, 2},

		"changed and changed back in time": {func(s *seen) { hold(s, "a"); hold(s, "a", "10.0.0.1") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSeen(1)
			hold(s, "a", "10.0.0.1")
			hold(s, "b", "10.0.0.2")
			tc.do(s)
			if got, example := s.differing(api, all); got != tc.want || (example == "") != (got == 0) {
				t.Errorf("got %d differences, %q, want %d", got, example, tc.want)
			}
		})
	}
	s := newSeen(1)
	if got, _ := s.differing(api, func(int, string) bool { return false }); got != 0 {
		t.Errorf("%d differences of Services that the proxy does not see", got)
	}
}

func TestAStormCountsEveryWriteOnceForEachProxy(t *testing.T) {
	began := time.Now()
	s := &storm{written: map[string][]write{"a": {{0, began}, {5, began}, {10, began}}}, next: []map[string]int{{}, {}}}
	for _, a := range []struct{ proxy, newest, want int }{
		{0, -1, 0}, // before any of them
		{0, 4, 1},
		{0, 4, 1},  // again
		{0, 14, 3}, // two at once
		{1, 9, 5},  // the other proxy
	} {
		s.acknowledged(a.proxy, "a", a.newest, began.Add(time.Second))
		if len(s.delays) != a.want {
			t.Errorf("%d delays after proxy %d acknowledged %d, want %d", len(s.delays), a.proxy, a.newest, a.want)
		}
	}
	s.acknowledged(1, "b", 100, began)
	if len(s.delays) != 5 {
		t.Error("an acknowledgement of a host that was not written counts")
	}
}
