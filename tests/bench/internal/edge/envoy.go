// Package edge is what stands around a Gateway in a benchmark: a real Envoy that is its proxy, the application behind
// it, and the client before it.
package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/bench/internal/kube"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// bootstrap is that of an Envoy which has everything else from a control plane, over a plaintext port.
const bootstrap = `
node:
  id: %[1]s
  cluster: %[2]s
  metadata: %[7]s
admin: {address: {socket_address: {address: %[3]s, port_value: %[4]s}}}
dynamic_resources:
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: xds
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[5]s, port_value: %[6]s}}}}]}]
`

// nodeID and nodeMetadata are what the proxy of kube.Edge says of itself.
const nodeID = "router~" + kube.EdgeAddress + "~" + kube.EdgeName + "." + kube.EdgeName + "~" + kube.EdgeName + ".svc.cluster.local"

var nodeMetadata = map[string]any{
	"NAME": kube.EdgeName, "NAMESPACE": kube.EdgeName, "SERVICE_ACCOUNT": "default", "INSTANCE_IPS": kube.EdgeAddress,
	"CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.31.1", "LABELS": map[string]any{"gateway": kube.EdgeName},
}

// Envoy is the proxy of kube.Edge.
type Envoy struct {
	*machine.Process
	admin string
}

// StartEnvoy starts an Envoy on the given processors, whose control plane has a plaintext port at an address. Its files
// are in dir.
func StartEnvoy(binary, dir, controlPlane string, on *unix.CPUSet) (*Envoy, error) {
	free, err := machine.FreePorts(1)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(controlPlane)
	if err != nil {
		return nil, err
	}
	adminHost, adminPort, err := net.SplitHostPort(free[0])
	if err != nil {
		return nil, err
	}
	file, log := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "envoy.log")
	metadata, err := json.Marshal(nodeMetadata)
	if err != nil {
		return nil, err
	}
	config := fmt.Appendf(nil, bootstrap, nodeID, kube.EdgeName, adminHost, adminPort, host, port, metadata)
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	p, err := machine.Start(process.Program{Name: "envoy", Path: binary, Stdout: log, Stderr: log,
		Args: []string{"-c", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"}}, on)
	if err != nil {
		return nil, err
	}
	return &Envoy{p, free[0]}, nil
}

// Received is how many bytes the control plane has sent.
func (e *Envoy) Received(ctx context.Context) (int64, error) {
	return e.stat(ctx, "cluster.xds.upstream_cx_rx_bytes_total")
}

// Rejected is how many updates Envoy has rejected.
func (e *Envoy) Rejected(ctx context.Context) (int64, error) {
	var sum int64
	for _, name := range []string{"cluster_manager.cds.update_rejected", "listener_manager.lds.update_rejected"} {
		n, err := e.stat(ctx, name)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (e *Envoy) stat(ctx context.Context, name string) (int64, error) {
	raw, err := probe.Get(ctx, probe.Client(nil), "http://"+e.admin+"/stats?filter=^"+name+"$")
	if err != nil {
		return 0, err
	}
	_, value, _ := strings.Cut(strings.TrimSpace(string(raw)), ": ")
	return strconv.ParseInt(value, 10, 64)
}
