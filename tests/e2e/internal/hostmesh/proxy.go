package hostmesh

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/probe"
)

// Workload says who the workload on a host is.
type Workload struct {
	Namespace, Name string
	// Account is the service account; empty means that of the workload's name.
	Account string
	// Env is added to the agent's environment.
	Env []string
	// EnvFile is the cluster.env of a machine outside of Kubernetes, and alone says who the workload is; "" for a Pod.
	EnvFile string
	// Args are added to its command line.
	Args []string
	// TProxy captures inbound connections with TPROXY, for which the proxy needs a capability.
	TProxy bool
}

// Proxy is a sidecar: an agent with its Envoy.
type Proxy struct {
	Host *Host

	t     *testing.T
	name  string
	state string
	token string
	start func() *agent
	agent *agent
}

// Join starts a sidecar on the host, and does not wait for it.
func (m *Mesh) Join(h *Host, w Workload) *Proxy {
	m.t.Helper()
	account := cmp.Or(w.Account, w.Name)
	p := &Proxy{Host: h, t: m.t, name: w.Name, state: filepath.Join(m.dir, "agent-"+w.Name), token: filepath.Join(m.dir, "token-"+w.Name)}
	err := errors.Join(os.Mkdir(p.state, 0o700), os.Chown(p.state, ProxyUID, ProxyUID))
	if w.EnvFile != "" { // a machine's token is of no Pod
		err = errors.Join(err, m.plane.WriteToken(p.token, ProxyUID, w.Namespace, account, contract.TokenAudience))
	} else {
		err = errors.Join(err, m.plane.WritePodToken(p.token, ProxyUID, w.Namespace, w.Name, account))
	}
	if err != nil {
		m.t.Fatal(err)
	}
	var servers []string
	for _, s := range m.servers {
		servers = append(servers, s.GRPC)
	}
	mode := "REDIRECT"
	if w.TProxy {
		mode = "TPROXY"
	}
	is := []string{
		"POD_NAME=" + w.Name, "POD_NAMESPACE=" + w.Namespace, "INSTANCE_IP=" + h.IP, "SERVICE_ACCOUNT=" + account,
		"ISTIO_META_CLUSTER_ID=Kubernetes", fmt.Sprintf(`ISTIO_METAJSON_LABELS={"app":%q}`, w.Name),
	}
	if w.EnvFile != "" {
		is = nil
		w.Args = append(w.Args, "--env-file", w.EnvFile)
	}
	p.start = func() *agent {
		return h.start(w.TProxy, slices.Concat(is, []string{
			"ISTIO_META_INTERCEPTION_MODE=" + mode, "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=0s",
		}, w.Env), append([]string{"proxy", "sidecar", "--state-dir", p.state, "--token-file", p.token, "--root-cert-file", m.plane.RootFile,
			"--envoy-binary", filepath.Join(m.dir, "envoy"), "--discovery-address", strings.Join(servers, ","), "--ca-address", m.plane.CA.GRPC},
			w.Args...)...)
	}
	p.agent = p.start()
	return p
}

// Agent is the agent's process.
func (p *Proxy) Agent() *netns.Process { return p.agent.Process }

// State is the directory of what the agent keeps.
func (p *Proxy) State() string { return p.state }

// Stop ends agent and Envoy.
func (p *Proxy) Stop() {
	p.t.Helper()
	p.agent.stop()
}

// RemoveToken deletes the agent's token: from now on it can only authenticate by a certificate.
func (p *Proxy) RemoveToken() {
	p.t.Helper()
	if err := os.Remove(p.token); err != nil {
		p.t.Fatal(err)
	}
}

// LogTail is the end of the agent's log.
func (p *Proxy) LogTail() string { return p.agent.LogTail() }

// Restart ends agent and Envoy and starts them again, and does not wait for them.
func (p *Proxy) Restart() {
	p.t.Helper()
	p.agent.stop()
	p.agent = p.start()
}

// WaitReady waits until the proxies take requests.
func WaitReady(t *testing.T, proxies ...*Proxy) {
	t.Helper()
	for _, p := range proxies {
		testkit.Eventually(t, Ready, p.ready)
	}
}

// ready asks the proxy's readiness port.
func (p *Proxy) ready() error {
	if err := probe.Ready(p.t.Context(), probe.Client(p.Host.DialBy), "http://127.0.0.1:15021/healthz/ready"); err != nil {
		return fmt.Errorf("%s is not ready: %w", p.name, err)
	}
	return nil
}

// envoy is a client of Envoy's admin interface.
func (p *Proxy) envoy() *http.Client { return probe.Unix(filepath.Join(p.state, probe.EnvoyAdmin)) }

// admin asks Envoy's admin interface.
func (p *Proxy) admin(path string) []byte {
	p.t.Helper()
	raw, err := probe.Get(context.Background(), p.envoy(), "http://envoy"+path) // also when the test's context has ended
	if err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	return raw
}

// Stats reads the counters and gauges whose names match a regular expression; there must be some.
func (p *Proxy) Stats(filter string) map[string]int64 {
	p.t.Helper()
	stats, err := probe.Stats(context.Background(), p.envoy(), filter, "")
	if err == nil && len(stats) == 0 {
		err = fmt.Errorf("no counter is like %q", filter)
	}
	if err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	return stats
}

// AssertNothingRejected asserts that Envoy has taken every update.
func (p *Proxy) AssertNothingRejected() {
	p.t.Helper()
	for name, n := range p.Stats("update_rejected") {
		if n != 0 {
			p.t.Errorf("%s: %s is %d", p.name, name, n)
		}
	}
}

// Held is what Envoy holds that came by xDS, by name, sorted.
type Held struct {
	Clusters, Listeners, Routes []string
	// VirtualHosts that came as resources of their own, "<route configuration>/<virtual host>".
	VirtualHosts []string
	// Inline are the virtual hosts in route configurations, named likewise.
	Inline []string
}

// Held reads Envoy's configuration dump.
func (p *Proxy) Held() Held {
	p.t.Helper()
	type named struct {
		Name         string  `json:"name"`
		VirtualHosts []named `json:"virtual_hosts"`
	}
	var dump struct {
		Configs []struct {
			Clusters []struct {
				Cluster named `json:"cluster"`
			} `json:"dynamic_active_clusters"`
			Listeners []struct {
				Name   string          `json:"name"`
				Active json.RawMessage `json:"active_state"`
			} `json:"dynamic_listeners"`
			Routes []struct {
				Config named `json:"route_config"`
			} `json:"dynamic_route_configs"`
		} `json:"configs"`
	}
	if err := json.Unmarshal(p.admin("/config_dump"), &dump); err != nil {
		p.t.Fatal(err)
	}
	var held Held
	for _, c := range dump.Configs {
		for _, item := range c.Clusters {
			held.Clusters = append(held.Clusters, item.Cluster.Name)
		}
		for _, item := range c.Listeners {
			if item.Active != nil {
				held.Listeners = append(held.Listeners, item.Name)
			}
		}
		for _, item := range c.Routes {
			if !slices.Contains(held.Routes, item.Config.Name) {
				held.Routes = append(held.Routes, item.Config.Name)
			}
			for _, h := range item.Config.VirtualHosts {
				if strings.HasPrefix(h.Name, item.Config.Name+"/") {
					held.VirtualHosts = append(held.VirtualHosts, h.Name)
				} else {
					held.Inline = append(held.Inline, item.Config.Name+"/"+h.Name)
				}
			}
		}
	}
	for _, list := range []*[]string{&held.Clusters, &held.Listeners, &held.Routes, &held.VirtualHosts, &held.Inline} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return held
}

// Endpoints lists the addresses that Envoy has of a cluster.
func (p *Proxy) Endpoints(cluster string) []string {
	p.t.Helper()
	var out []string
	for line := range strings.Lines(string(p.admin("/clusters"))) {
		if rest, ok := strings.CutPrefix(line, cluster+"::"); ok {
			if address, _, ok := strings.Cut(rest, "::health_flags"); ok {
				out = append(out, address)
			}
		}
	}
	return out
}

// AgentMetric reads a metric of the agent's, summed over the label sets that have all of the given labels.
func (p *Proxy) AgentMetric(name string, labels map[string]string) (float64, error) {
	return probe.Metric(p.t.Context(), probe.Client(p.Host.DialBy), "http://127.0.0.1:15020/metrics", name, labels)
}

// Received is how many bytes of xDS responses the agent has forwarded to Envoy.
func (p *Proxy) Received() float64 {
	p.t.Helper()
	n, err := p.AgentMetric("fairlead_node_agent_relay_bytes_total", map[string]string{"direction": "response"})
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// ServerOf finds the number of the xds-server that the proxy's agent is connected to.
func (m *Mesh) ServerOf(p *Proxy) (int, error) {
	const remote, state, established = 2, 3, "01"
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", p.agent.PID()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) <= state || fields[state] != established {
			continue
		}
		for i, server := range m.servers {
			_, port, _ := net.SplitHostPort(server.GRPC)
			if n, err := strconv.Atoi(port); err == nil && strings.HasSuffix(fields[remote], fmt.Sprintf(":%04X", n)) {
				return i, nil
			}
		}
	}
	return 0, fmt.Errorf("%s is connected to no xds-server", p.name)
}
