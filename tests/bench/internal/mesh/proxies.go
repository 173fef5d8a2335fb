package mesh

import (
	"fmt"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Proxy is a sidecar of the mesh.
type Proxy struct {
	ID, Namespace string
	// Node is its core.Node, encoded.
	Node []byte
	// resource is its Workload, if the mesh has none yet.
	resource *configv1.Resource
}

// Proxies lists the sidecars. Of a mesh with more sidecars the first ones are the same, and all are of the same
// classes.
func (m Spec) Proxies() []Proxy {
	var out []Proxy
	few := m.few()
	for i := range m.Sidecars - few {
		s, r := m.service(i%m.Classes), i/m.Classes
		p := Proxy{}
		address := s.address(r, 0)
		if r >= replicas {
			p.resource, address = workload(s, r, false, ""), extra(s, r)
		}
		out = append(out, p.describe(s.pod(r), s.namespace(), address, s.labels(r)))
	}
	for i := range few {
		name, labels := fmt.Sprintf("client-%d", i), map[string]string{"app": "client"}
		address := fmt.Sprintf("10.249.0.%d", 1+i)
		p := Proxy{resource: seal("Workload", Few, name, &configv1.Resource{Body: &configv1.Resource_Workload{Workload: &configv1.Workload{
			Name: name, Namespace: Few, Labels: labels, ServiceAccount: "default", Identity: identity(Few), Addresses: []string{address},
			Cluster: "Kubernetes", TlsMode: configv1.TlsMode_TLS_MODE_ISTIO, Source: source("v1", "Pod", Few, name),
		}}})}
		out = append(out, p.describe(name, Few, address, labels))
	}
	return out
}

// extensions are those of Envoy's that decide what it is sent.
var extensions = func() (out []*core.Extension) {
	for _, name := range []string{"envoy.access_loggers.stats", "envoy.filters.http.ext_authz", "envoy.filters.http.filter_chain",
		"envoy.filters.http.jwt_authn", "envoy.filters.http.rbac"} {
		out = append(out, &core.Extension{Name: name})
	}
	return out
}()

func (m Spec) few() int { return m.Sidecars / 100 }

// Sidecar is a proxy of a Pod that is none of a Spec's.
func Sidecar(name, namespace, address string, labels map[string]string) Proxy {
	return Proxy{}.describe(name, namespace, address, labels)
}

// describe fills in what Istio's agent says of the proxy.
func (p Proxy) describe(name, namespace, address string, labels map[string]string) Proxy {
	p.Namespace = namespace
	p.ID = fmt.Sprintf("sidecar~%s~%s.%s~%s.svc.cluster.local", address, name, namespace, namespace)
	texts := map[string]any{}
	for k, v := range labels {
		texts[k] = v
	}
	meta, err := structpb.NewStruct(map[string]any{
		"NAME": name, "NAMESPACE": namespace, "SERVICE_ACCOUNT": "default", "INSTANCE_IPS": address, "ISTIO_VERSION": "1.31.1",
		"ENVOY_STATUS_PORT": 15021, "ENVOY_PROMETHEUS_PORT": 15090, "PROXY_XDS_VIA_AGENT": "true", "CLUSTER_ID": "Kubernetes",
		"INTERCEPTION_MODE": "REDIRECT", "LABELS": texts,
		"PROXY_CONFIG": map[string]any{"concurrency": 2, "discoveryAddress": "istiod.istio-system.svc:15012"},
	})
	if err != nil {
		panic(err) // the values are this package's own
	}
	p.Node, err = proto.Marshal(&core.Node{
		Id: p.ID, Cluster: labels["app"] + "." + namespace, Metadata: meta, UserAgentName: "envoy",
		UserAgentVersionType: &core.Node_UserAgentBuildVersion{UserAgentBuildVersion: &core.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40},
		}},
		ClientFeatures: []string{"envoy.lb.does_not_support_overprovisioning", "envoy.lrs.supports_send_all_clusters",
			"xds.config.resource-in-sotw"},
		Extensions: extensions,
	})
	if err != nil {
		panic(err) // the message is this package's own
	}
	return p
}
