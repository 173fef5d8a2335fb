// Package meshtest makes resources of a normalised mesh for tests, in the form in which config-watcher sends them.
package meshtest

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	"sigs.k8s.io/yaml"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Epoch is the default creation time of objects.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Resource completes a resource with its key and its hash.
func Resource(kind, namespace, name string, body *configv1.Resource) *configv1.Resource {
	body.Key = &configv1.ResourceKey{Kind: kind, Namespace: namespace, Name: name}
	hash, err := mesh.HashOf(body)
	if err != nil {
		panic(err) // a body that cannot be encoded is a broken test
	}
	body.Hash = hash[:]
	return body
}

// Service makes an HTTP service exported to all namespaces. change may alter it.
func Service(namespace, hostname string, port uint32, change ...func(*configv1.Service)) *configv1.Resource {
	s := &configv1.Service{
		Hostname: hostname, Name: hostname, Namespace: namespace, ExportedTo: []string{"*"},
		Ports:      []*configv1.ServicePort{{Name: "http", Number: port, Protocol: configv1.Protocol_PROTOCOL_HTTP, TargetPort: port}},
		Resolution: configv1.Resolution_RESOLUTION_STATIC, CreationTime: timestamppb.New(Epoch),
	}
	for _, f := range change {
		f(s)
	}
	return Resource(mesh.KindService, namespace, hostname, &configv1.Resource{Body: &configv1.Resource_Service{Service: s}})
}

// Endpoints makes the endpoints of a service port.
func Endpoints(namespace, hostname string, port uint32, addresses ...string) *configv1.Resource {
	set := &configv1.EndpointSet{
		Hostname: hostname, Port: port, Cluster: "test", LabelSets: []*configv1.LabelSet{{}}, Localities: []*configv1.Locality{{}},
	}
	for _, a := range addresses {
		set.Endpoints = append(set.Endpoints, &configv1.Endpoint{
			Address: a, Port: port, Health: configv1.Health_HEALTH_READY, TlsMode: configv1.TlsMode_TLS_MODE_ISTIO,
		})
	}
	return Resource(mesh.KindEndpointSet, namespace, fmt.Sprintf("%s:%d/test", hostname, port),
		&configv1.Resource{Body: &configv1.Resource_EndpointSet{EndpointSet: set}})
}

// VisibleOnlyIn turns a service, or its endpoints, into the variant that only these namespaces see, in place of what is
// exported to all. Its creation time is Epoch.
func VisibleOnlyIn(r *configv1.Resource, namespaces ...string) *configv1.Resource {
	key := mesh.Key{Kind: r.GetKey().GetKind(), Namespace: r.GetKey().GetNamespace(), Name: r.GetKey().GetName() + "/" + namespaces[0]}
	if s := r.GetService(); s != nil {
		s.ExportedTo, s.Audience, s.CreationTime = namespaces, namespaces[0], timestamppb.New(Epoch)
	}
	if set := r.GetEndpointSet(); set != nil {
		set.Audience = namespaces[0]
	}
	return Resource(key.Kind, key.Namespace, key.Name, &configv1.Resource{Body: r.GetBody()})
}

// Workload makes a workload. change may alter it.
func Workload(namespace, name, address string, change ...func(*configv1.Workload)) *configv1.Resource {
	w := &configv1.Workload{
		Name: name, Namespace: namespace, Addresses: []string{address}, ServiceAccount: "default", TlsMode: configv1.TlsMode_TLS_MODE_ISTIO,
		Labels: map[string]string{"app": name},
	}
	for _, f := range change {
		f(w)
	}
	return Resource(mesh.KindWorkload, namespace, name, &configv1.Resource{Body: &configv1.Resource_Workload{Workload: w}})
}

// Config makes an object of Istio's APIs, exported to all namespaces. change may alter it.
func Config(kind, namespace, name string, spec proto.Message, change ...func(*configv1.IstioConfig)) *configv1.Resource {
	packed, err := anypb.New(spec)
	if err != nil {
		panic(err) // a spec that cannot be encoded is a broken test
	}
	c := &configv1.IstioConfig{Spec: packed, CreationTime: timestamppb.New(Epoch), ExportedTo: []string{"*"}}
	for _, f := range change {
		f(c)
	}
	return Resource(kind, namespace, name, &configv1.Resource{Body: &configv1.Resource_IstioConfig{IstioConfig: c}})
}

// EnvoyFilter makes an EnvoyFilter from the YAML of its spec. It holds for its namespace or, in istio-system, for the
// mesh. change may alter it.
func EnvoyFilter(namespace, name, spec string, change ...func(*configv1.IstioConfig)) *configv1.Resource {
	js, err := yaml.YAMLToJSON([]byte(spec))
	if err != nil {
		panic(err) // as in Config
	}
	f := &networking.EnvoyFilter{}
	if err := protojson.Unmarshal(js, f); err != nil {
		panic(err)
	}
	if namespace != "istio-system" {
		change = append([]func(*configv1.IstioConfig){ExportedTo(namespace)}, change...)
	}
	return Config(mesh.KindEnvoyFilter, namespace, name, f, change...)
}

// Mesh makes the mesh-wide settings.
func Mesh(settings *meshv1alpha1.MeshConfig, gateways ...*configv1.NetworkGateway) *configv1.Resource {
	packed, err := anypb.New(settings)
	if err != nil {
		panic(err) // settings that cannot be encoded are a broken test
	}
	return Resource(mesh.KindMeshConfig, "", "default", &configv1.Resource{Body: &configv1.Resource_MeshConfig{
		MeshConfig: &configv1.MeshConfig{Settings: packed, NetworkGateways: gateways},
	}})
}

// Aged sets the creation time to so long after Epoch.
func Aged(d time.Duration) func(*configv1.IstioConfig) {
	return func(c *configv1.IstioConfig) { c.CreationTime = timestamppb.New(Epoch.Add(d)) }
}

// ExportedTo sets the namespaces that may use the object.
func ExportedTo(namespaces ...string) func(*configv1.IstioConfig) {
	return func(c *configv1.IstioConfig) { c.ExportedTo = namespaces }
}

// Visible sets the namespaces that may address the service.
func Visible(namespaces ...string) func(*configv1.Service) {
	return func(s *configv1.Service) { s.ExportedTo = namespaces }
}

// State builds a snapshot and fails the test if a resource is not understood.
func State(t testing.TB, resources ...*configv1.Resource) *mesh.Snapshot {
	t.Helper()
	s, err := mesh.FromResources(resources)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// DestinationRule makes a rule for a host with a connect timeout; 0 leaves it out.
func DestinationRule(host string, timeout time.Duration) *networking.DestinationRule {
	r := &networking.DestinationRule{Host: host}
	if timeout != 0 {
		r.TrafficPolicy = &networking.TrafficPolicy{ConnectionPool: &networking.ConnectionPoolSettings{
			Tcp: &networking.ConnectionPoolSettings_TCPSettings{ConnectTimeout: durationpb.New(timeout)},
		}}
	}
	return r
}

// PeerAuthentication makes one without a selector; mode is PERMISSIVE, STRICT, DISABLE or UNSET.
func PeerAuthentication(namespace, name, mode string, change ...func(*security.PeerAuthentication)) *configv1.Resource {
	pa := &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{
		Mode: security.PeerAuthentication_MutualTLS_Mode(security.PeerAuthentication_MutualTLS_Mode_value[mode]),
	}}
	for _, f := range change {
		f(pa)
	}
	return Config(mesh.KindPeerAuthentication, namespace, name, pa)
}
