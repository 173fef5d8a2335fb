package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/tests/internal/probe"
)

// ProxyStatus is what `fairlead proxy-status` tells of a proxy.
type ProxyStatus struct {
	NodeID    string `json:"nodeId"`
	XDSServer string `json:"xdsServer"`
	Types     []struct {
		TypeURL   string `json:"typeUrl"`
		BytesSent uint64 `json:"bytesSent,string"`
		Resources int    `json:"resources"`
		Awaiting  bool   `json:"awaiting"`
		Rejection *struct {
			Message string `json:"message"`
		} `json:"rejection"`
	} `json:"types"`
}

// Pod is the name of the proxy's Pod.
func (s ProxyStatus) Pod() string {
	parts := strings.Split(s.NodeID, "~")
	if len(parts) < 3 {
		return s.NodeID
	}
	name, _, _ := strings.Cut(parts[2], ".")
	return name
}

// Server is the name of the xds-server process that the proxy is connected to.
func (s ProxyStatus) Server() string {
	name, _, _ := strings.Cut(s.XDSServer, "/")
	return name
}

// Sent is the sum of the bytes of all types.
func (s ProxyStatus) Sent() uint64 {
	var n uint64
	for _, ty := range s.Types {
		n += ty.BytesSent
	}
	return n
}

// ProxyStatuses asks `fairlead proxy-status`, by Pod.
func (m *Mesh) ProxyStatuses(t *testing.T) (map[string]ProxyStatus, error) {
	t.Helper()
	list, err := m.Streams(t)
	byPod := map[string]ProxyStatus{}
	for _, p := range list {
		byPod[p.Pod()] = p
	}
	return byPod, err
}

// Streams asks `fairlead proxy-status`. A Pod whose applications speak xDS themselves may have several.
func (m *Mesh) Streams(t *testing.T) ([]ProxyStatus, error) {
	t.Helper()
	code, out, errOut := m.CLI(t, "proxy-status", "-o", "json")
	if code != 0 {
		return nil, fmt.Errorf("proxy-status: exit code %d: %s", code, errOut)
	}
	var list struct {
		Proxies []ProxyStatus `json:"proxies"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("proxy-status: %w", err)
	}
	return list.Proxies, nil
}

// Received is how many bytes of xDS responses the Pod's agent has forwarded to Envoy.
func (p *Pod) Received(ctx context.Context) (float64, error) {
	return probe.Metric(ctx, probe.Client(nil), "http://"+p.Agent.StatusAddress+"/metrics", "fairlead_node_agent_relay_bytes_total",
		map[string]string{"direction": "response"})
}
