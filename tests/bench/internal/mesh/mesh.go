// Package mesh makes the meshes that are benchmarked, as the resources that config-watcher sends for them and as the
// YAML that a user writes.
package mesh

import (
	"crypto/sha256"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Namespaces of the services. Few is one more, of the proxies that alone see the service Private.
const (
	Namespaces = 10
	Few        = "few"
	private    = "private"
)

// Every service has so many endpoints.
const replicas = 2

// created is when everything was.
var created = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Spec says how large a mesh is.
type Spec struct {
	// Services there are, Rules of each kind: VirtualServices and DestinationRules.
	Services, Rules int
	// Sidecars connect, in so many Classes: sidecars of one class are Pods of one Deployment. One in a hundred of them
	// is of namespace Few.
	Sidecars, Classes int
	// Namespaces of the services, if they are not as many as the constant says. Then no rules are about them.
	Namespaces int
	// Policies are AuthorizationPolicies, each of which selects a service's Pods.
	Policies int
}

// service names service i: its namespace is one of ten, or of spread if that is not 0, and every tenth in each of them
// is TCP.
type service struct{ index, spread int }

// service i of the mesh.
func (m Spec) service(i int) service { return service{i, m.Namespaces} }

func (s service) namespaces() int {
	if s.spread > 0 {
		return s.spread
	}
	return Namespaces
}

func (s service) namespace() string { return fmt.Sprintf("ns-%d", s.index%s.namespaces()) }
func (s service) name() string      { return fmt.Sprintf("svc-%04d", s.index/s.namespaces()) }
func (s service) host() string      { return s.name() + "." + s.namespace() + ".svc.cluster.local" }
func (s service) tcp() bool         { return s.index/s.namespaces()%10 == 3 }

func (s service) port() *configv1.ServicePort {
	if s.tcp() {
		return &configv1.ServicePort{Name: "tcp", Number: 9000, Protocol: configv1.Protocol_PROTOCOL_TCP, TargetPort: 9000}
	}
	return &configv1.ServicePort{Name: "http", Number: 80, Protocol: configv1.Protocol_PROTOCOL_HTTP, TargetPort: 8080}
}

func (s service) vip() string {
	return fmt.Sprintf("10.%d.%d.%d", 96+s.index/62500, s.index/250%250, 1+s.index%250)
}

func (s service) pod(replica int) string { return fmt.Sprintf("%s-%d", s.name(), replica) }

// address of a Pod; turn makes other ones.
func (s service) address(replica, turn int) string {
	return fmt.Sprintf("10.%d.%d.%d", 128+(replica+turn*replicas)%100, s.index/250, 1+s.index%250)
}

func (s service) labels(replica int) map[string]string {
	return map[string]string{"app": s.name(), "version": fmt.Sprintf("v%d", 1+replica%replicas)}
}

// Rule r is about the r-th service that speaks HTTP, namespaces in turn.
func ruled(r int) service {
	// Of every hundred services those 30 to 39 are TCP.
	return service{index: r/90*100 + r%90 + 10*btoi(r%90 >= 30)}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Resources of the whole mesh.
func (m Spec) Resources() []*configv1.Resource {
	out := []*configv1.Resource{settings(), namespace(Few)}
	for n := range m.service(0).namespaces() {
		out = append(out, namespace(fmt.Sprintf("ns-%d", n)))
	}
	for i := range m.Services {
		s := m.service(i)
		out = append(out, serviceOf(s, "*"), endpoints(s, 0, ""))
		for r := range replicas {
			out = append(out, workload(s, r, true, ""))
		}
	}
	for r := range m.Rules {
		out = append(out, VirtualService(r, 0), DestinationRule(r, 0))
	}
	for i := range m.Policies {
		out = append(out, m.policy(i, 0))
	}
	out = append(out, privateService(), PrivateEndpoints(0), idle(0))
	for _, p := range m.Proxies() {
		if p.resource != nil {
			out = append(out, p.resource)
		}
	}
	return out
}

// seal finishes a resource: its hash is what config-watcher would send.
func seal(kind, namespace, name string, r *configv1.Resource) *configv1.Resource {
	r.Key = &configv1.ResourceKey{Kind: kind, Namespace: namespace, Name: name}
	m := r.ProtoReflect()
	body := m.Get(m.WhichOneof(m.Descriptor().Oneofs().ByName("body"))).Message().Interface()
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(body)
	if err != nil {
		panic(err) // the bodies are this package's own
	}
	sum := sha256.Sum256(raw)
	r.Hash = sum[:16]
	return r
}

func source(apiVersion, kind, namespace, name string) *configv1.SourceRef {
	return &configv1.SourceRef{Source: "file", ApiVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name, Location: "mesh.yaml:1"}
}

func settings() *configv1.Resource {
	packed := pack(&meshv1alpha1.MeshConfig{
		TrustDomain: "cluster.local", RootNamespace: rootNamespace,
		OutboundTrafficPolicy: &meshv1alpha1.MeshConfig_OutboundTrafficPolicy{Mode: meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY},
	})
	return seal("MeshConfig", "", "default",
		&configv1.Resource{Body: &configv1.Resource_MeshConfig{MeshConfig: &configv1.MeshConfig{Settings: packed}}})
}

func pack(m proto.Message) *anypb.Any {
	packed, err := anypb.New(m)
	if err != nil {
		panic(err) // the messages are this package's own
	}
	return packed
}

func namespace(name string) *configv1.Resource {
	return seal("Namespace", "", name, &configv1.Resource{Body: &configv1.Resource_Namespace{Namespace: &configv1.Namespace{
		Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name, "istio-injection": "enabled"},
	}}})
}

func serviceOf(s service, exportedTo string) *configv1.Resource {
	return seal("Service", s.namespace(), s.host(), &configv1.Resource{Body: &configv1.Resource_Service{Service: &configv1.Service{
		Hostname: s.host(), Name: s.name(), Namespace: s.namespace(), Ports: []*configv1.ServicePort{s.port()}, Addresses: []string{s.vip()},
		Resolution: configv1.Resolution_RESOLUTION_STATIC, ExportedTo: []string{exportedTo}, Selector: map[string]string{"app": s.name()},
		CreationTime: timestamppb.New(created), Source: source("v1", "Service", s.namespace(), s.name()),
	}}})
}

// endpoints of a service; turn gives them other addresses, and mark another label, which nobody selects.
func endpoints(s service, turn int, mark string) *configv1.Resource {
	set := &configv1.EndpointSet{Hostname: s.host(), Port: s.port().GetNumber(), Cluster: "Kubernetes", Localities: []*configv1.Locality{{}}}
	for r := range replicas {
		labels := s.labels(r)
		if mark != "" && r == 0 {
			labels["mark"] = mark
		}
		set.LabelSets = append(set.LabelSets, &configv1.LabelSet{Labels: labels})
		set.Endpoints = append(set.Endpoints, &configv1.Endpoint{
			Address: s.address(r, turn), Port: s.port().GetTargetPort(), LabelSet: uint32(r),
			Health:  configv1.Health_HEALTH_READY, //nolint:gosec // small
			TlsMode: configv1.TlsMode_TLS_MODE_ISTIO, Identity: identity(s.namespace()), Workload: s.namespace() + "/" + s.pod(r),
		})
	}
	return seal("EndpointSet", s.namespace(), fmt.Sprintf("%s:%d/Kubernetes", s.host(), set.GetPort()),
		&configv1.Resource{Body: &configv1.Resource_EndpointSet{EndpointSet: set}})
}

func identity(namespace string) string {
	return "spiffe://cluster.local/ns/" + namespace + "/sa/default"
}

// workload is a Pod of a service; those that are no endpoints have addresses of their own.
func workload(s service, replica int, endpoint bool, mark string) *configv1.Resource {
	w := &configv1.Workload{
		Name: s.pod(replica), Namespace: s.namespace(), Labels: s.labels(replica), ServiceAccount: "default", Identity: identity(s.namespace()),
		Cluster: "Kubernetes", TlsMode: configv1.TlsMode_TLS_MODE_ISTIO, Source: source("v1", "Pod", s.namespace(), s.pod(replica)),
		Targets: []*configv1.ServiceTarget{{
			Hostname: s.host(), Port: s.port().GetNumber(), TargetPort: s.port().GetTargetPort(), Namespace: s.namespace(),
		}},
	}
	if mark != "" {
		w.Labels["mark"] = mark
	}
	if endpoint {
		w.Addresses = []string{s.address(replica, 0)}
	} else {
		w.Addresses = []string{extra(s, replica)}
	}
	return seal("Workload", s.namespace(), w.GetName(), &configv1.Resource{Body: &configv1.Resource_Workload{Workload: w}})
}

// extraPrefix begins the addresses of Pods that are no endpoints.
const extraPrefix = "172."

func extra(s service, replica int) string {
	return fmt.Sprintf(extraPrefix+"%d.%d.%d", 16+replica, s.index/250, 1+s.index%250)
}

// idle is a Pod that no service selects.
func idle(turn int) *configv1.Resource {
	return seal("Workload", "ns-0", "job", &configv1.Resource{Body: &configv1.Resource_Workload{Workload: &configv1.Workload{
		Name: "job", Namespace: "ns-0", Labels: map[string]string{"job": fmt.Sprint(turn)}, ServiceAccount: "default",
		Addresses: []string{"10.250.0.1"},
		Cluster:   "Kubernetes", TlsMode: configv1.TlsMode_TLS_MODE_DISABLED, Source: source("v1", "Pod", "ns-0", "job"),
	}}})
}

func privateService() *configv1.Resource {
	host := private + "." + Few + ".svc.cluster.local"
	return seal("Service", Few, host, &configv1.Resource{Body: &configv1.Resource_Service{Service: &configv1.Service{
		Hostname: host, Name: private, Namespace: Few, Addresses: []string{"10.111.0.1"}, Resolution: configv1.Resolution_RESOLUTION_STATIC,
		Ports:      []*configv1.ServicePort{{Name: "http", Number: 80, Protocol: configv1.Protocol_PROTOCOL_HTTP, TargetPort: 8080}},
		ExportedTo: []string{Few}, CreationTime: timestamppb.New(created), Source: source("v1", "Service", Few, private),
	}}})
}

// PrivateEndpoints are those of the service that only Few sees.
func PrivateEndpoints(turn int) *configv1.Resource {
	host := private + "." + Few + ".svc.cluster.local"
	set := &configv1.EndpointSet{Hostname: host, Port: 80, Cluster: "Kubernetes", LabelSets: []*configv1.LabelSet{{}},
		Localities: []*configv1.Locality{{}}}
	for r := range replicas {
		set.Endpoints = append(set.Endpoints, &configv1.Endpoint{
			Address: fmt.Sprintf("10.%d.255.%d", 128+turn%100, 1+r), Port: 8080, Health: configv1.Health_HEALTH_READY,
			TlsMode:  configv1.TlsMode_TLS_MODE_ISTIO,
			Identity: identity(Few),
		})
	}
	return seal("EndpointSet", Few, host+":80/Kubernetes", &configv1.Resource{Body: &configv1.Resource_EndpointSet{EndpointSet: set}})
}

// config makes an object of Istio's APIs.
func config(kind string, s service, spec proto.Message) *configv1.Resource {
	return configOf("networking.istio.io/v1", kind, s.namespace(), s.name(), spec)
}

func configOf(version, kind, namespace, name string, spec proto.Message) *configv1.Resource {
	return seal(kind, namespace, name, &configv1.Resource{Body: &configv1.Resource_IstioConfig{IstioConfig: &configv1.IstioConfig{
		Spec: pack(spec), CreationTime: timestamppb.New(created), ExportedTo: []string{"*"}, Source: source(version, kind, namespace, name),
	}}})
}

// VirtualService r splits the requests to its service between two subsets; turn changes the shares.
func VirtualService(r, turn int) *configv1.Resource {
	s := ruled(r)
	share := int32(1 + turn%98) //nolint:gosec // a percentage
	to := func(subset string, weight int32) *networking.HTTPRouteDestination {
		return &networking.HTTPRouteDestination{Weight: weight, Destination: &networking.Destination{Host: s.host(), Subset: subset}}
	}
	return config("VirtualService", s, &networking.VirtualService{
		Hosts: []string{s.host()}, Gateways: []string{"mesh"},
		Http: []*networking.HTTPRoute{{
			Timeout: durationpb.New(10 * time.Second),
			Retries: &networking.HTTPRetry{Attempts: 3, PerTryTimeout: durationpb.New(2 * time.Second), RetryOn: "5xx"},
			Route:   []*networking.HTTPRouteDestination{to("v1", share), to("v2", 100-share)},
		}},
	})
}

// DestinationRule r names the subsets; turn changes the timeout of connections.
func DestinationRule(r, turn int) *configv1.Resource {
	s := ruled(r)
	return config("DestinationRule", s, &networking.DestinationRule{
		Host: s.host(),
		TrafficPolicy: &networking.TrafficPolicy{ConnectionPool: &networking.ConnectionPoolSettings{
			Tcp: &networking.ConnectionPoolSettings_TCPSettings{ConnectTimeout: durationpb.New(time.Duration(1+turn%20) * time.Second)},
		}},
		Subsets: []*networking.Subset{{Name: "v1", Labels: map[string]string{"version": "v1"}},
			{Name: "v2", Labels: map[string]string{"version": "v2"}}},
	})
}
