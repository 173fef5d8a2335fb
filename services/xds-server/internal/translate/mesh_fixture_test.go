package translate_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	"sigs.k8s.io/yaml"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// testCase is a file of testdata/in: a class and a normalised mesh. Services are configv1.Services with short forms of
// common fields; Istio's objects are as a user writes them, with full hostnames.
type testCase struct {
	Class     classSpec         `json:"class"`
	Mesh      json.RawMessage   `json:"mesh"`
	Services  []json.RawMessage `json:"services"`
	Endpoints []endpointsSpec   `json:"endpoints"`
	Objects   []objectSpec      `json:"objects"`
	// GatewayAPI are configv1.GatewayAPIConfigs.
	GatewayAPI []objectSpec `json:"gatewayAPI"`
	// Asks are clusters that the proxy requests besides those that it is sent.
	Asks []string `json:"asks"`
}

type classSpec struct {
	Type         string            `json:"type"`
	Namespace    string            `json:"namespace"`
	Labels       map[string]string `json:"labels"`
	Targets      []targetSpec      `json:"targets"`
	Addresses    []string          `json:"addresses"`
	Locality     string            `json:"locality"`
	Interception string            `json:"interception"`
	OnDemand     bool              `json:"onDemand"`
	Topology     json.RawMessage   `json:"topology"`
	DNSCapture   bool              `json:"dnsCapture"`
	Families     string            `json:"families"`
	Headers      json.RawMessage   `json:"headers"`
	// Filters are the filters of policies that the proxy has: chains, rbac, extAuthz, jwt. Without the field it has all
	// but chains, as a client that lists none.
	Filters []string `json:"filters"`
}

type targetSpec struct {
	Host       string `json:"host"`
	Namespace  string `json:"namespace"`
	Port       uint32 `json:"port"`
	TargetPort uint32 `json:"targetPort"`
	Protocol   string `json:"protocol"`
}

// endpointsSpec is an EndpointSet: "service:port", and for each endpoint an address and what differs from a ready
// workload with a proxy.
type endpointsSpec struct {
	Host      string         `json:"host"`
	Namespace string         `json:"namespace"`
	Port      uint32         `json:"port"`
	Cluster   string         `json:"cluster"`
	Away      bool           `json:"away"`
	Endpoints []endpointSpec `json:"endpoints"`
}

type endpointSpec struct {
	Address  string            `json:"address"`
	Port     uint32            `json:"port"`
	Labels   map[string]string `json:"labels"`
	Locality string            `json:"locality"`
	Health   string            `json:"health"`
	Plain    bool              `json:"plain"`
	Identity string            `json:"identity"`
	Weight   uint32            `json:"weight"`
	Workload string            `json:"workload"`
	Hostname string            `json:"hostname"`
	Network  string            `json:"network"`
	More     []string          `json:"more"`
}

type objectSpec struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Created     time.Time         `json:"creationTimestamp"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec"`
	// Closed is true for a policy that config-watcher could not read.
	Closed bool `json:"closed"`
}

var specTypes = map[string]func() proto.Message{
	"VirtualService":     func() proto.Message { return &networking.VirtualService{} },
	"DestinationRule":    func() proto.Message { return &networking.DestinationRule{} },
	"Gateway":            func() proto.Message { return &networking.Gateway{} },
	"Sidecar":            func() proto.Message { return &networking.Sidecar{} },
	"PeerAuthentication": func() proto.Message { return &security.PeerAuthentication{} },
	"EnvoyFilter":        func() proto.Message { return &networking.EnvoyFilter{} },

	"AuthorizationPolicy":   func() proto.Message { return &security.AuthorizationPolicy{} },
	"RequestAuthentication": func() proto.Message { return &security.RequestAuthentication{} },
}

var filters = map[string]class.Filters{
	"chains": class.FilterChains, "rbac": class.RBAC, "extAuthz": class.ExtAuthz, "jwt": class.JWT, "stats": class.StatsLogger,
}

// fixture is a class, a snapshot of the mesh, and the clusters that the class requests.
type fixture struct {
	key   *class.Key
	state *mesh.Snapshot
	asks  []string
}

func (w fixture) reader() *input.Reader { return input.NewView(w.key, w.state).Reader() }

// load reads a case of testdata/in.
func load(t testing.TB, path string) fixture {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, path, raw)
}

// parse reads a case that is not in a file of its own.
func parse(t testing.TB, path string, raw []byte) fixture {
	t.Helper()
	var c testCase
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	resources, err := c.resources()
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	state, err := mesh.FromResources(resources)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	key := c.Class.key()
	return fixture{key.WithSidecar(state, key.Labels), state, c.Asks}
}

func (c classSpec) key() *class.Key {
	key := &class.Key{
		Type: class.Sidecar, Namespace: c.Namespace, Labels: c.Labels, Addresses: c.Addresses, Locality: c.Locality,
		Interception: class.Redirect, TrustDomain: "cluster.local", DNSDomain: c.Namespace + ".svc.cluster.local",
		GatewayTopology: class.GatewayTopology(c.Topology), ProxyHeaders: class.ProxyHeaders(c.Headers),
	}
	if c.Type == "router" {
		key.Type = class.Router
	}
	switch c.Interception {
	case "TPROXY":
		key.Interception = class.TProxy
	case "NONE":
		key.Interception = class.None
	}
	key.DNSCapture = c.DNSCapture
	key.Filters = class.RBAC | class.ExtAuthz | class.JWT
	if c.Filters != nil {
		key.Filters = 0
		for _, name := range c.Filters {
			key.Filters |= filters[name]
		}
	}
	switch c.Families {
	case "IPv6":
		key.Families = class.IPv6
	case "DUAL_STACK":
		key.Families = class.DualStack
	}
	if c.OnDemand && key.Type == class.Sidecar {
		key.VirtualHosts, key.OnDemand = true, true
	}
	for _, t := range c.Targets {
		key.Targets = append(key.Targets, class.Target{
			Hostname: t.Host, Namespace: t.Namespace, Port: t.Port, TargetPort: t.TargetPort,
			Protocol: configv1.Protocol_value["PROTOCOL_"+t.Protocol],
		})
	}
	return key
}

func (c *testCase) resources() ([]*configv1.Resource, error) {
	var out []*configv1.Resource
	if c.Mesh != nil {
		settings := &meshv1alpha1.MeshConfig{}
		if err := protojson.Unmarshal(c.Mesh, settings); err != nil {
			return nil, fmt.Errorf("mesh: %w", err)
		}
		packed, err := anypb.New(settings)
		if err != nil {
			return nil, err
		}
		out = append(out, &configv1.Resource{
			Key:  &configv1.ResourceKey{Kind: "MeshConfig", Name: "default"},
			Body: &configv1.Resource_MeshConfig{MeshConfig: &configv1.MeshConfig{Settings: packed}},
		})
	}
	for i, raw := range c.Services {
		svc := &configv1.Service{}
		if err := protojson.Unmarshal(raw, svc); err != nil {
			return nil, fmt.Errorf("services[%d]: %w", i, err)
		}
		serviceDefaults(svc)
		out = append(out, &configv1.Resource{
			Key:  &configv1.ResourceKey{Kind: "Service", Namespace: svc.GetNamespace(), Name: svc.GetHostname()},
			Body: &configv1.Resource_Service{Service: svc},
		})
	}
	for _, e := range c.Endpoints {
		out = append(out, e.resource())
	}
	for _, o := range c.Objects {
		r, err := o.resource()
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	for _, o := range c.GatewayAPI {
		r, err := o.gatewayAPI()
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// serviceDefaults sets the common fields of a case's services.
func serviceDefaults(svc *configv1.Service) {
	name, rest, _ := strings.Cut(svc.GetHostname(), ".")
	if svc.GetName() == "" {
		svc.Name = name
	}
	if svc.GetNamespace() == "" {
		svc.Namespace, _, _ = strings.Cut(rest, ".")
	}
	if svc.GetResolution() == configv1.Resolution_RESOLUTION_UNSPECIFIED {
		svc.Resolution = configv1.Resolution_RESOLUTION_STATIC
	}
	if len(svc.GetExportedTo()) == 0 {
		svc.ExportedTo = []string{"*"}
	}
	if svc.GetSource() == nil {
		svc.Source = &configv1.SourceRef{Kind: "ServiceEntry"}
		if strings.HasSuffix(svc.GetHostname(), ".svc.cluster.local") {
			svc.Source.Kind = "Service"
		}
	}
}

func (e endpointsSpec) resource() *configv1.Resource {
	set := &configv1.EndpointSet{Hostname: e.Host, Port: e.Port, Cluster: e.Cluster, Away: e.Away}
	if set.GetCluster() == "" {
		set.Cluster = "Kubernetes"
	}
	for _, spec := range e.Endpoints {
		endpoint := &configv1.Endpoint{
			Address: spec.Address, Port: spec.Port, Identity: spec.Identity, Weight: spec.Weight, Workload: spec.Workload,
			Hostname: spec.Hostname, Network: spec.Network, AdditionalAddresses: spec.More,
			Health: configv1.Health_HEALTH_READY, TlsMode: configv1.TlsMode_TLS_MODE_ISTIO,
		}
		if spec.Plain {
			endpoint.TlsMode = configv1.TlsMode_TLS_MODE_DISABLED
		}
		if spec.Health != "" {
			endpoint.Health = configv1.Health(configv1.Health_value["HEALTH_"+spec.Health])
		}
		endpoint.LabelSet = uint32(len(set.GetLabelSets()))
		set.LabelSets = append(set.LabelSets, &configv1.LabelSet{Labels: spec.Labels})
		parts := append(strings.Split(spec.Locality, "/"), "", "")
		endpoint.Locality = uint32(len(set.GetLocalities()))
		set.Localities = append(set.Localities, &configv1.Locality{Region: parts[0], Zone: parts[1], Subzone: parts[2]})
		set.Endpoints = append(set.Endpoints, endpoint)
	}
	namespace := e.Namespace
	if namespace == "" {
		namespace = strings.Split(e.Host+"..", ".")[1]
	}
	return &configv1.Resource{
		Key:  &configv1.ResourceKey{Kind: "EndpointSet", Namespace: namespace, Name: fmt.Sprintf("%s:%d/%s", e.Host, e.Port, set.GetCluster())},
		Body: &configv1.Resource_EndpointSet{EndpointSet: set},
	}
}

func (o objectSpec) resource() (*configv1.Resource, error) {
	make, ok := specTypes[o.Kind]
	if !ok {
		return nil, fmt.Errorf("kind %q", o.Kind)
	}
	spec := make()
	if err := protojson.Unmarshal(o.Spec, spec); err != nil {
		return nil, fmt.Errorf("%s %s: %w", o.Kind, o.Metadata.Name, err)
	}
	packed, err := anypb.New(spec)
	if err != nil {
		return nil, err
	}
	config := &configv1.IstioConfig{
		Spec: packed, ExportedTo: []string{"*"}, Annotations: o.Metadata.Annotations, HeldClosed: o.Closed,
	}
	if !o.Metadata.Created.IsZero() {
		config.CreationTime = timestamppb.New(o.Metadata.Created)
	}
	return &configv1.Resource{
		Key:  &configv1.ResourceKey{Kind: o.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name},
		Body: &configv1.Resource_IstioConfig{IstioConfig: config},
	}, nil
}

// gatewayAPI is resource for an object of the Gateway API.
func (o objectSpec) gatewayAPI() (*configv1.Resource, error) {
	config := &configv1.GatewayAPIConfig{}
	if err := protojson.Unmarshal(o.Spec, config); err != nil {
		return nil, fmt.Errorf("%s %s: %w", o.Kind, o.Metadata.Name, err)
	}
	if !o.Metadata.Created.IsZero() {
		config.CreationTime = timestamppb.New(o.Metadata.Created)
	}
	return &configv1.Resource{
		Key:  &configv1.ResourceKey{Kind: contract.GatewayAPIKind(o.Kind), Namespace: o.Metadata.Namespace, Name: o.Metadata.Name},
		Body: &configv1.Resource_GatewayApi{GatewayApi: config},
	}, nil
}

// render writes messages as one YAML document each, in the given order. protojson's spacing is unstable on purpose.
func render(t testing.TB, messages []proto.Message) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, m := range messages {
		raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := yaml.JSONToYAML(raw)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(doc)
	}
	return out.Bytes()
}

func sorted(set map[string]bool) []string {
	var out []string
	for name := range set {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
