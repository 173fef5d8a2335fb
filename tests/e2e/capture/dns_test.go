package capture

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/tests/e2e/internal/hostmesh"
)

// serverDNS is the machine's name server; nobody is at noDNS, so that only a redirected query to it is answered.
const (
	serverDNS = "198.18.1.5"
	noDNS     = "198.18.1.99"
)

const entry = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: external, namespace: apps}
spec:
  hosts: [entry.example.com]
  addresses: [240.240.1.1]
  location: MESH_EXTERNAL
  resolution: STATIC
  endpoints: [{address: 198.18.1.2}]
  ports: [{name: tcp, number: 9090, protocol: TCP}]
`

// TestDNS sends a workload's queries to its agent.
func TestDNS(t *testing.T) { byBackend(t, testDNS) }

func testDNS(t *testing.T) {
	t.Helper()
	m := hostmesh.New(t, 1, map[string]string{"mesh.yaml": mesh})
	host, upstream := m.Plug("client", clientIP), m.Plug("dns", serverDNS)
	serveNames(t, upstream)
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	for dir := filepath.Dir(conf); dir != os.TempDir(); dir = filepath.Dir(dir) { // for the proxy's user
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(conf, []byte("nameserver "+serverDNS+"\nsearch apps.svc.cluster.local\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	host.Redirect("--redirect-dns", "--resolv-conf", conf)
	proxy := m.Join(host, hostmesh.Workload{
		Namespace: "apps", Name: "client", Env: []string{"ISTIO_META_DNS_CAPTURE=true"}, Args: []string{"--resolv-conf", conf},
	})
	hostmesh.WaitReady(t, proxy)
	want := func(network, server, name string, answer ...string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			got, err := lookup(t, host, network, server, name)
			if err == nil && !slices.Equal(got, answer) {
				err = fmt.Errorf("%s by %s is %q, want %q", name, network, got, answer)
			}
			return err
		})
	}
	for _, network := range []string{"udp4", "tcp4"} {
		want(network, serverDNS, "server.apps.svc.cluster.local.", vip)
		want(network, serverDNS, "server.", vip)
		want(network, serverDNS, "elsewhere.example.", "192.0.2.7")
	}
	if _, err := lookup(t, host, "udp4", noDNS, "server."); err == nil {
		t.Error("a query to another server was answered by the agent")
	}

	m.WriteConfig("entry.yaml", entry)
	want("udp4", serverDNS, "entry.example.com.", "240.240.1.1")
	want("udp4", serverDNS, "entry.example.com.apps.svc.cluster.local.", "240.240.1.1")
	m.RemoveConfig("entry.yaml")
	want("udp4", serverDNS, "entry.example.com.", "192.0.2.7")

	host.Redirect("--redirect-dns", "--capture-all-dns", "--resolv-conf", conf)
	want("udp4", noDNS, "server.", vip)
	want("udp4", noDNS, "elsewhere.example.", "192.0.2.7")

	proxy.Restart()
	hostmesh.WaitReady(t, proxy)
	want("udp4", noDNS, "server.", vip)
	if n, err := proxy.AgentMetric("fairlead_node_agent_dns_requests_total", map[string]string{"from": "table"}); err != nil || n < 1 {
		t.Errorf("%v answers from the table, %v", n, err)
	}
	proxy.AssertNothingRejected()
}

// serveNames answers queries for every name that ends in "example." or "com." with one address.
func serveNames(t *testing.T, h *hostmesh.Host) {
	t.Helper()
	answer := dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		m := new(dns.Msg).SetReply(query)
		if name := query.Question[0].Name; strings.HasSuffix(name, "example.") || strings.HasSuffix(name, "com.") {
			rr, err := dns.NewRR(name + " 1 IN A 192.0.2.7")
			if err != nil {
				t.Error(err)
			}
			m.Answer = []dns.RR{rr}
		} else {
			m.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(m)
	})
	for _, s := range []*dns.Server{{PacketConn: h.ListenPacket(53), Handler: answer}, {Listener: h.Listen(53), Handler: answer}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
}

// lookup asks for the IPv4 addresses of a name, from the host.
func lookup(t *testing.T, from *hostmesh.Host, network, server, name string) ([]string, error) {
	conn, err := from.DialBy(t.Context(), network, server+":53")
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := &dns.Client{Net: strings.TrimSuffix(network, "4"), Timeout: 5 * time.Second}
	m, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion(name, dns.TypeA), &dns.Conn{Conn: conn})
	if err != nil {
		return nil, err
	}
	if m.Rcode != dns.RcodeSuccess {
		return nil, fmt.Errorf("%s: %s", name, dns.RcodeToString[m.Rcode])
	}
	var out []string
	for _, r := range m.Answer {
		if a, ok := r.(*dns.A); ok {
			out = append(out, a.A.String())
		}
	}
	return out, nil
}
