// Package node makes the xDS Node: id, locality and metadata that tell an xds-server which proxy it serves. New makes
// Envoy's for package bootstrap, NewProxyless that of proxyless gRPC programs for package proxyless. The keys are those
// of Istio's agent, so that istiod understands this agent and Fairlead understands Istio's.
package node

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/pkg/version"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/config"
)

// istioVersion is the Istio release whose agent this one is compatible with. Control planes decide by it which features
// a proxy understands.
const istioVersion = "1.31.1"

// The metadata by which control planes recognise proxyless gRPC programs.
const (
	generatorKey  = "GENERATOR"
	generatorGRPC = "grpc"
)

// localityLabel is Istio's label of a whole locality. Its parts are separated by dots, because a label value cannot
// contain a slash.
const localityLabel = "istio-locality"

// New makes the node of the Envoy that c describes.
func New(c *config.Config) (*corev3.Node, error) {
	meta, err := metadata(c)
	if err != nil {
		return nil, err
	}
	return &corev3.Node{
		Id:       ID(c),
		Cluster:  cluster(c),
		Metadata: meta,
		Locality: locality(c),
	}, nil
}

// NewProxyless makes the node of proxyless gRPC programs. Its locality is never nil, because grpc-js requires one.
func NewProxyless(c *config.Config) (*corev3.Node, error) {
	n, err := New(c)
	if err != nil {
		return nil, err
	}
	n.Metadata.Fields[generatorKey] = structpb.NewStringValue(generatorGRPC)
	n.Locality = cmp.Or(n.Locality, &corev3.Locality{})
	return n, nil
}

// ID returns the node id, "<role>~<ip>~<pod>.<namespace>~<domain>".
func ID(c *config.Config) string {
	return fmt.Sprintf("%s~%s~%s.%s~%s", c.Role, c.InstanceIPs[0], c.PodName, c.Namespace, c.DNSDomain)
}

// cluster is Node.cluster, by which traces name the proxy: ProxyConfig's serviceCluster, or what its tracingServiceName
// asks for, or the workload's application and namespace. The serviceCluster of the mesh's defaults stands for none.
func cluster(c *config.Config) string {
	workload, _ := c.Meta["WORKLOAD_NAME"].(string)
	canonical := cmp.Or(c.Labels["service.istio.io/canonical-name"], c.Labels["app.kubernetes.io/name"], c.Labels["app"], workload,
		meshdefaults.ServiceCluster)
	if c.ProxyConfig.GetClusterName() != nil {
		switch c.ProxyConfig.GetTracingServiceName() {
		case meshv1alpha1.ProxyConfig_CANONICAL_NAME_ONLY:
			if canonical != meshdefaults.ServiceCluster {
				return canonical
			}
		case meshv1alpha1.ProxyConfig_CANONICAL_NAME_AND_NAMESPACE:
			return canonical + "." + c.Namespace
		default:
		}
	}
	if s := c.ProxyConfig.GetServiceCluster(); s != "" && s != meshdefaults.ServiceCluster {
		return s
	}
	return cmp.Or(c.Labels["app.kubernetes.io/name"], c.Labels["app"], workload, meshdefaults.ServiceCluster) + "." + c.Namespace
}

func metadata(c *config.Config) (*structpb.Struct, error) {
	ips := make([]string, len(c.InstanceIPs))
	for i, ip := range c.InstanceIPs {
		ips[i] = ip.String()
	}
	m := map[string]any{
		"NAME":                  c.PodName,
		"NAMESPACE":             c.Namespace,
		"SERVICE_ACCOUNT":       c.ServiceAccount,
		"INSTANCE_IPS":          strings.Join(ips, ","),
		"ISTIO_VERSION":         istioVersion,
		"FAIRLEAD_VERSION":      version.Version,
		"ENVOY_STATUS_PORT":     int64(c.ReadyAddress.Port()),
		"ENVOY_PROMETHEUS_PORT": int64(c.StatsAddress.Port()),
		"PROXY_XDS_VIA_AGENT":   "true",
		"CLUSTER_ID":            "Kubernetes",

		contract.KeepsExtensionConfigs: "true", // see the relay
	}
	if c.Role == config.Sidecar {
		m["INTERCEPTION_MODE"] = c.Interception
	}
	if id := c.ProxyConfig.GetMeshId(); id != "" {
		m["MESH_ID"] = id
	}
	if c.OnDemand != nil {
		m[proxyconfig.OnDemand] = strconv.FormatBool(*c.OnDemand)
	}
	maps.Copy(m, c.Meta)
	if m[generatorKey] == generatorGRPC {
		delete(m, generatorKey) // it describes proxyless programs beside Envoy, not Envoy
	}
	if len(c.Labels) > 0 {
		m["LABELS"] = anyMap(c.Labels)
	}
	if len(c.Annotations) > 0 {
		m["ANNOTATIONS"] = anyMap(c.Annotations)
	}
	s, err := structpb.NewStruct(m)
	if err != nil {
		return nil, fmt.Errorf("node metadata: %w", err)
	}
	js, err := protojson.Marshal(c.ProxyConfig)
	if err != nil {
		return nil, fmt.Errorf("node metadata PROXY_CONFIG: %w", err)
	}
	pc := &structpb.Struct{}
	if err := protojson.Unmarshal(js, pc); err != nil {
		return nil, fmt.Errorf("node metadata PROXY_CONFIG: %w", err)
	}
	s.Fields["PROXY_CONFIG"] = structpb.NewStructValue(pc)
	return s, nil
}

// locality comes from the label istio-locality, else from the topology labels; nil if there are none.
func locality(c *config.Config) *corev3.Locality {
	l := &corev3.Locality{
		Region:  c.Labels["topology.kubernetes.io/region"],
		Zone:    c.Labels["topology.kubernetes.io/zone"],
		SubZone: c.Labels["topology.istio.io/subzone"],
	}
	if v := c.Labels[localityLabel]; v != "" {
		sep := "."
		if strings.Contains(v, "/") {
			sep = "/"
		}
		parts := append(strings.SplitN(v, sep, 3), "", "")
		l = &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
	}
	if l.Region == "" && l.Zone == "" && l.SubZone == "" {
		return nil
	}
	return l
}

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}
