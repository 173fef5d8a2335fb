package normalise

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// objects decodes YAML.
func objects(t testing.TB, yaml string) []*object.Object {
	t.Helper()
	docs, problems := manifest.Parse("", []byte(yaml))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	var out []*object.Object
	for _, d := range docs {
		o, err := validate.Document(d)
		if err != nil {
			t.Fatal(err)
		}
		o.Source = "test"
		out = append(out, o)
	}
	return out
}

func put(list ...*object.Object) []Change {
	var out []Change
	for _, o := range list {
		out = append(out, Change{o.Key, o})
	}
	return out
}

// state holds the resources of a Mesh as its deltas give them.
type state struct {
	t    testing.TB
	mesh *Mesh
	held map[resource.Key]*configv1.Resource
	last Delta
}

func newState(t testing.TB, yaml string) *state {
	s := &state{t: t, mesh: New(Config{}), held: map[resource.Key]*configv1.Resource{}}
	s.apply(yaml)
	return s
}

func (s *state) apply(yaml string) { s.t.Helper(); s.change(put(objects(s.t, yaml)...)...) }

func (s *state) remove(kind, namespace, name string) {
	s.t.Helper()
	group := ""
	switch kind {
	case "VirtualService", "ServiceEntry", "WorkloadEntry", "DestinationRule":
		group = kinds.GroupNetworking
	case "EndpointSlice":
		group = kinds.GroupDiscovery
	}
	s.change(Change{Key: object.Key{Group: group, Kind: kind, Namespace: namespace, Name: name}})
}

func (s *state) change(changes ...Change) {
	s.t.Helper()
	s.last = s.mesh.Apply(changes)
	for _, err := range s.last.Errors {
		s.t.Error(err)
	}
	for _, r := range s.last.Upserts {
		s.held[resource.KeyOf(r.Key)] = withBody(s.t, r)
	}
	for _, k := range s.last.Removed {
		if s.held[k] == nil {
			s.t.Errorf("%v removed though absent", k)
		}
		delete(s.held, k)
	}
}

// withBody is resource.Decoded.
func withBody(t testing.TB, r *configv1.Resource) *configv1.Resource {
	t.Helper()
	out, err := resource.Decoded(r)
	if err != nil || out.GetBody() == nil {
		t.Fatalf("%v: no body: %v", r.Key, err)
	}
	return out
}

// touched lists the kinds of the last delta, sorted, with a minus before removals.
func (s *state) touched() string {
	var out []string
	for _, r := range s.last.Upserts {
		out = append(out, r.Key.Kind+" "+r.Key.Name)
	}
	for _, k := range s.last.Removed {
		out = append(out, "-"+k.Kind+" "+k.Name)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func (s *state) endpoints(namespace, name string) string {
	es := s.held[resource.Key{Kind: "EndpointSet", Namespace: namespace, Name: name}].GetEndpointSet()
	if es == nil {
		return "none"
	}
	var out []string
	for _, e := range es.Endpoints {
		l := es.Localities[e.Locality]
		text := fmt.Sprintf("%s:%d", e.Address, e.Port)
		if e.Health != configv1.Health_HEALTH_READY {
			text += " " + strings.TrimPrefix(e.Health.String(), "HEALTH_")
		}
		if e.TlsMode == configv1.TlsMode_TLS_MODE_ISTIO {
			text += " istio"
		}
		if l.Region != "" {
			text += " " + l.Region + "/" + l.Zone + "/" + l.Subzone
		}
		if v := es.LabelSets[e.LabelSet].Labels["version"]; v != "" {
			text += " " + v
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func (s *state) targets(namespace, name string) string {
	var out []string
	for _, t := range s.held[resource.Key{Kind: "Workload", Namespace: namespace, Name: name}].GetWorkload().GetTargets() {
		out = append(out, fmt.Sprintf("%s:%d>%d", t.Hostname, t.Port, t.TargetPort))
	}
	return strings.Join(out, ", ")
}

func service(name, extra string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: apps}\nspec: {clusterIP: 10.0.0.1, selector: "+
		"{app: %s}, ports: [{name: http, port: 80, targetPort: web}]%s}\n", name, name, extra)
}

func pod(name, app, ip string, ready bool, extra string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: apps, labels: {app: %s, version: v1%s}}\nspec: "+
		"{nodeName: n1, serviceAccountName: %s, containers: [{name: c, ports: [{name: web, containerPort: 8080}]}]}\nstatus: {podIP: %s, "+
		"conditions: [{type: Ready, status: %q}]}\n",
		name, app, extra, app, ip, map[bool]string{true: "True", false: "False"}[ready])
}

const fqdnA = "a.apps.svc.cluster.local"

func TestServiceAndPods(t *testing.T) {
	s := newState(t, service("a", "")+pod("a-1", "a", "10.1.0.1", true, ", security.istio.io/tlsMode: istio")+
		pod("a-2", "a", "10.1.0.2", false, ""))
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:8080 istio v1, 10.1.0.2:8080 NOT_READY v1" {
		t.Errorf("endpoints %s", got)
	}
	if got := s.targets("apps", "a-2"); got != fqdnA+":80>8080" {
		t.Errorf("targets of a Pod that is not ready: %s", got)
	}
	t.Run("readiness changes endpoints only", func(t *testing.T) {
		s.apply(pod("a-2", "a", "10.1.0.2", true, ""))
		if got := s.touched(); got != "EndpointSet "+fqdnA+":80/Kubernetes" {
			t.Errorf("touched %s", got)
		}
	})
	t.Run("an unrelated Pod changes its own Workload only", func(t *testing.T) {
		s.apply(pod("z-1", "z", "10.1.9.1", true, ""))
		if got := s.touched(); got != "Workload z-1" {
			t.Errorf("touched %s", got)
		}
	})
	t.Run("a Pod relabelled out of the service leaves it", func(t *testing.T) {
		s.apply(pod("a-2", "other", "10.1.0.2", true, ""))
		if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:8080 istio v1" || s.targets("apps", "a-2") != "" {
			t.Errorf("endpoints %s, targets %s", got, s.targets("apps", "a-2"))
		}
	})
	t.Run("the Node brings the locality", func(t *testing.T) {
		s.apply("apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z}}\n")
		if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:8080 istio r/z/ v1" {
			t.Errorf("endpoints %s", got)
		}
		s.apply(pod("a-1", "a", "10.1.0.1", true, ", istio-locality: r1.z1.s1"))
		if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:8080 r1/z1/s1 v1" {
			t.Errorf("label does not win over the Node: %s", got)
		}
	})
	t.Run("a removed service takes its endpoints along", func(t *testing.T) {
		s.remove("Service", "apps", "a")
		if got := s.touched(); got != "-EndpointSet "+fqdnA+":80/Kubernetes, -Service "+fqdnA+", Workload a-1" {
			t.Errorf("touched %s", got)
		}
	})
}

func TestEndpointSlicesReplaceSelection(t *testing.T) {
	slice := "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a-x, namespace: apps, labels: " +
		"{kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{name: http, port: 9999}]\n" +
		"endpoints: [{addresses: [10.1.0.1], conditions: {ready: true}, targetRef: {kind: Pod, name: a-1}}, {addresses: [10.1.0.9], " +
		"conditions: {ready: false, serving: true, terminating: true}}]\n"
	s := newState(t, service("a", "")+pod("a-1", "a", "10.1.0.1", true, ", security.istio.io/tlsMode: istio")+slice)
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:9999 istio v1, 10.1.0.9:9999 DRAINING" {
		t.Errorf("endpoints %s", got)
	}
	s.apply(pod("a-1", "a", "10.1.0.1", true, ""))
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:9999 v1, 10.1.0.9:9999 DRAINING" {
		t.Errorf("a change of the Pod behind a slice is lost: %s", got)
	}
	s.remove("EndpointSlice", "apps", "a-x")
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:8080 v1" {
		t.Errorf("without slices the selector counts: %s", got)
	}
}

func TestEndpointsAreMirrored(t *testing.T) {
	of := func(subsets string) string {
		return "---\napiVersion: v1\nkind: Endpoints\nmetadata: {name: a, namespace: apps}\nsubsets: " + subsets + "\n"
	}
	s := newState(t, service("a", "")+pod("a-1", "a", "10.1.0.1", true, ", security.istio.io/tlsMode: istio")+
		of("[{addresses: [{ip: 10.1.0.1, targetRef: {kind: Pod, name: a-1}}], notReadyAddresses: [{ip: 10.1.0.9}], ports: [{name: http, port: "+
			"9999}]}, {addresses: [{ip: 'fd00::1'}, {ip: 10.1.0.8}], ports: [{name: http, port: 9998}]}]"))
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:9999 istio v1, 10.1.0.8:9998, 10.1.0.9:9999 NOT_READY, "+
		"fd00::1:9998" {
		t.Errorf("endpoints %s", got)
	}
	s.apply(of("[{addresses: [{ip: 10.1.0.7}], ports: [{name: http, port: 9999}]}]"))
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.7:9999" {
		t.Errorf("endpoints after a change: %s", got)
	}
	s.remove("Endpoints", "apps", "a")
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:8080 istio v1" {
		t.Errorf("without Endpoints the selector counts: %s", got)
	}
}

func TestServiceEntries(t *testing.T) {
	entry := func(name, spec string) string {
		return "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " + name + ", namespace: apps}\nspec: " + spec +
			"\n"
	}
	s := newState(t,
		entry("dns", "{hosts: [api.example.com], location: MESH_EXTERNAL, ports: [{number: 443, name: tls, protocol: TLS, targetPort: 8443}], "+
			"resolution: DNS}")+
			entry("static", "{hosts: [db.example.com], location: MESH_INTERNAL, ports: [{number: 80, name: http}], resolution: STATIC, endpoints: "+
				"[{address: 10.9.0.1, ports: {http: 8080}, locality: r/z, serviceAccount: db}]}")+
			entry("none", "{hosts: ['*.example.org'], ports: [{number: 443, name: tls, protocol: TLS}]}")+
			entry("select", "{hosts: [vm.example.com], location: MESH_INTERNAL, ports: [{number: 80, name: http, targetPort: 81}], resolution: "+
				"STATIC, workloadSelector: {labels: {app: vm}}}")+
			"---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm-1, namespace: apps}\nspec: {address: 10.8.0.1, "+
			"ports: {http: 7000}, labels: {app: vm, version: v2}, serviceAccount: vm}\n"+
			pod("vm-pod", "vm", "10.8.0.2", true, ""))
	for name, want := range map[string]string{
		"api.example.com:443/Kubernetes": "api.example.com:8443",
		"db.example.com:80/Kubernetes":   "10.9.0.1:8080 istio r/z/",
		"*.example.org:443/Kubernetes":   "none",
		"vm.example.com:80/Kubernetes":   "10.8.0.1:7000 istio v2, 10.8.0.2:81 v1",
	} {
		if got := s.endpoints("apps", name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	svc := s.held[resource.Key{Kind: "Service", Namespace: "apps", Name: "api.example.com"}].GetService()
	if svc.GetResolution() != configv1.Resolution_RESOLUTION_DNS || !svc.GetMeshExternal() ||
		svc.Ports[0].Protocol != configv1.Protocol_PROTOCOL_TLS {
		t.Errorf("service %v", svc)
	}
	if got := s.targets("apps", "vm-1"); got != "vm.example.com:80>7000" {
		t.Errorf("targets of a WorkloadEntry: %s", got)
	}
	// A Service selects WorkloadEntries too.
	s.apply(service("vm", ""))
	if got := s.endpoints("apps", "vm.apps.svc.cluster.local:80/Kubernetes"); got != "10.8.0.1:7000 istio v2, 10.8.0.2:8080 v1" {
		t.Errorf("Service over a machine and a Pod: %s", got)
	}
}

func TestKindsOfServices(t *testing.T) {
	s := newState(t, service("a", ", publishNotReadyAddresses: true")+pod("a-1", "a", "10.1.0.1", false, "")+
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: h, namespace: apps, annotations: {networking.istio.io/exportTo: '., "+
		"other'}}\nspec: {clusterIP: None, selector: {app: a}, ports: [{name: tcp, port: 90, targetPort: 91}]}\n"+
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: e, namespace: apps}\nspec: {type: ExternalName, externalName: www.example.com, "+
		"ports: [{name: http, port: 80}]}\n"+
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: apps}\nspec: {clusterIP: 10.0.0.9, selector: {app: a}, ports: "+
		"[{name: dns, port: 53, protocol: UDP}, {name: both, port: 54, protocol: UDP, targetPort: 55}, {name: tcp, port: 54}]}\n")
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:8080 v1" {
		t.Errorf("published although not ready: %s", got)
	}
	w := s.held[resource.Key{Kind: "Workload", Namespace: "apps", Name: "a-1"}].GetWorkload()
	var udp []string
	for _, target := range w.GetUdpTargets() {
		udp = append(udp, fmt.Sprintf("%s:%d>%d", target.GetHostname(), target.GetPort(), target.GetTargetPort()))
	}
	if got := strings.Join(udp, ", "); got != "dns.apps.svc.cluster.local:53>53, dns.apps.svc.cluster.local:54>55" {
		t.Errorf("targets of UDP: %s", got)
	}
	if got := s.targets("apps", "a-1"); !strings.Contains(got, "dns.apps.svc.cluster.local:54>54") ||
		strings.Contains(got, ":53>") || strings.Contains(got, "54>55") {
		t.Errorf("targets other than of UDP: %s", got)
	}
	h := s.held[resource.Key{Kind: "Service", Namespace: "apps", Name: "h.apps.svc.cluster.local"}].GetService()
	if !h.GetHeadless() || h.GetResolution() != configv1.Resolution_RESOLUTION_PASSTHROUGH || fmt.Sprint(h.ExportedTo) != "[apps other]" ||
		len(h.Addresses) != 0 {
		t.Errorf("headless %v", h)
	}
	if got := s.endpoints("apps", "h.apps.svc.cluster.local:90/Kubernetes"); got != "10.1.0.1:91 NOT_READY v1" {
		t.Errorf("headless endpoints %s", got)
	}
	e := s.held[resource.Key{Kind: "Service", Namespace: "apps", Name: "e.apps.svc.cluster.local"}].GetService()
	if got := s.endpoints("apps", "e.apps.svc.cluster.local:80/Kubernetes"); got != "none" || e.GetExternalName() != "www.example.com" ||
		len(e.GetPorts()) > 0 {
		t.Errorf("ExternalName endpoints %s, service %v", got, e)
	}
	for port, want := range map[string]string{"53": "10.1.0.1:53 NOT_READY v1", "54": "10.1.0.1:54 NOT_READY v1"} {
		if got := s.endpoints("apps", "dns.apps.svc.cluster.local:"+port+"/Kubernetes"); got != want {
			t.Errorf("endpoints of port %s of a service with UDP: %s, want %s", port, got, want)
		}
	}
}

func TestMeshConfigChangesIdentitiesAndVisibility(t *testing.T) {
	s := newState(t, service("a", "")+pod("a-1", "a", "10.1.0.1", true, ""))
	s.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'trustDomain: example.org\n\n  " +
		"defaultServiceExportTo: [\".\"]'}\n")
	svc := s.held[resource.Key{Kind: "Service", Namespace: "apps", Name: fqdnA}].GetService()
	w := s.held[resource.Key{Kind: "Workload", Namespace: "apps", Name: "a-1"}].GetWorkload()
	if fmt.Sprint(svc.ExportedTo) != "[apps]" || w.Identity != "spiffe://example.org/ns/apps/sa/a" {
		t.Errorf("service %v workload %v", svc.ExportedTo, w.Identity)
	}
	s.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: '{\"trustDomain\": " +
		"\"json.org\"}'}\n")
	if w := s.held[resource.Key{Kind: "Workload", Namespace: "apps",
		Name: "a-1"}].GetWorkload(); w.Identity != "spiffe://json.org/ns/apps/sa/a" {
		t.Errorf("identity %s", w.Identity)
	}
	s.remove("ConfigMap", "istio-system", "istio")
	if w := s.held[resource.Key{Kind: "Workload", Namespace: "apps",
		Name: "a-1"}].GetWorkload(); w.Identity != "spiffe://cluster.local/ns/apps/sa/a" {
		t.Errorf("defaults do not come back: %s", w.Identity)
	}
}

func TestDelegates(t *testing.T) {
	root := "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: root, namespace: edge}\nspec: {hosts: " +
		"[shop.example.com], gateways: [gw], http: [{match: [{uri: {prefix: /cart}}], delegate: {name: cart, namespace: apps}, timeout: 3s}, " +
		"{route: [{destination: {host: rest}}]}]}\n"
	cart := "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: cart, namespace: apps}\nspec: {http: [{match: " +
		"[{uri: {prefix: /cart/v2}}], route: [{destination: {host: v2}}]}, {match: [{uri: {prefix: /other}}], route: [{destination: {host: " +
		"none}}]}, {route: [{destination: {host: v1}}], timeout: 1s}]}\n"
	s := newState(t, root)
	got := func() *networking.VirtualService {
		vs := &networking.VirtualService{}
		if err := s.held[resource.Key{Kind: "VirtualService", Namespace: "edge", Name: "root"}].GetIstioConfig().GetSpec().UnmarshalTo(
			vs); err != nil {
			t.Fatal(err)
		}
		return vs
	}
	if vs := got(); len(vs.Http) != 1 || vs.Gateways[0] != "edge/gw" || vs.Http[0].Route[0].Destination.Host != "rest.edge.svc.cluster.local" {
		t.Errorf("without its delegate: %v", prototext.Format(vs))
	}
	s.apply(cart)
	vs := got()
	if len(vs.Http) != 3 {
		t.Fatalf("merged: %v", prototext.Format(vs))
	}
	if r := vs.Http[0]; r.Match[0].Uri.GetPrefix() != "/cart/v2" || r.Route[0].Destination.Host != "v2.apps.svc.cluster.local" ||
		r.Timeout.Seconds != 3 {
		t.Errorf("first %v", r)
	}
	if r := vs.Http[1]; r.Match[0].Uri.GetPrefix() != "/cart" || r.Timeout.Seconds != 1 {
		t.Errorf("second %v", r)
	}
	if s.held[resource.Key{Kind: "VirtualService", Namespace: "apps", Name: "cart"}] != nil {
		t.Error("a delegate is a resource of its own")
	}
	s.remove("VirtualService", "apps", "cart")
	if vs := got(); len(vs.Http) != 1 {
		t.Errorf("after the delegate went: %v", prototext.Format(vs))
	}
}

func TestNames(t *testing.T) {
	for in, want := range map[string]string{
		"a": "a.ns.svc.d", "a.b": "a.b", "*": "*", "*.x.com": "*.x.com", "10.0.0.1": "10.0.0.1", "::1": "::1", "": "",
		"A": "a.ns.svc.d", "WWW.X.com": "www.x.com", "*.X.com": "*.x.com", "a.b.": "a.b", "a.": "a", "FD00:0::1": "fd00::1",
	} {
		if got := Host(in, "ns", "d"); got != want {
			t.Errorf("Host(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"": "[*]", ".": "[ns]", "*": "[*]", "~": "[~]", "b,a,.": "[a b ns]"} {
		var list []string
		if in != "" {
			list = strings.Split(in, ",")
		}
		if got := fmt.Sprint(ExportedTo(list, nil, "ns")); got != want {
			t.Errorf("ExportedTo(%q) = %s, want %s", in, got, want)
		}
	}
}

// TestReplicasAgree feeds the same objects in different orders and groupings, with detours, and expects the same
// hashes.
func TestReplicasAgree(t *testing.T) {
	yaml := service("a", "") + service("b", "") + pod("a-1", "a", "10.1.0.1", true, "") + pod("b-1", "b", "10.1.0.2", true, "") +
		"---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: x, namespace: apps}\nspec: {hosts: [" + fqdnA +
		", x.example.com], ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: more, protocol: HTTP}], resolution: STATIC, " +
		"endpoints: [{address: 10.9.0.1}]}\n" +
		"---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a, namespace: apps}\nspec: {host: a, subsets: " +
		"[{name: v1, labels: {version: v1, app: a, z: z}}]}\n" +
		"---\napiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/region: r}}\n---\napiVersion: v1\nkind: " +
		"Namespace\nmetadata: {name: apps, labels: {a: b, c: d}}\n"
	one := newState(t, yaml)
	two := newState(t, "")
	list := objects(t, yaml)
	slices.Reverse(list)
	for _, o := range list {
		two.change(put(o)...)
		two.change(Change{Key: o.Key})
		two.change(put(o)...)
	}
	if len(one.held) != len(two.held) {
		t.Fatalf("%d and %d resources", len(one.held), len(two.held))
	}
	for k, r := range one.held {
		if !bytes.Equal(r.Hash, two.held[k].GetHash()) {
			t.Errorf("%v differs:\n%s\n%s", k, prototext.Format(r), prototext.Format(proto.Message(two.held[k])))
		}
	}
	if got := one.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:8080 r// v1, 10.9.0.1:80" {
		t.Errorf("Service and ServiceEntry of one host: %s", got)
	}
}

// BenchmarkEndpointEvent changes the readiness of one Pod in a mesh of 1,000 services with 10 Pods each.
func BenchmarkEndpointEvent(b *testing.B) {
	var yaml strings.Builder
	for i := range 1000 {
		yaml.WriteString(service(fmt.Sprint("s", i), ""))
		for j := range 10 {
			yaml.WriteString(pod(fmt.Sprintf("s%d-%d", i, j), fmt.Sprint("s", i), fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j), true, ""))
		}
	}
	s := newState(b, yaml.String())
	flip := [][]Change{put(objects(b, pod("s500-5", "s500", "10.2.0.5", false, ""))...),
		put(objects(b, pod("s500-5", "s500", "10.2.0.5", true, ""))...)}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if d := s.mesh.Apply(flip[i%2]); len(d.Upserts) != 1 {
			b.Fatalf("touched %d resources", len(d.Upserts))
		}
	}
}
