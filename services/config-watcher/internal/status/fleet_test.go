package status

import (
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

const testEpoch = "here"

func at(sequence uint64) *configv1.Revision {
	return &configv1.Revision{Epoch: testEpoch, Sequence: sequence}
}

// sidecar is a proxy that has acknowledged and is served a revision.
func sidecar(name string, acked, serves uint64, types ...*configv1.ProxyTypeStatus) fleet.View {
	return fleet.View{
		Status: &configv1.ProxyStatus{NodeId: "sidecar~10.0.0.1~" + name + ".shop~shop.svc.cluster.local", Namespace: "shop", Workload: name,
			Types: types},
		Acked: at(acked), Serves: at(serves), Reported: true,
	}
}

func rejects(kind string, sequence uint64, message string, names ...string) *configv1.ProxyTypeStatus {
	return &configv1.ProxyTypeStatus{
		TypeUrl:   "type.googleapis.com/envoy.config." + kind,
		Rejection: &configv1.Rejection{ResourceNames: names, Message: message, Revision: at(sequence)},
	}
}

func rule(host string) *object.Object {
	return &object.Object{
		Key:  object.Key{Group: kinds.GroupNetworking, Kind: "DestinationRule", Namespace: "shop", Name: "rule"},
		Body: &networking.DestinationRule{Host: host},
	}
}

func filter() *object.Object {
	return &object.Object{Key: object.Key{Group: kinds.GroupNetworking, Kind: "EnvoyFilter", Namespace: "shop", Name: "filter"},
		Body: &networking.EnvoyFilter{}}
}

// TestProgrammed: what proxies acknowledge counts for every object, what they reject only for those whose it is.
func TestProgrammed(t *testing.T) {
	const cluster = "outbound|80|v1|web.shop.svc.cluster.local"
	const words = "duplicate load balancing policy"
	behind := sidecar("behind", 4, 9)
	behind.Status.Types = []*configv1.ProxyTypeStatus{{TypeUrl: "x", Awaiting: true}}
	lost := sidecar("lost", 9, 9)
	lost.Reported = false
	foreign := sidecar("foreign", 0, 0)
	foreign.Acked = &configv1.Revision{Epoch: "elsewhere", Sequence: 1, StateHash: []byte("state 7")}
	for name, tc := range map[string]struct {
		object     *object.Object
		views      []fleet.View
		incomplete bool
		want       string
	}{
		"every proxy has acknowledged": {rule("web"), []fleet.View{sidecar("a", 5, 9), sidecar("b", 9, 9)}, false,
			"True Programmed keep: 2 of 2 proxies acknowledged"},
		"without proxies nobody is missing": {rule("web"), nil, false, "True Programmed keep: 0 of 0 proxies acknowledged"},
		"while xds-servers are missing it is not known": {rule("web"), nil, true,
			"False Pending keep: 0 of 0 proxies acknowledged; not every xds-server has reported yet"},
		"while nobody reports it is not known": {rule("web"), nil, false, "Unknown NoReport keep: no xds-server reports what the proxies hold"},
		"a proxy has not answered": {rule("web"), []fleet.View{sidecar("a", 5, 9), behind, lost}, false,
			"False Pending keep: 1 of 3 proxies acknowledged; not by shop/behind, shop/lost"},
		"the proxy of another replica's epoch counts by its state": {rule("web"), []fleet.View{foreign}, false,
			"True Programmed keep: 1 of 1 proxies acknowledged"},
		"a rejected cluster is the rule's of its host": {rule("web"),
			[]fleet.View{sidecar("a", 5, 9), sidecar("b", 4, 9, rejects("Cluster", 5, words, cluster))}, false,
			"False Rejected: 1 of 2 proxies acknowledged; rejected by shop/b: Cluster " + cluster + ": " + words},
		"a wildcard rule has the clusters of all its hosts": {rule("*.shop.svc.cluster.local"),
			[]fleet.View{sidecar("b", 4, 9, rejects("Cluster", 5, words, cluster))}, false,
			"False Rejected: 0 of 1 proxies acknowledged; rejected by shop/b: Cluster " + cluster + ": " + words},
		"a rule of another host is acknowledged": {rule("other"), []fleet.View{sidecar("b", 4, 9, rejects("Cluster", 5, words, cluster))}, false,
			"True Programmed keep: 1 of 1 proxies acknowledged"},
		"a rejection of before is not of this version": {rule("web"), []fleet.View{sidecar("b", 3, 9, rejects("Cluster", 4, words, cluster))},
			false,
			"True Programmed keep: 1 of 1 proxies acknowledged"},
		"of several resources that Envoy does not name none is to blame": {rule("web"),
			[]fleet.View{sidecar("b", 4, 9, rejects("Cluster", 5, words, cluster, "outbound|80||x.shop.svc.cluster.local"))}, false,
			"False Pending keep: 0 of 1 proxies acknowledged; rejected since, by name of no object: shop/b: Cluster " + cluster +
				", outbound|80||x.shop.svc.cluster.local: " + words},
		"of several the named one is to blame": {rule("web"),
			[]fleet.View{sidecar("b", 4, 9, rejects("Cluster", 5, cluster+": "+words, cluster, "outbound|80||x.shop.svc.cluster.local"))}, false,
			"False Rejected: 0 of 1 proxies acknowledged; rejected by shop/b: Cluster " + cluster + ", outbound|80||x.shop.svc.cluster.local: " +
				cluster + ": " + words},
		"anything rejected since may be an EnvoyFilter's, with Envoy's words": {filter(),
			[]fleet.View{sidecar("b", 4, 9, rejects("Listener", 5, words, "virtualOutbound"))}, false,
			"False Pending keep: 0 of 1 proxies acknowledged; rejected since, by name of no object: shop/b: Listener virtualOutbound: " + words},
		"what was rejected later is not": {filter(), []fleet.View{sidecar("b", 5, 9, rejects("Listener", 6, words, "virtualOutbound"))}, false,
			"True Programmed keep: 1 of 1 proxies acknowledged"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleetState(tc.views, tc.incomplete, at(9), func(hash []byte) (uint64, bool) { return 7, string(hash) == "state 7" })
			f.unreported = strings.HasPrefix(name, "while nobody reports")
			c := f.programmed(tc.object.Key, hostsOf(tc.object, "cluster.local"), 5)
			got := c.Text() + " " + c.Reason
			if c.KeepTrue {
				got += " keep"
			}
			if got += ": " + c.Message; got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestMessagesAreBounded: thousands of proxies with long errors make one short message.
func TestMessagesAreBounded(t *testing.T) {
	var views []fleet.View
	for range 5000 {
		views = append(views, sidecar(strings.Repeat("n", 200), 4, 9,
			rejects("Cluster", 5, strings.Repeat("w", 4000), "outbound|80||web.shop.svc.cluster.local")))
	}
	o := rule("web")
	c := newFleetState(views, false, at(9), nil).programmed(o.Key, hostsOf(o, "cluster.local"), 5)
	if c.Reason != reasonRejected || len(c.Message) > maxMessage+100 || !strings.HasPrefix(c.Message, "0 of 5000 proxies") {
		t.Errorf("%s, %d bytes: %.200s", c.Reason, len(c.Message), c.Message)
	}
}

// TestRejectedResources: which kinds a rejected resource may be of.
func TestRejectedResources(t *testing.T) {
	kind := func(k string) object.Key { return object.Key{Group: kinds.GroupNetworking, Kind: k} }
	hosts := []string{"web.shop.svc.cluster.local"}
	for _, tc := range []struct {
		key            object.Key
		resource, name string
		want           relation
	}{
		{kind("DestinationRule"), typeEndpoints, "outbound|80||web.shop.svc.cluster.local", owned},
		{kind("DestinationRule"), typeCluster, "outbound_.80_.v1_.web.shop.svc.cluster.local", owned},
		{kind("DestinationRule"), typeCluster, "inbound|80||", unrelated},
		{kind("DestinationRule"), typeListener, "0.0.0.0_80", unrelated},
		{kind("VirtualService"), typeVirtualHost, "80/web.shop.svc.cluster.local:80", owned},
		{kind("VirtualService"), typeVirtualHost, "80/other.shop.svc.cluster.local:80", unrelated},
		{kind("VirtualService"), typeRoutes, "80", possible},
		{kind("VirtualService"), typeCluster, "outbound|80||web.shop.svc.cluster.local", unrelated},
		{kind("ServiceEntry"), typeCluster, "outbound|80||web.shop.svc.cluster.local", owned},
		{kind("ServiceEntry"), typeListener, "10.0.0.1_80", possible},
		{kind("WorkloadGroup"), typeCluster, "outbound|80||web.shop.svc.cluster.local", unrelated},
		{object.Key{Group: kinds.GroupSecurity, Kind: "PeerAuthentication"}, typeListener, "virtualInbound", possible},
	} {
		r := newRejection("type.googleapis.com/envoy."+tc.resource, &configv1.Rejection{ResourceNames: []string{tc.name}, Message: "no"})
		if got := r.relationTo(tc.key, hosts); got != tc.want {
			t.Errorf("%s of %s %s: %d, want %d", tc.key.Kind, tc.resource, tc.name, got, tc.want)
		}
	}
}
