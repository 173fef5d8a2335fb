package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/tests/e2e/internal/fleet"
)

// proxyUID is the user that Istio's proxies run as.
const proxyUID = 1337

const (
	vip        = "198.19.0.10"
	controlIP  = "198.18.0.1"
	clientIP   = "198.18.1.1"
	serverIP   = "198.18.1.2"
	nakedIP    = "198.18.1.3"
	rejections = "update_rejected"
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

const strict = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: apps}
spec: {mtls: {mode: STRICT}}
`

// TestCapture sends plain connections from one workload to another and looks at what the far application sees: the connections are
// redirected on both sides, and run as mTLS between the proxies.
func TestCapture(t *testing.T) {
	needs(t)
	w := newWorld(t)

	t.Run("HTTP to the Service's address runs as mTLS", func(t *testing.T) {
		w.wantCaller(t, w.client, vip+":80", "server", "spiffe://cluster.local/ns/apps/sa/client")
	})
	t.Run("HTTP on a port of undeclared protocol", func(t *testing.T) {
		w.wantCaller(t, w.client, vip+":81", "server:81", "spiffe://cluster.local/ns/apps/sa/client")
	})
	t.Run("TCP, declared and sniffed", func(t *testing.T) {
		for _, port := range []string{"9090", "9092"} {
			if got, err := w.client.say(net.JoinHostPort(vip, port), "hello\r\n"); err != nil || got != "echo: hello\r\n" {
				t.Errorf("port %s answered %q, %v", port, got, err)
			}
		}
	})
	t.Run("an address outside every Service is passed through", func(t *testing.T) {
		w.wantCaller(t, w.client, serverIP+":8080", serverIP+":8080", "")
	})
	t.Run("a caller without a proxy is let in", func(t *testing.T) {
		w.wantCaller(t, w.naked, serverIP+":8080", "server", "")
	})

	if err := os.WriteFile(filepath.Join(w.config, "strict.yaml"), []byte(strict), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Run("STRICT keeps a caller without a proxy out", func(t *testing.T) {
		testkit.Eventually(t, 10*time.Second, func() error {
			if _, err := w.get(w.naked, serverIP+":8080", "server"); err == nil {
				return errors.New("still let in")
			}
			return nil
		})
		if got, err := w.naked.say(serverIP+":9090", "hello\r\n"); err == nil {
			t.Errorf("plaintext TCP was answered with %q", got)
		}
		w.wantCaller(t, w.client, vip+":80", "server", "spiffe://cluster.local/ns/apps/sa/client")
	})

	for _, agent := range []string{"client", "server"} {
		for name, n := range w.stats(t, agent, rejections) {
			if n != 0 {
				t.Errorf("%s: %s is %d", agent, name, n)
			}
		}
	}
}

// needs skips where the machine lacks what the test is about. On CI, which is root, that is a failure.
func needs(t *testing.T) {
	t.Helper()
	var missing []string
	if os.Getuid() != 0 {
		missing = append(missing, "root")
	}
	for _, program := range []string{"ip", "nft", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	switch {
	case len(missing) == 0:
	case os.Getenv("CI") != "" && os.Getuid() == 0:
		t.Fatalf("needs %s", strings.Join(missing, ", "))
	default:
		t.Skipf("needs %s to make network namespaces", strings.Join(missing, ", "))
	}
}

// world is a control plane and three machines: two workloads with proxies, one without.
type world struct {
	client, server, naked *host
	// config is config-watcher's directory, agents the agents' state directories.
	config string
	agents string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	// The proxies' user must reach its files: not in anyone's home, and every directory on the way open.
	dir, err := os.MkdirTemp("", "flcap")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("ENVOY") == "" {
		t.Setenv("ENVOY", "../../../.tools/envoy")
	}
	programs, err := fleet.Build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{config: filepath.Join(dir, "config"), agents: dir}
	if err := os.Mkdir(w.config, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(w.config, "mesh.yaml"), []byte(mesh), 0o644)
	for name, from := range map[string]string{"node-agent": filepath.Join(programs.Dir, "node-agent"), "envoy": programs.Envoy} {
		raw, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), raw, 0o755)
	}

	control := newHost(t, "control", controlIP)
	control.bridge()
	w.client, w.server, w.naked = newHost(t, "client", clientIP), newHost(t, "server", serverIP), newHost(t, "naked", nakedIP)
	for i, h := range []*host{w.client, w.server, w.naked} {
		h.plug(control, i)
	}
	w.client.redirect()
	w.server.redirect()
	serveHTTP(w.server.listen(8080))
	serveEcho(w.server.listen(9090))

	issuer := testkit.NewIssuer(t)
	root := filepath.Join(dir, "root-cert.pem")
	common := []string{"--issuer", issuer.Name, "--jwks-file", issuer.JWKSFile}
	const caAddress, xdsAddress, watcherAddress = controlIP + ":15013", controlIP + ":15012", controlIP + ":15060"
	identity := func(account string) []string {
		return append([]string{
			"--ca-address", caAddress, "--root-cert-file", root, "--state-dir", filepath.Join(dir, account),
			"--ca-token-file", issuer.TokenFile("istio-system", account, "istio-ca"),
		}, common...)
	}
	control.start(0, nil, filepath.Join(programs.Dir, "ca"), append([]string{
		"--grpc-address", caAddress, "--ops-address", "127.0.0.1:15014", "--ca-dir", filepath.Join(dir, "ca"), "--root-cert-out", root,
	}, common...)...)
	control.start(0, nil, filepath.Join(programs.Dir, "config-watcher"), append([]string{
		"--grpc-address", watcherAddress, "--ops-address", "127.0.0.1:15016", "--store-dir", filepath.Join(dir, "store"), "--config-dir", w.config,
	}, identity("config-watcher")...)...)
	control.start(0, nil, filepath.Join(programs.Dir, "xds-server"), append([]string{
		"--secure-address", xdsAddress, "--ops-address", "127.0.0.1:15017", "--config-watcher-address", watcherAddress, "--instance", "xds-0",
	}, identity("xds-server")...)...)

	for name, h := range map[string]*host{"client": w.client, "server": w.server} {
		state, token := filepath.Join(dir, "agent-"+name), filepath.Join(dir, "token-"+name)
		if err := errors.Join(os.Mkdir(state, 0o700), os.Chown(state, proxyUID, proxyUID)); err != nil {
			t.Fatal(err)
		}
		write(t, token, []byte(issuer.Token("apps", name, "istio-ca")), 0o600)
		if err := os.Chown(token, proxyUID, proxyUID); err != nil {
			t.Fatal(err)
		}
		h.start(proxyUID, []string{
			"POD_NAME=" + name, "POD_NAMESPACE=apps", "INSTANCE_IP=" + h.ip, "SERVICE_ACCOUNT=" + name,
			"ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_INTERCEPTION_MODE=REDIRECT",
			fmt.Sprintf(`ISTIO_METAJSON_LABELS={"app":%q}`, name), "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=0s",
		}, filepath.Join(dir, "node-agent"), "proxy", "sidecar", "--state-dir", state, "--token-file", token, "--root-cert-file", root,
			"--envoy-binary", filepath.Join(dir, "envoy"), "--discovery-address", xdsAddress, "--ca-address", caAddress)
	}
	for _, h := range []*host{w.client, w.server} {
		testkit.Eventually(t, 30*time.Second, func() error {
			return h.ready()
		})
	}
	return w
}

// ready asks the proxy's readiness port.
func (h *host) ready() error {
	got, err := h.say(h.ip+":15021", "GET /healthz/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
	if err == nil && !strings.HasPrefix(got, "HTTP/1.1 200") {
		err = fmt.Errorf("not ready: %.60q", got)
	}
	return err
}

// seen is what the application answers with.
type seen struct {
	Host string `json:"host"`
	XFCC string `json:"xfcc"`
}

var uri = regexp.MustCompile(`URI=([^;,]+)`)

// wantCaller makes a request and compares the identity that the far proxy verified, empty for none.
func (w *world) wantCaller(t *testing.T, from *host, address, authority, want string) {
	t.Helper()
	got, err := w.get(from, address, authority)
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

func (w *world) get(from *host, address, authority string) (seen, error) {
	client := &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return from.dial(ctx, address)
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

// stats reads counters of a proxy through its admin socket.
func (w *world) stats(t *testing.T, agent, filter string) map[string]int64 {
	t.Helper()
	socket := filepath.Join(w.agents, "agent-"+agent, "envoy-admin.sock")
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	resp, err := client.Get("http://admin/stats?filter=" + filter)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	counters := map[string]int64{}
	for line := range strings.Lines(string(body)) {
		var n int64
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if _, err := fmt.Sscan(value, &n); err != nil {
			t.Fatalf("counter %q: %v", line, err)
		}
		counters[name] = n
	}
	if len(counters) == 0 {
		t.Fatalf("%s has no counter like %q", agent, filter)
	}
	return counters
}

func serveHTTP(lis net.Listener) {
	go func() {
		_ = http.Serve(lis, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = json.NewEncoder(w).Encode(seen{Host: r.Host, XFCC: r.Header.Get("X-Forwarded-Client-Cert")})
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

func write(t *testing.T, path string, content []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, content, mode); err != nil {
		t.Fatal(err)
	}
}
