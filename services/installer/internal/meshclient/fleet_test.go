package meshclient

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// TestProxiesOfAllReplicasAreOneList merges the answers of two config-watchers, each of which counts revisions by
// itself, while an xds-server moves from one to the other.
func TestProxiesOfAllReplicasAreOneList(t *testing.T) {
	at := func(epoch string, sequence uint64, second int64) *configv1.Revision {
		return &configv1.Revision{Epoch: epoch, Sequence: sequence, CommittedAt: timestamppb.New(time.Unix(second, 0))}
	}
	proxy := func(name, server string, acked *configv1.Revision) *configv1.ProxyStatus {
		return &configv1.ProxyStatus{NodeId: "sidecar~1~" + name + ".shop~x", Namespace: "shop", Workload: name, XdsServer: server, Acked: acked}
	}
	merged := mergeFleets([]*configv1.ListProxiesResponse{
		{Revision: at("a", 9, 1), Reporters: 1,
			Proxies: []*configv1.ProxyStatus{proxy("c", "one", at("a", 9, 1)), proxy("moved", "two", at("a", 9, 1))}},
		{Revision: at("b", 3, 2), Reporters: 2, Unsettled: true,
			Proxies: []*configv1.ProxyStatus{proxy("a", "two", nil), proxy("moved", "two", at("b", 3, 2)), proxy("c", "three", at("b", 3, 2))}},
	})
	var got []string
	for _, p := range merged.GetProxies() {
		got = append(got, PodName(p)+" "+p.GetXdsServer()+" "+p.GetAcked().GetEpoch())
	}
	want := []string{"a two ", "c one a", "c three b", "moved two b"}
	if len(got) != len(want) {
		t.Fatalf("%q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if merged.GetRevision().GetEpoch() != "b" || merged.GetReporters() != 3 || !merged.GetUnsettled() {
		t.Errorf("%v", merged)
	}
	f := &Fleet{ListProxiesResponse: merged, revisions: []replicaRevision{{"one", at("a", 9, 1)}, {"two", nil}}}
	if text := f.Newest(); text != "9 of one, - of two" {
		t.Errorf("newest: %q", text)
	}
}
