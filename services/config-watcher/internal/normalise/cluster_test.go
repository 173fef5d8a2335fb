package normalise

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// in are the objects of a remote cluster.
func in(t testing.TB, cluster, yaml string) []*object.Object {
	t.Helper()
	list := objects(t, yaml)
	for _, o := range list {
		o.Key.Cluster, o.Source = cluster, "kubernetes/"+cluster
	}
	return list
}

// applyIn applies objects of a remote cluster.
func (s *state) applyIn(cluster, yaml string) {
	s.t.Helper()
	s.change(put(in(s.t, cluster, yaml)...)...)
}

// clusterOf is a cluster with Service apps/a at a VIP, whose EndpointSlice has one Pod, a-1, on node n1.
func clusterOf(vip, ip, network, region string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: istio-system, labels: {topology.istio.io/network: %s}}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/region: %s, topology.kubernetes.io/zone: z}}
---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: apps}
spec: {clusterIP: %s, clusterIPs: [%s], selector: {app: a}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a-1, namespace: apps, labels: {app: a, security.istio.io/tlsMode: istio}}
spec: {nodeName: n1, serviceAccountName: a}
status: {phase: Running, podIP: %[5]s, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a-x, namespace: apps, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
endpoints: [{addresses: [%[5]s], targetRef: {kind: Pod, name: a-1, namespace: apps}, conditions: {ready: true}}]
ports: [{name: http, port: 8080}]
`, network, region, vip, vip, ip)
}

const aHost = "a.apps.svc.cluster.local"

func (s *state) workload(namespace, name string) *configv1.Workload {
	return s.held[resource.Key{Kind: "Workload", Namespace: namespace, Name: name}].GetWorkload()
}

// vips are the VIPs of a service in each cluster.
func (s *state) vips(host string) string {
	svc := s.service("apps", host)
	out := []string{strings.Join(svc.GetAddresses(), ",")}
	for _, c := range svc.GetClusterAddresses() {
		out = append(out, c.Cluster+"="+strings.Join(c.Addresses, ","))
	}
	return strings.Join(out, " ")
}

// TestServicesOfOneNameAreOneServiceInAllClusters: with the endpoints and the VIP of each cluster, and network and
// locality of each endpoint.
func TestServicesOfOneNameAreOneServiceInAllClusters(t *testing.T) {
	s := newState(t, clusterOf("10.0.0.1", "10.1.0.1", "n1", "r1"))
	alone := s.vips(aHost)
	s.applyIn("east", clusterOf("10.0.0.9", "10.1.0.1", "n2", "r2"))
	if got := s.vips(aHost); alone != "10.0.0.1" || got != "10.0.0.1 Kubernetes=10.0.0.1 east=10.0.0.9" {
		t.Errorf("VIPs %q alone, %q with a remote cluster", alone, got)
	}
	for set, want := range map[string]string{aHost + ":80/Kubernetes": "10.1.0.1:8080 istio r1/z/",
		aHost + ":80/east": "10.1.0.1:8080 istio r2/z/"} {
		if got := s.endpoints("apps", set); got != want {
			t.Errorf("%s: %q, want %q", set, got, want)
		}
	}
	for name, want := range map[string]string{"a-1": "Kubernetes n1 r1", "a-1/east": "east n2 r2"} {
		w := s.workload("apps", name)
		if got := fmt.Sprint(w.GetCluster(), " ", w.GetNetwork(), " ", w.GetLocality().GetRegion()); got != want || len(w.GetTargets()) != 1 ||
			w.GetName() != "a-1" {
			t.Errorf("Workload %s is %v, want %s", name, w, want)
		}
	}
	// What is told of discovered objects is the mesh's configuration.
	if len(s.last.Discovered) > 0 {
		t.Errorf("objects of a remote cluster are configuration: %v", s.last.Discovered)
	}
	// The own Service goes: that of the other cluster is the service now.
	s.remove("Service", "apps", "a")
	if got := s.vips(aHost); got != "10.0.0.9 east=10.0.0.9" {
		t.Errorf("VIPs %q", got)
	}
	var gone []Change
	for _, o := range in(t, "east", clusterOf("10.0.0.9", "10.1.0.1", "n2", "r2")) {
		gone = append(gone, Change{Key: o.Key})
	}
	s.change(gone...)
	for k := range s.held {
		if strings.Contains(k.Name, "east") || k.Kind == "Service" {
			t.Errorf("%v is left of the other cluster", k)
		}
	}
}

// TestTheOwnClusterDecidesAboutAService: then the oldest does. Ports are joined by name.
func TestTheOwnClusterDecidesAboutAService(t *testing.T) {
	s := newState(t, "")
	other := strings.ReplaceAll(clusterOf("10.0.0.9", "10.1.0.9", "n1", "r1"), "targetPort: 8080", "targetPort: 9090")
	other = strings.ReplaceAll(other, "{name: http, port: 80,", "{name: http, port: 81,")
	s.applyIn("east", other)
	s.applyIn("south", clusterOf("10.0.0.8", "10.1.0.8", "n1", "r1"))
	if got := s.service("apps", aHost).Source.Source; got != "kubernetes/east" {
		t.Errorf("of equals %s decides, want the first", got)
	}
	s.apply(clusterOf("10.0.0.1", "10.1.0.1", "n1", "r1"))
	svc := s.service("apps", aHost)
	if len(svc.Ports) != 1 || svc.Ports[0].Number != 80 || svc.Source.Source != "test" {
		t.Errorf("service %v is not the own cluster's", svc)
	}
	if got := s.endpoints("apps", aHost+":80/east"); !strings.HasPrefix(got, "10.1.0.9:8080") {
		t.Errorf("endpoints of the port of that name: %q", got)
	}
	for k := range s.held {
		if strings.Contains(k.Name, ":81/") {
			t.Errorf("%v is of a port that the service does not have", k)
		}
	}
}

func TestAServiceEntrySelectsPodsOfAllClusters(t *testing.T) {
	s := newState(t, entry("e", "",
		"hosts: [e.example.com], resolution: STATIC, workloadSelector: {labels: {app: a}}, ports: [{name: http, number: 80, targetPort: 8080}]"))
	s.applyIn("east", clusterOf("10.0.0.9", "10.1.0.9", "n1", "r1"))
	if got := s.endpoints("apps", "e.example.com:80/east"); !strings.HasPrefix(got, "10.1.0.9:8080") {
		t.Errorf("endpoints %q", got)
	}
	if got := s.endpoints("apps", "e.example.com:80/Kubernetes"); got != "" {
		t.Errorf("endpoints %q of the own cluster", got)
	}
	targets := s.workload("apps", "a-1/east").GetTargets()
	if !slices.ContainsFunc(targets, func(x *configv1.ServiceTarget) bool { return x.Hostname == "e.example.com" }) {
		t.Errorf("targets %v", targets)
	}
}

func TestNetworkGatewaysOfEachCluster(t *testing.T) {
	gateway := func(network, ip string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: " +
			network + "}}\n" +
			"spec: {clusterIP: 10.0.0.7, externalIPs: [" + ip + "], ports: [{name: tls, port: 15443}]}\n"
	}
	s := newState(t, gateway("n1", "192.0.2.1"))
	s.applyIn("east", gateway("n2", "192.0.2.2"))
	svc := s.service("istio-system", "eastwest.istio-system.svc.cluster.local")
	own, more := svc.GetNetworkGateway(), svc.GetMoreNetworkGateways()
	if own.GetNetwork() != "n1" || own.GetCluster() != "Kubernetes" || len(more) != 1 || more[0].GetNetwork() != "n2" ||
		more[0].GetCluster() != "east" || more[0].GetAddresses()[0] != "192.0.2.2" {
		t.Errorf("gateways %v and %v", own, more)
	}
}

func TestClusterLocalHosts(t *testing.T) {
	mesh := func(settings string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"serviceSettings: " + settings +
			"\"}\n"
	}
	for name, c := range map[string]struct {
		settings, host string
		want           bool
	}{
		"not by default":    {"[]", "a.apps.svc.cluster.local", false},
		"kube-system":       {"[]", "dns.kube-system.svc.cluster.local", true},
		"the API server":    {"[]", "kubernetes.default.svc.cluster.local", true},
		"the control plane": {"[]", "istiod.istio-system.svc.cluster.local", true},
		"its own host": {"[{settings: {clusterLocal: true}, hosts: [a.apps.svc.cluster.local]}]",
			"a.apps.svc.cluster.local", true},
		"another host": {"[{settings: {clusterLocal: true}, hosts: [b.apps.svc.cluster.local]}]",
			"a.apps.svc.cluster.local", false},
		"a wildcard": {"[{settings: {clusterLocal: true}, hosts: ['*.apps.svc.cluster.local']}]",
			"a.apps.svc.cluster.local", true},
		"all": {"[{settings: {clusterLocal: true}, hosts: ['*']}]", "a.apps.svc.cluster.local", true},
		"all but its own": {"[{settings: {clusterLocal: true}, hosts: ['*']}, {settings: {clusterLocal: false}, hosts: " +
			"[a.apps.svc.cluster.local]}]", "a.apps.svc.cluster.local", false},
		"all but a longer wildcard": {
			"[{settings: {clusterLocal: false}, hosts: ['*.apps.svc.cluster.local']}, {settings: {clusterLocal: true}, hosts: ['*']}]",
			"a.apps.svc.cluster.local", false},
		"kube-system, not local": {"[{settings: {clusterLocal: false}, hosts: ['*.kube-system.svc.cluster.local']}]",
			"dns.kube-system.svc.cluster.local", false},
		"kube-system, with another one of it": {"[{settings: {clusterLocal: false}, hosts: [x.kube-system.svc.cluster.local]}]",
			"dns.kube-system.svc.cluster.local", false},
		"the API server, not local": {"[{settings: {}, hosts: [kubernetes.default.svc.cluster.local]}]",
			"kubernetes.default.svc.cluster.local", false},
		"a wildcard that is part of the domain": {"[{settings: {clusterLocal: true}, hosts: ['*apps.svc.cluster.local']}]",
			"a.apps.svc.cluster.local", true},
	} {
		t.Run(name, func(t *testing.T) {
			short, rest, _ := strings.Cut(c.host, ".")
			namespace, _, _ := strings.Cut(rest, ".")
			svc := "apiVersion: v1\nkind: Service\nmetadata: {name: " + short + ", namespace: " + namespace +
				"}\nspec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}\n"
			s := newState(t, mesh(c.settings)+"---\n"+svc)
			if s.service(namespace, c.host).GetClusterLocal() {
				t.Error("a service of one cluster is marked")
			}
			s.applyIn("east", svc)
			if got := s.service(namespace, c.host).GetClusterLocal(); got != c.want {
				t.Errorf("cluster-local: %t, want %t", got, c.want)
			}
		})
	}
}

// TestOneClusterAfterTheOther: whatever the order, the result is that of everything at once.
func TestOneClusterAfterTheOther(t *testing.T) {
	var all []Change
	for i, cluster := range []string{"", "east", "south"} {
		list := in(t, cluster, clusterOf(fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("10.1.0.%d", i+1), fmt.Sprintf("n%d", i%2), "r"))
		for _, o := range list {
			if o.Key.Kind == "Service" {
				o.Created = time.Date(2030, 1, 9-i, 0, 0, 0, 0, time.UTC)
			}
		}
		all = append(all, put(list...)...)
	}
	whole := newState(t, "")
	whole.change(all...)
	for shift := range all {
		s := newState(t, "")
		for i := range all {
			s.change(all[(i*7+shift)%len(all)])
		}
		if len(s.held) != len(whole.held) {
			t.Fatalf("%d resources one by one, %d at once", len(s.held), len(whole.held))
		}
		for k, r := range whole.held {
			if s.held[k] == nil || string(s.held[k].Hash) != string(r.Hash) {
				t.Errorf("%v differs:\n%v\n%v", k, s.held[k], r)
			}
		}
	}
}

// TestEndpointsOfAClusterThatIsAwaySaySo: those of Services and of ServiceEntries that select its Pods, and of no other
// cluster.
func TestEndpointsOfAClusterThatIsAwaySaySo(t *testing.T) {
	s := newState(t, clusterOf("10.0.0.1", "10.1.0.1", "n1", "r1")+entry("e", "",
		"hosts: [e.example.com], resolution: STATIC, workloadSelector: {labels: {app: a}}, ports: [{name: http, number: 80, targetPort: 8080}]"))
	s.applyIn("east", clusterOf("10.0.0.9", "10.1.0.9", "n2", "r2"))
	s.applyIn("south", clusterOf("10.0.0.8", "10.1.0.8", "n3", "r3"))
	away := func() string {
		var out []string
		for k, r := range s.held {
			if r.GetEndpointSet().GetAway() {
				out = append(out, k.Name)
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	if got := away(); got != "" {
		t.Errorf("away are %s", got)
	}
	s.change(ClusterAway("east", true))
	const all = aHost + ":80/east e.example.com:80/east"
	if got := away(); got != all {
		t.Errorf("away are %q, want %q", got, all)
	}
	if len(s.last.Discovered) > 0 {
		t.Errorf("%v counts as configuration", s.last.Discovered)
	}
	// What comes from its saved state, or by a change, says it too.
	s.applyIn("east", strings.ReplaceAll(clusterOf("10.0.0.9", "10.1.0.9", "n2", "r2"), "10.1.0.9", "10.1.0.7"))
	if got := s.endpoints("apps", aHost+":80/east"); !strings.HasPrefix(got, "10.1.0.7:8080") || away() != all {
		t.Errorf("%s, away are %s", got, away())
	}
	s.change(ClusterAway("east", false))
	if got := away(); got != "" {
		t.Errorf("back, and away are %s", got)
	}
}
