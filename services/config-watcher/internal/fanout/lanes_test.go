package fanout

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/clock"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// sink keeps the chunks that are sent.
type sink struct {
	grpc.BidiStreamingServer[configv1.WatchRequest, configv1.WatchResponse]
	chunks []*configv1.WatchResponse
}

func (s *sink) Send(m *configv1.WatchResponse) error {
	s.chunks = append(s.chunks, m)
	return nil
}

func endpoints(t *testing.T, host string, turn int) *configv1.Resource {
	t.Helper()
	r, err := resource.New(resource.Key{Kind: resource.KindEndpointSet, Namespace: "x", Name: host + ":80/c"}, &configv1.EndpointSet{
		Hostname: host, Port: 80, Cluster: "c", Endpoints: []*configv1.Endpoint{{Address: fmt.Sprintf("10.0.0.%d", turn)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A subscriber that is several revisions behind learns which resources only revisions of endpoints have changed.
func TestEndpointsAreMarkedInADifferenceOfSeveralRevisions(t *testing.T) {
	log := revision.NewLog("epoch", clock.Real())
	first := log.Commit([]*configv1.Resource{namespace(t, "x", "1"), endpoints(t, "gone", 1)}, nil, "")
	log.Commit([]*configv1.Resource{endpoints(t, "a", 1), endpoints(t, "b", 1)}, nil, "")
	endpointsOnly := log.Commit(nil, []resource.Key{resource.KeyOf(endpoints(t, "gone", 1).Key)}, "")
	log.Commit([]*configv1.Resource{namespace(t, "x", "2"), endpoints(t, "b", 2)}, nil, "")
	last := log.Commit([]*configv1.Resource{endpoints(t, "a", 2), endpoints(t, "b", 3)}, nil, "")
	type chunk struct {
		Endpoints, Commit bool
		Names             []string
	}
	for _, tc := range []struct {
		name     string
		from, to *revision.Snapshot
		want     []chunk
	}{
		{"configuration and endpoints", first, last,
			[]chunk{{false, false, []string{"b:80/c", "x"}}, {true, true, []string{"a:80/c", "-gone:80/c"}}}},
		{"endpoints alone", first, endpointsOnly, []chunk{{false, true, []string{"a:80/c", "b:80/c", "-gone:80/c"}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			to := &sink{}
			if err := (&sender{stream: to}).send(tc.to, log.Between(tc.from, tc.to)); err != nil {
				t.Fatal(err)
			}
			var got []chunk
			for _, m := range to.chunks {
				c := chunk{Endpoints: m.Endpoints, Commit: m.Commit}
				for _, r := range m.Upserts {
					c.Names = append(c.Names, r.Key.Name)
				}
				for _, k := range m.Removed {
					c.Names = append(c.Names, "-"+k.Name)
				}
				got = append(got, c)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("chunks (-want +got):\n%s", d)
			}
		})
	}
}
