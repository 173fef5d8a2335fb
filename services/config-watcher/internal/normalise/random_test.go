package normalise

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/pkg/testkit/protorand"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// FuzzMesh applies unvalidated objects with random fields in several steps. Apply must not panic and must not change an
// object, and the final mesh must not depend on the steps.
func FuzzMesh(f *testing.F) {
	for seed := range 250 {
		f.Add(fmt.Append(nil, seed))
	}
	f.Add([]byte("z7142"))  // a Service that names one family twice
	f.Add([]byte("z19090")) // an ExternalName with a selector
	f.Fuzz(convert)
}

func convert(t *testing.T, raw []byte) {
	d := drawer{protorand.Bytes(raw)}
	changing, held, failed := New(Config{}), map[object.Key]*object.Object{}, false
	resources := map[resource.Key]*configv1.Resource{}
	for range 1 + d.from(5) {
		var changes []Change
		for range 1 + d.from(12) {
			o := d.object()
			if held[o.Key] != nil && d.from(3) == 0 {
				changes = append(changes, Change{Key: o.Key})
				delete(held, o.Key)
				continue
			}
			changes = append(changes, Change{o.Key, o})
			held[o.Key] = o
		}
		before := bodies(changes)
		delta := changing.Apply(changes)
		for i, c := range bodies(changes) {
			if !proto.Equal(before[i], c) {
				t.Fatalf("%s was changed: %v", changes[i].Key, prototext.Format(c))
			}
		}
		failed = failed || len(delta.Errors) > 0
		for _, r := range delta.Upserts {
			resources[resource.KeyOf(r.Key)] = r
		}
		for _, k := range delta.Removed {
			if resources[k] == nil {
				t.Fatalf("%v removed though absent", k)
			}
			delete(resources, k)
		}
	}
	if failed {
		return // of what cannot be converted the last good state stays
	}
	var all []Change
	for k, o := range held {
		all = append(all, Change{k, o})
	}
	again := New(Config{}).Apply(all).Upserts
	for _, r := range again {
		k := resource.KeyOf(r.Key)
		if got := resources[k]; !bytes.Equal(got.GetHash(), r.Hash) {
			t.Errorf("%v became\n%s\nand is at once\n%s", k, prototext.Format(got), prototext.Format(r))
		}
		delete(resources, k)
	}
	for k := range resources {
		t.Errorf("%v is left, and should be gone", k)
	}
}

// bodies are copies of the messages among objects.
func bodies(changes []Change) []proto.Message {
	out := make([]proto.Message, len(changes))
	for i, c := range changes {
		if c.Object == nil {
			continue
		}
		if m, ok := c.Object.Body.(proto.Message); ok {
			out[i] = proto.Clone(m)
		}
	}
	return out
}

// drawer makes random objects with few different names, so that they refer to each other.
type drawer struct{ from protorand.Source }

// odd draws unusual values far more often than users write them.
var odd = func() *protorand.Table {
	table := protorand.Istio
	table.Odd, table.Seldom = 12, nil
	table.Values = maps.Clone(table.Values)
	table.Values["ServiceEntry.hosts"] = []string{"www.example.com", "server.apps.svc.cluster.local", "*.wild.example.com", "WWW.example.com.",
		"short"}
	table.Values["name"] = []string{"a", "b", "http-a", "tcp-b", "o1", "o2"}
	table.Values["Delegate.name"] = []string{"o1", "o2"}
	return &table
}()

var specs = []struct {
	group, kind string
	spec        func() proto.Message
}{
	{kinds.GroupNetworking, "VirtualService", func() proto.Message { return &networking.VirtualService{} }},
	{kinds.GroupNetworking, "DestinationRule", func() proto.Message { return &networking.DestinationRule{} }},
	{kinds.GroupNetworking, "ServiceEntry", func() proto.Message { return &networking.ServiceEntry{} }},
	{kinds.GroupNetworking, "ServiceEntry", func() proto.Message { return &networking.ServiceEntry{} }},
	{kinds.GroupNetworking, "WorkloadEntry", func() proto.Message { return &networking.WorkloadEntry{} }},
	{kinds.GroupNetworking, "WorkloadGroup", func() proto.Message { return &networking.WorkloadGroup{} }},
	{kinds.GroupNetworking, "Gateway", func() proto.Message { return &networking.Gateway{} }},
	{kinds.GroupNetworking, "Sidecar", func() proto.Message { return &networking.Sidecar{} }},
	{kinds.GroupNetworking, "EnvoyFilter", func() proto.Message { return &networking.EnvoyFilter{} }},
	{kinds.GroupNetworking, "ProxyConfig", func() proto.Message { return &networkingv1beta1.ProxyConfig{} }},
	{kinds.GroupSecurity, "PeerAuthentication", func() proto.Message { return &security.PeerAuthentication{} }},
	{kinds.GroupSecurity, "AuthorizationPolicy", func() proto.Message { return &security.AuthorizationPolicy{} }},
	{kinds.GroupSecurity, "RequestAuthentication", func() proto.Message { return &security.RequestAuthentication{} }},
}

func (d drawer) one(list ...string) string { return list[d.from(len(list))] }

// some draws entries of a map of labels or annotations, written "key=value".
func (d drawer) some(list ...string) map[string]string {
	var out map[string]string
	for range d.from(4) {
		k, v, _ := strings.Cut(d.one(list...), "=")
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out
}

func (d drawer) labels() map[string]string {
	return d.some("app=server", "app=client", "version=v1", "version=v2", "=", "istio-locality=a.b.c", "security.istio.io/tlsMode=istio",
		"topology.istio.io/network=n1",
		"topology.kubernetes.io/region=r", labelServiceName+"=server", labelServiceName+"=o1", object.AutoAllocateLabel+"=false", "mesh=on")
}

// registered makes an object one of a registry, as if its source was careless.
func (d drawer) registered(o *object.Object) *object.Registered {
	out := &object.Registered{Service: d.one("o1", "o2", o.Key.Name)}
	if se, ok := o.Body.(*networking.ServiceEntry); ok && len(se.Hosts) > 0 {
		out.Service, out.Joins, out.Share = o.Key.Name, d.one("", "server.apps.svc.cluster.local", "o1.apps.svc.cluster.local"),
			uint32(d.from(101)) //nolint:gosec // small
		if d.from(2) == 0 {
			out.Aliases = []string{d.one("alias.example.com", "server.apps.svc.cluster.local", "o1")}
		}
	}
	return out
}

func (d drawer) object() *object.Object {
	o := &object.Object{
		Key:    object.Key{Namespace: d.one("apps", "apps", "other", kinds.MeshNamespace), Name: d.one("o1", "o2", "server")},
		Labels: d.labels(), Created: time.Unix(int64(d.from(3)), 0), Source: "test",
		Annotations: d.some(object.ExportToAnnotation+"=.", object.ExportToAnnotation+"= ,~", object.OnDemandAnnotation+"=true",
			object.TrafficDistributionAnnotation+"=preferclose"),
	}
	if d.from(3) == 0 {
		o.Created = time.Time{}
	}
	if d.from(2) == 0 {
		o.Labels = merged(o.Labels, map[string]string{"app": "server"})
	}
	switch d.from(13) {
	case 12:
		name := d.one("lb.example.com", "gw.example.com")
		o.Key, o.Body = GatewayNameKey(name), &object.GatewayName{Name: name, Addresses: d.addresses()}
	case 0, 5, 6:
		o.Key.Kind, o.Body = "Service", d.service()
	case 1, 7, 8:
		o.Key.Kind, o.Body = "Pod", &object.Pod{
			Ended: d.from(8) == 0, Ending: d.from(4) == 0, Ready: d.from(2) == 0, Addresses: d.addresses(), ServiceAccount: d.one("", "a"),
			Node:     d.one("", "n1"),
			Hostname: d.one("", "h"), Subdomain: d.one("", "server"),
			Ports: map[string]uint32{d.one("http", ""): uint32(d.from(3))}, //nolint:gosec // small
		}
	case 2:
		o.Key.Group, o.Key.Kind, o.Body = kinds.GroupDiscovery, "EndpointSlice", d.slice()
	case 3:
		o.Key.Kind, o.Key.Namespace, o.Key.Name, o.Body = "Namespace", "", d.one("apps", "other", kinds.MeshNamespace), &corev1.Namespace{}
		if d.from(2) == 0 {
			o.Key.Kind, o.Key.Name, o.Body = "Node", "n1", &corev1.Node{}
		}
	case 4:
		o.Key.Kind, o.Key.Namespace, o.Key.Name = "ConfigMap", kinds.MeshNamespace, kinds.MeshName
		o.Body = &corev1.ConfigMap{Data: map[string]string{kinds.MeshKey: d.one("{}", "rootNamespace: other", "trustDomain: td",
			"discoverySelectors: [{matchLabels: {mesh: 'on'}}]",
			"discoverySelectors: [{matchLabels: {kubernetes.io/metadata.name: apps}}, {matchExpressions: [{key: app, operator: Exists}]}]",
			"defaultServiceExportTo: [.]\ndefaultVirtualServiceExportTo: ['~']", "localityLbSetting: {failoverPriority: [kubernetes.io/hostname]}"),
			kinds.NetworksKey: d.one("", "",
				"networks: {n1: {endpoints: [{fromRegistry: Kubernetes}], gateways: [{address: gw.example.com, port: 443}]}}",
				"networks: {n2: {endpoints: [{fromRegistry: Kubernetes}, {fromCidr: 10.1.0.0/16}], gateways: [{registryServiceName: "+
					"server.apps.svc.cluster.local, port: 15443}, {address: 192.0.2.1, port: 1}]}, n3: {endpoints: [{fromCidr: 10.1.0.2/32}]}}")}}
	default:
		kind := specs[d.from(len(specs))]
		spec := kind.spec()
		odd.Fill(d.from, spec)
		o.Key.Group, o.Key.Kind, o.Body = kind.group, kind.kind, spec
		if (kind.kind == "ServiceEntry" || kind.kind == "WorkloadEntry") && d.from(6) == 0 {
			o.Registered = d.registered(o)
		}
	}
	return o
}

func (d drawer) addresses() []string {
	return [][]string{nil, {"10.1.0.1"}, {"10.1.0.1", "fd00::1"}, {"fd00::1", "x"}, {""}, {"10.1.0.2"}}[d.from(6)]
}

func (d drawer) port() int32 { return []int32{80, 81, 443, 0, -1, 70000}[d.from(6)] }

func (d drawer) service() *corev1.Service {
	out := &corev1.Service{Spec: corev1.ServiceSpec{
		Type:         corev1.ServiceType(d.one("", "ClusterIP", "ExternalName")),
		ExternalName: d.one("", "www.example.com", "server.apps.svc.cluster.local.", "10.0.0.1"),
		Selector:     map[string]string{d.one("app", "app", "app", "", "version"): d.one("server", "server", "v1")},
		ClusterIP:    d.one("", "None", "10.96.0.1", "x"), PublishNotReadyAddresses: d.from(2) == 0,
		SessionAffinity: corev1.ServiceAffinity(d.one("", "ClientIP")),
	}}
	if d.from(2) == 0 {
		out.Spec.ClusterIPs = d.addresses()
	}
	for range d.from(3) {
		out.Status.LoadBalancer.Ingress = append(out.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: d.one("", "", "192.0.2.9", "x"), Hostname: d.one("", "lb.example.com", "GW.example.com.")})
	}
	for range d.from(3) {
		out.Spec.IPFamilies = append(out.Spec.IPFamilies, corev1.IPFamily(d.one("IPv4", "IPv6")))
	}
	if d.from(3) == 0 {
		local := corev1.ServiceInternalTrafficPolicyLocal
		out.Spec.InternalTrafficPolicy = &local
		prefer := corev1.ServiceTrafficDistributionPreferSameNode
		out.Spec.TrafficDistribution = &prefer
	}
	for range d.from(4) {
		p := corev1.ServicePort{Name: d.one("http", "tcp-b", ""), Port: d.port(), Protocol: corev1.Protocol(d.one("TCP", "UDP", "")),
			TargetPort: intstr.FromInt32(d.port())}
		if d.from(2) == 0 {
			p.TargetPort = intstr.FromString(d.one("http", ""))
			app := d.one("kubernetes.io/h2c", "tls", "")
			p.AppProtocol = &app
		}
		out.Spec.Ports = append(out.Spec.Ports, p)
	}
	return out
}

func (d drawer) slice() *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{}}
	for range d.from(3) {
		e := discoveryv1.Endpoint{Addresses: d.addresses()}
		if d.from(2) == 0 {
			e.TargetRef = &corev1.ObjectReference{Kind: d.one("Pod", "", "Node"), Namespace: d.one("", "apps", "other"), Name: d.one("o1", "o2", "")}
			yes, node := d.from(2) == 0, d.one("n1", "")
			e.Conditions, e.NodeName, e.Zone, e.Hostname = discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &yes}, &node,
				&node, &node
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	for range d.from(3) {
		p := discoveryv1.EndpointPort{}
		if d.from(4) != 0 {
			name, number := d.one("http", "tcp-b", ""), d.port()
			p.Name, p.Port = &name, &number
		}
		out.Ports = append(out.Ports, p)
	}
	return out
}

// TestDrawer: objects of FuzzMesh refer to each other, so that most kinds of resources result.
func TestDrawer(t *testing.T) {
	kinds := map[string]int{}
	for seed := range 220 {
		d := drawer{protorand.Bytes(fmt.Append(nil, seed))}
		var changes []Change
		for range 20 {
			o := d.object()
			changes = append(changes, Change{o.Key, o})
		}
		for _, r := range New(Config{}).Apply(changes).Upserts {
			kinds[r.Key.Kind]++
			if es := withBody(t, r).GetEndpointSet(); len(es.GetEndpoints()) > 0 {
				kinds["Endpoint"]++
			}
			if len(r.GetWorkload().GetTargets()) > 0 {
				kinds["ServiceTarget"]++
			}
		}
	}
	t.Log(kinds)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if kinds[kind] < 50 {
			t.Errorf("%s: %d", kind, kinds[kind])
		}
	}
}
