// Package capture tests redirected traffic: workloads in network namespaces of their own, whose connections rules
// of nftables or iptables send through real Envoys on ports 15001 and 15006.
package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"

	"fairlead.dev/tests/e2e/internal/hostmesh"
)

// TestMain makes the user root of namespaces of its own.
func TestMain(m *testing.M) { userns.Main(m) }

const (
	vip      = "198.19.0.10"
	clientIP = "198.18.1.1"
	serverIP = "198.18.1.2"
	keeperIP = "198.18.1.4"
	keepVIP  = "198.19.0.11"
	nakedIP  = "198.18.1.3"
)

const mesh = `
apiVersion: v1
kind: Service
metadata: {name: server, namespace: apps}
spec:
  selector: {app: server}
  clusterIP: ` + vip + `
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: tcp, port: 9090}
  - {name: sniffed-http, port: 81, targetPort: 8080}
  - {name: sniffed-tcp, port: 9092, targetPort: 9090}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: apps, labels: {app: server, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: server, containers: [{name: app, image: app}]}
status: {phase: Running, podIP: ` + serverIP + `, podIPs: [{ip: ` + serverIP + `}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: apps, labels: {app: client, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: client, containers: [{name: app, image: app}]}
status: {phase: Running, podIP: ` + clientIP + `, podIPs: [{ip: ` + clientIP + `}], conditions: [{type: Ready, status: "True"}]}
`

const keeper = `
---
apiVersion: v1
kind: Service
metadata: {name: keeper, namespace: apps}
spec:
  selector: {app: keeper}
  clusterIP: ` + keepVIP + `
  ports:
  - {name: http, port: 80, targetPort: 8080}
---
apiVersion: v1
kind: Pod
metadata: {name: keeper, namespace: apps, labels: {app: keeper, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: keeper, containers: [{name: app, image: app}]}
status: {phase: Running, podIP: ` + keeperIP + `, podIPs: [{ip: ` + keeperIP + `}], conditions: [{type: Ready, status: "True"}]}
`

const strict = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: apps}
spec: {mtls: {mode: STRICT}}
`

// TestCapture sends plain connections from one workload to another and looks at what the far application sees: the
// connections are redirected on both sides, and run as mTLS between the proxies.
func TestCapture(t *testing.T) { byBackend(t, testCapture) }

// byBackend runs a test with each way to write rules.
func byBackend(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	hostmesh.Needs(t)
	for _, backend := range []string{"nftables", "iptables-legacy", "iptables-nft"} {
		t.Run(backend, func(t *testing.T) {
			if strings.HasPrefix(backend, "iptables") {
				userns.Need(t, backend, "ip6"+strings.TrimPrefix(backend, "ip"))
				// Who is root of namespaces alone cannot lock the usual file, which is in /run.
				t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
			}
			t.Setenv("REDIRECT_BACKEND", backend) // of node-agent init
			test(t)
		})
	}
}

func testCapture(t *testing.T) {
	t.Helper()
	f := newFixture(t)

	t.Run("HTTP to the Service's address runs as mTLS", func(t *testing.T) {
		f.wantCaller(t, f.client.Host, vip+":80", "server", "spiffe://cluster.local/ns/apps/sa/client")
	})
	t.Run("HTTP on a port of undeclared protocol", func(t *testing.T) {
		f.wantCaller(t, f.client.Host, vip+":81", "server:81", "spiffe://cluster.local/ns/apps/sa/client")
	})
	t.Run("TCP, declared and sniffed", func(t *testing.T) {
		for _, port := range []string{"9090", "9092"} {
			if got, err := f.client.Host.Say(net.JoinHostPort(vip, port), "hello\r\n"); err != nil || got != "echo: hello\r\n" {
				t.Errorf("port %s answered %q, %v", port, got, err)
			}
		}
	})
	t.Run("an address outside every Service is passed through", func(t *testing.T) {
		f.wantCaller(t, f.client.Host, serverIP+":8080", serverIP+":8080", "")
	})
	t.Run("a caller without a proxy is let in", func(t *testing.T) {
		f.wantCaller(t, f.naked, serverIP+":8080", "server", "")
	})
	t.Run("a port that no Service has", func(t *testing.T) {
		f.wantCaller(t, f.naked, serverIP+":8090", "server", "")
	})
	t.Run("a workload calls itself through its proxy", func(t *testing.T) {
		f.wantCaller(t, f.server.Host, vip+":80", "server", "spiffe://cluster.local/ns/apps/sa/server")
		f.wantCaller(t, f.keeper.Host, keepVIP+":80", "keeper", "spiffe://cluster.local/ns/apps/sa/keeper")
	})
	t.Run("a workload calls itself by its address, without", func(t *testing.T) {
		f.wantCaller(t, f.server.Host, serverIP+":8080", "server", "")
	})
	t.Run("the application sees the proxy's address", func(t *testing.T) { f.wantSource(t, f.client.Host, vip+":80", "server", "127.0.0.6") })
	t.Run("with TPROXY", func(t *testing.T) {
		f.wantCaller(t, f.client.Host, keepVIP+":80", "keeper", "spiffe://cluster.local/ns/apps/sa/client")
		f.wantCaller(t, f.keeper.Host, vip+":80", "server", "spiffe://cluster.local/ns/apps/sa/keeper")
		f.wantSource(t, f.client.Host, keepVIP+":80", "keeper", clientIP)
		f.wantSource(t, f.naked, keeperIP+":8080", "keeper", nakedIP)
		f.wantSource(t, f.naked, keeperIP+":8090", "keeper", nakedIP)
		f.wantSource(t, f.keeper.Host, keepVIP+":80", "keeper", keeperIP)
	})
	t.Run("rules that are put in again are the same", func(t *testing.T) {
		f.server.Host.Redirect()
		f.keeper.Host.Redirect("-m", "TPROXY")
		f.wantCaller(t, f.client.Host, vip+":80", "server", "spiffe://cluster.local/ns/apps/sa/client")
		f.wantSource(t, f.client.Host, keepVIP+":80", "keeper", clientIP)
	})

	f.WriteConfig("strict.yaml", strict)
	t.Run("STRICT keeps a caller without a proxy out", func(t *testing.T) {
		testkit.Eventually(t, testkit.Patience, func() error {
			if _, err := f.get(f.naked, serverIP+":8080", "server"); err == nil {
				return errors.New("still let in")
			}
			return nil
		})
		if got, err := f.naked.Say(serverIP+":9090", "hello\r\n"); err == nil {
			t.Errorf("plaintext TCP was answered with %q", got)
		}
		f.wantCaller(t, f.client.Host, vip+":80", "server", "spiffe://cluster.local/ns/apps/sa/client")
	})

	f.client.AssertNothingRejected()
	f.server.AssertNothingRejected()
	f.keeper.AssertNothingRejected()

	f.keeper.Host.Redirect("--cleanup")
	f.wantCaller(t, f.naked, keeperIP+":8080", "keeper", "")
	f.wantSource(t, f.naked, keeperIP+":8080", "keeper", nakedIP)
	if _, err := f.get(f.client.Host, keepVIP+":80", "keeper"); err == nil {
		t.Error("mTLS was understood without a proxy")
	}
}

// fixture is three workloads with proxies, of which keeper's is TPROXY's, and one without.
type fixture struct {
	*hostmesh.Mesh
	client, server, keeper *hostmesh.Proxy
	naked                  *hostmesh.Host
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	m := hostmesh.New(t, 1, map[string]string{"mesh.yaml": mesh + keeper})
	client, server, keeper := m.Plug("client", clientIP), m.Plug("server", serverIP), m.Plug("keeper", keeperIP)
	f := &fixture{Mesh: m, naked: m.Plug("naked", nakedIP)}
	for _, h := range []*hostmesh.Host{client, server} {
		h.Redirect()
	}
	keeper.Redirect("-m", "TPROXY")
	for _, h := range []*hostmesh.Host{server, keeper} {
		serveHTTP(h.Listen(8080))
		serveHTTP(h.Listen(8090))
	}
	serveEcho(server.Listen(9090))
	f.client = m.Join(client, hostmesh.Workload{Namespace: "apps", Name: "client"})
	f.server = m.Join(server, hostmesh.Workload{Namespace: "apps", Name: "server"})
	f.keeper = m.Join(keeper, hostmesh.Workload{Namespace: "apps", Name: "keeper", TProxy: true})
	hostmesh.WaitReady(t, f.client, f.server, f.keeper)
	return f
}

// seen is what the application answers with.
type seen struct {
	Host string `json:"host"`
	XFCC string `json:"xfcc"`
	// Source is the address the connection came from.
	Source string `json:"source"`
}

var uri = regexp.MustCompile(`URI=([^;,]+)`)

// wantCaller makes a request and compares the identity that the far proxy verified, empty for none.
func (f *fixture) wantCaller(t *testing.T, from *hostmesh.Host, address, authority, want string) {
	t.Helper()
	got, err := f.get(from, address, authority)
	if err != nil {
		t.Fatalf("request to %s: %v", address, err)
	}
	caller := ""
	if m := uri.FindStringSubmatch(got.XFCC); m != nil {
		caller = m[1]
	}
	if caller != want || got.Host != authority {
		t.Errorf("the application saw caller %q and host %q, want %q and %q", caller, got.Host, want, authority)
	}
}

// wantSource makes a request and compares the address that the application saw it come from.
func (f *fixture) wantSource(t *testing.T, from *hostmesh.Host, address, authority, want string) {
	t.Helper()
	got, err := f.get(from, address, authority)
	if err != nil {
		t.Fatalf("request to %s: %v", address, err)
	}
	if got.Source != want {
		t.Errorf("the application at %s saw %s, want %s", address, got.Source, want)
	}
}

func (f *fixture) get(from *hostmesh.Host, address, authority string) (seen, error) {
	client := &http.Client{
		Timeout: testkit.Patience,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return from.Dial(ctx, address)
		}},
	}
	resp, err := client.Get("http://" + authority + "/")
	if err != nil {
		return seen{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return seen{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return seen{}, fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	var s seen
	return s, json.Unmarshal(body, &s)
}

func serveHTTP(lis net.Listener) {
	go func() {
		_ = http.Serve(lis, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			source, _, _ := net.SplitHostPort(r.RemoteAddr)
			_ = json.NewEncoder(w).Encode(seen{Host: r.Host, XFCC: r.Header.Get("X-Forwarded-Client-Cert"), Source: source})
		}))
	}()
}

func serveEcho(lis net.Listener) {
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buf := make([]byte, 1024)
				for {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					fmt.Fprintf(conn, "echo: %s", buf[:n])
				}
			}()
		}
	}()
}
