// Package policies tests what changes of policies and of keys do to connections that are open: real services, a real
// Envoy, redirected connections.
package policies

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/e2e/internal/hostmesh"
)

// TestMain makes the user root of namespaces of its own.
func TestMain(m *testing.M) { userns.Main(m) }

const (
	serverIP = "198.18.1.2"
	webPort  = "198.18.1.2:8080"
	tcpPort  = "198.18.1.2:9090"
	// drainTime is how long Envoy may take to end connections whose filter chain is replaced.
	drainTime = 3 * time.Second
	requests  = 10_000
)

const workload = `apiVersion: v1
kind: Pod
metadata: {name: server, namespace: apps, labels: {app: server, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: server, containers: [{name: app, image: app}]}
status: {phase: Running, podIP: 198.18.1.2, podIPs: [{ip: 198.18.1.2}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: apps}
spec: {selector: {app: server}, clusterIP: 198.19.0.1, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 9090}]}
`

// drains is the server's drain time, as its agent takes it.
var drains = fmt.Sprintf(`PROXY_CONFIG={"drainDuration":"%ds"}`, int(drainTime.Seconds()))

// serverAndCaller starts the server, with a proxy that has variables of the environment, and the machine of a caller
// without one.
func serverAndCaller(t *testing.T, m *hostmesh.Mesh, env ...string) (*hostmesh.Proxy, *hostmesh.Host) {
	t.Helper()
	host := m.Plug("server", serverIP)
	serve(host)
	proxy := m.Join(host, hostmesh.Workload{Namespace: "apps", Name: "server", Env: env})
	host.Redirect()
	hostmesh.WaitReady(t, proxy)
	return proxy, m.Plug("caller", "198.18.1.3")
}

// rule is a policy for the server with one rule.
func rule(action, rule string) string {
	return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: apps}\n"+
		"spec: {selector: {matchLabels: {app: server}}, action: %s, rules: [%s]}\n", action, rule)
}

// TestADenyActs applies policies while connections are open. After the proxy has acknowledged one, no request slips
// through that it denies, on whatever connection; requests under way and upgraded connections are not cut; connections
// of TCP end within the drain time, and no connection of HTTP does.
func TestADenyActs(t *testing.T) {
	hostmesh.Needs(t)
	m := hostmesh.New(t, 1, map[string]string{"workload.yaml": workload})
	_, caller := serverAndCaller(t, m, drains)
	acks := fleet(t, m)

	kept := make([]*client, 8)
	for i := range kept {
		kept[i] = connect(t, caller)
		kept[i].want(t, "/a", http.StatusOK)
	}
	slow := make(chan error, 1)
	late := connect(t, caller)
	go func() { slow <- late.get("/slow", http.StatusOK) }()
	socket := upgrade(t, caller)
	stream := dial(t, caller, tcpPort)
	say(t, stream)

	m.WriteConfig("policy.yaml", rule("DENY", `{to: [{operation: {paths: ["/a*", "/slow", "/socket"]}}]}`))
	effective(t, caller, acks, "/a", http.StatusForbidden)
	deniedFrom := time.Now()
	var slipped atomic.Int64
	var all sync.WaitGroup
	for _, c := range kept {
		all.Go(func() {
			for range requests / len(kept) {
				if err := c.get("/a", http.StatusForbidden); err != nil {
					slipped.Add(1)
					t.Log(err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := slipped.Load(); n > 0 {
		t.Errorf("on %d of %d connections a request was not denied, or the connection ended", n, len(kept))
	}
	connect(t, caller).want(t, "/a", http.StatusForbidden)
	connect(t, caller).want(t, "/b", http.StatusOK)
	if err := <-slow; err != nil {
		t.Errorf("the request that was under way: %v", err)
	}
	if _, err := fmt.Fprintf(socket, "more\n"); err != nil {
		t.Error(err)
	}
	if line, err := bufio.NewReader(socket).ReadString('\n'); err != nil || line != "more\n" {
		t.Errorf("the upgraded connection: %q, %v", line, err)
	}
	// A DENY with paths denies every connection of TCP.
	_ = stream.SetReadDeadline(deniedFrom.Add(drainTime + 5*time.Second))
	if _, err := io.ReadAll(stream); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection of TCP is open %s after it was denied", time.Since(deniedFrom).Round(time.Second))
	}

	m.WriteConfig("policy.yaml", rule("DENY", `{to: [{operation: {paths: ["/b"]}}]}`))
	effective(t, caller, acks, "/b", http.StatusForbidden)
	for _, c := range kept {
		c.want(t, "/a", http.StatusOK)
		c.want(t, "/b", http.StatusForbidden)
	}
	m.RemoveConfig("policy.yaml")
	testkit.Eventually(t, testkit.Patience, func() error { return kept[0].get("/b", http.StatusOK) })
}

// fleet asks config-watcher what the proxies have acknowledged.
func fleet(t *testing.T, m *hostmesh.Mesh) configv1.FleetServiceClient {
	t.Helper()
	plane := m.Plane()
	token := filepath.Join(t.TempDir(), "token")
	testkit.NoError(t, plane.WriteToken(token, 0, contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience))
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: plane.Find(contract.ConfigWatcherAccount)[0].GRPC,
		TLS: tlsconf.Client(tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: plane.RootFile}),
			plane.ID(contract.SystemNamespace, contract.ConfigWatcherAccount)),
		TokenFile: token,
	}, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return m.Hub.Dial(ctx, address) }))
	testkit.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return configv1.NewFleetServiceClient(conn)
}

// effective waits until a new connection is answered so, and then until the proxy has acknowledged the revision.
func effective(t *testing.T, caller *hostmesh.Host, f configv1.FleetServiceClient, path string, status int) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error { return connect(t, caller).get(path, status) })
	resp, err := f.WaitAcked(t.Context(), &configv1.WaitAckedRequest{}, grpc.WaitForReady(true))
	if err != nil || len(resp.GetRejected()) > 0 {
		t.Fatalf("%v, %v", resp, err)
	}
}

// client is one connection that is kept.
type client struct {
	conn   net.Conn
	reader *bufio.Reader
}

func dial(t *testing.T, from *hostmesh.Host, address string) net.Conn {
	t.Helper()
	conn, err := from.Dial(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func connect(t *testing.T, from *hostmesh.Host) *client {
	t.Helper()
	conn := dial(t, from, webPort)
	return &client{conn, bufio.NewReader(conn)}
}

// get sends a request and compares the answer's status. An answer that ends the connection is an error.
func (c *client) get(path string, status int) error { return c.getWith("", path, status) }

// getWith is get with header lines, each of which ends with a line break.
func (c *client) getWith(header, path string, status int) error {
	if _, err := fmt.Fprintf(c.conn, "GET %s HTTP/1.1\r\nHost: server\r\n%s\r\n", path, header); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != status || resp.Close {
		return fmt.Errorf("%s: %s %s, closes the connection: %v; want %d", path, resp.Status, body, resp.Close, status)
	}
	return nil
}

func (c *client) want(t *testing.T, path string, status int) {
	t.Helper()
	if err := c.get(path, status); err != nil {
		t.Error(err)
	}
}

func upgrade(t *testing.T, from *hostmesh.Host) net.Conn {
	t.Helper()
	conn := dial(t, from, webPort)
	if _, err := fmt.Fprintf(conn, "GET /socket HTTP/1.1\r\nHost: server\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil || !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 101") {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	return conn
}

func say(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
}

// serve runs the applications: HTTP, with a slow path and one that is upgraded to an echo, and an echo by TCP.
func serve(h *hostmesh.Host) {
	echo := func(conn net.Conn) {
		_, _ = io.Copy(conn, conn)
		conn.Close()
	}
	web, tcp := h.Listen(8080), h.Listen(9090)
	go func() {
		_ = http.Serve(web, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // a test's
			switch r.URL.Path {
			case "/slow":
				time.Sleep(5 * time.Second)
			case "/socket":
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				echo(conn)
			}
		}))
	}()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			go echo(conn)
		}
	}()
}
