package lastgood

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/clock"
)

// view has the resources "name=version" of each type.
func view(t *testing.T, types map[string][]string) *View {
	c := contents{}
	for url, resources := range types {
		c.of(url).version = "9"
		for _, r := range resources {
			name, version, _ := strings.Cut(r, "=")
			c.of(url).resources[name] = named(name, version, encoded(t, cluster(t, name, version)))
		}
	}
	return &View{contents: c}
}

// answers are the responses to a delta request: "+name=version" and "-name", one text for each response.
func answers(t *testing.T, s *Session, req *discoveryv3.DeltaDiscoveryRequest) string {
	t.Helper()
	responses, _ := s.Answer(encoded(t, req))
	var all []string
	for _, raw := range responses {
		m := &discoveryv3.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(raw, m); err != nil || m.GetNonce() == "" {
			t.Fatalf("%v: %v", m, err)
		}
		var parts []string
		for _, r := range m.GetResources() {
			parts = append(parts, "+"+r.GetName()+"="+r.GetVersion())
		}
		for _, name := range m.GetRemovedResources() {
			parts = append(parts, "-"+name)
		}
		slices.Sort(parts)
		all = append(all, fmt.Sprint(parts))
	}
	return strings.Join(all, "")
}

func TestDeltaSessionAnswersAsAnXDSServer(t *testing.T) {
	s := view(t, map[string][]string{
		clusterType: {"a=1", "b=2"}, listenerType: {}, endpointType: {"a=1", "b=1"}, routeType: {"80=1", "90=1"},
		virtualHostType: {"80/x:80=1", "80/y=1", "800/z=1"},
	}).Session(true)
	for _, step := range []struct {
		what string
		req  *discoveryv3.DeltaDiscoveryRequest
		want string
	}{
		{"all clusters", &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType}, "[+a=1 +b=2]"},
		{"an ACK", &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "last-good-1"}, ""},
		{"endpoints by name, one unknown", &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"b", "c"}},
			"[+b=1]"},
		{"one more", &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{"a"}}, "[+a=1]"},
		{"one less", &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesUnsubscribe: []string{"a"}}, ""},
		{"no listeners", &discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType}, "[]"},
		{"a type that was not kept", &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "other"}, ""},
		{"virtual hosts before their routes", &discoveryv3.DeltaDiscoveryRequest{TypeUrl: virtualHostType}, ""},
		{"routes bring their virtual hosts", &discoveryv3.DeltaDiscoveryRequest{TypeUrl: routeType, ResourceNamesSubscribe: []string{"80"}},
			"[+80=1][+80/x:80=1 +80/y=1]"},
		{"routes without virtual hosts are released",
			&discoveryv3.DeltaDiscoveryRequest{TypeUrl: routeType, ResourceNamesSubscribe: []string{"90"}}, "[+90=1][-90/none]"},
		{"a virtual host by name", &discoveryv3.DeltaDiscoveryRequest{TypeUrl: virtualHostType, ResourceNamesSubscribe: []string{"80/y"}},
			"[+80/y=1]"},
	} {
		if got := answers(t, s, step.req); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
	}
	s = s.view.Session(true)
	held := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType,
		InitialResourceVersions: map[string]string{"a": "1", "b": "1", "gone": "1"}}
	if got := answers(t, s, held); got != "[+b=2 -gone]" {
		t.Errorf("to an Envoy that holds some: %s", got)
	}
	routes := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: routeType, ResourceNamesSubscribe: []string{"80"}}
	if got := answers(t, s, routes); got != "[+80=1]" {
		t.Errorf("routes before virtual hosts are asked for: %s", got)
	}
	if got := answers(t, s, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: virtualHostType}); got != "[+80/x:80=1 +80/y=1]" {
		t.Errorf("virtual hosts after their routes: %s", got)
	}
	nack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "last-good-1", ErrorDetail: &status.Status{Message: "no"}}
	if responses, rejected := s.Answer(encoded(t, nack)); len(responses) != 0 || rejected != "rejected: no" {
		t.Errorf("to a NACK: %d responses, %q", len(responses), rejected)
	}
}

func TestAliasFindsAVirtualHost(t *testing.T) {
	v := view(t, map[string][]string{virtualHostType: {"80/x=1"}})
	resource := v.contents[virtualHostType].resources["80/x"]
	v.contents[virtualHostType].resources["80/x"] = appendBytes(resource, resourceAliases, []byte("80/x.shop:80"))
	s := v.Session(true)
	if got := answers(t, s, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: virtualHostType,
		ResourceNamesSubscribe: []string{"80/x.shop:80", "80/unknown"}}); got != "[+80/x=1]" {
		t.Error(got)
	}
}

func TestStateOfTheWorldSessionAnswersAsAnXDSServer(t *testing.T) {
	s := view(t, map[string][]string{clusterType: {"a=1", "b=1"}, endpointType: {"a=1", "b=1"}}).Session(false)
	ask := func(url, nonce string, names ...string) string {
		responses, _ := s.Answer(encoded(t, &discoveryv3.DiscoveryRequest{TypeUrl: url, ResponseNonce: nonce, ResourceNames: names}))
		if len(responses) == 0 {
			return "none"
		}
		m := &discoveryv3.DiscoveryResponse{}
		if err := proto.Unmarshal(responses[0], m); err != nil || len(responses) != 1 {
			t.Fatalf("%d responses, %v", len(responses), err)
		}
		var all []string
		for _, r := range m.GetResources() {
			name, _, err := wrap(encoded(t, r), "")
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, name)
		}
		return m.GetVersionInfo() + " " + strings.Join(all, ",")
	}
	for _, step := range []struct{ what, got, want string }{
		{"all clusters", ask(clusterType, ""), "9 a,b"},
		{"an ACK", ask(clusterType, "last-good-1"), "none"},
		{"one of the endpoints", ask(endpointType, "", "b", "c"), "9 b"},
		{"an ACK of it", ask(endpointType, "last-good-2", "b", "c"), "none"},
		{"other endpoints", ask(endpointType, "last-good-2", "a", "b"), "9 a,b"},
		{"a type that was not kept", ask("other", ""), "none"},
	} {
		if step.got != step.want {
			t.Errorf("%s: %s, want %s", step.what, step.got, step.want)
		}
	}
}

// FuzzFrames gives a Recorder and a Session frames of anybody's making, as a lying xds-server and a broken Envoy would
// send them: requests at even places, responses at odd ones. Nothing panics, and what is kept stays within its bound.
func FuzzFrames(f *testing.F) {
	for _, delta := range []bool{true, false} {
		for _, m := range []proto.Message{
			&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, InitialResourceVersions: map[string]string{"a": "1"},
				ErrorDetail: &status.Status{Message: "x"}},
			&discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: "n", Resources: []*discoveryv3.Resource{{Name: "a", Version: "1"}},
				RemovedResources: []string{"b"}},
			&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "n", ResourceNames: []string{"a"}},
			&discoveryv3.DiscoveryResponse{TypeUrl: clusterType, Nonce: "n", VersionInfo: "1"},
		} {
			raw, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(delta, raw, raw, raw)
		}
	}
	f.Add(true, []byte{0xff}, []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, []byte{})
	f.Fuzz(func(t *testing.T, delta bool, one, two, three []byte) {
		k := &Keeper{cfg: Config{MaxBytes: 1 << 10, Log: slog.New(slog.DiscardHandler), Clock: clock.Real()}, changed: make(chan struct{}, 1),
			current: contents{}, settled: map[string]bool{}}
		r := k.Stream(delta)
		for range 2 {
			r.Request(one)
			r.Response(two)
			r.Request(three)
			ack := appendBytes(appendBytes(nil, 2, field(two, listType)), 6, field(two, listNonce))
			if !delta {
				ack = appendBytes(appendBytes(nil, 4, field(two, listType)), 5, field(two, listNonce))
			}
			r.Request(ack)
		}
		if k.size != k.current.size() || k.size > k.cfg.MaxBytes || len(r.asked) > maxTypes || len(r.pending) > maxPending {
			t.Fatalf("%d bytes are counted, %d kept, at most %d", k.size, k.current.size(), k.cfg.MaxBytes)
		}
		v := &View{contents: k.view()}
		s := v.Session(delta)
		for _, message := range [][]byte{one, three, one} {
			s.Answer(message)
		}
		if again, err := decode(v.contents.encode()); err == nil && again.size() != v.contents.size() {
			t.Fatalf("%d bytes are read, %d were kept", again.size(), v.contents.size())
		}
	})
}
