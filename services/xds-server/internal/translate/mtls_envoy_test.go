package translate_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/envoytest"
)

// wireMesh is a mesh as two proxies see it: a client, and a server without redirected traffic that has two applications
// on ports of undeclared protocol and one on a declared one. %[1]s is the class, the numbers are the applications'
// ports.
const wireMesh = `
class: %[1]s
services:
- {hostname: web.default.svc.cluster.local, addresses: [127.66.200.10], ports: [{name: x, number: %[2]d}]}
- {hostname: echo.default.svc.cluster.local, addresses: [127.66.200.11], ports: [{name: x, number: %[3]d}]}
- {hostname: declared.default.svc.cluster.local, addresses: [127.66.200.12], ports: [{name: http, number: %[4]d, protocol: PROTOCOL_HTTP}]}
- {hostname: secret.default.svc.cluster.local, addresses: [127.66.200.13], ports: [{name: tcp, number: %[5]d, protocol: PROTOCOL_TCP}]}
endpoints:
- host: web.default.svc.cluster.local
  port: %[2]d
  endpoints: [{address: 127.66.200.2, port: %[2]d, identity: spiffe://cluster.local/ns/default/sa/server}]
- host: echo.default.svc.cluster.local
  port: %[3]d
  endpoints: [{address: 127.66.200.2, port: %[3]d, identity: spiffe://cluster.local/ns/default/sa/server}]
- host: declared.default.svc.cluster.local
  port: %[4]d
  endpoints: [{address: 127.66.200.2, port: %[4]d, identity: spiffe://cluster.local/ns/default/sa/server}]
- host: secret.default.svc.cluster.local
  port: %[5]d
  endpoints: [{address: 127.66.200.2, port: %[5]d, identity: spiffe://cluster.local/ns/default/sa/somebody-else}]
objects:
- {kind: PeerAuthentication, metadata: {name: default, namespace: default}, spec: {mtls: {mode: %[6]s}}}
- kind: Sidecar
  metadata: {name: server, namespace: default}
  spec:
    workloadSelector: {labels: {app: server}}
    ingress:
    - {port: {number: %[2]d, name: web}, defaultEndpoint: "127.0.0.1:%[2]d"}
    - {port: {number: %[3]d, name: echo}, defaultEndpoint: "127.0.0.1:%[3]d"}
    - {port: {number: %[4]d, name: declared, protocol: HTTP}, defaultEndpoint: "127.0.0.1:%[4]d"}
    - {port: {number: %[5]d, name: secret, protocol: TCP}, defaultEndpoint: "127.0.0.1:%[5]d"}
`

// Real Envoys run as a client's and a server's proxy. Without redirection the client's listeners bind the addresses of
// the services.
func TestMTLSBetweenEnvoys(t *testing.T) {
	for _, mode := range []string{"STRICT", "PERMISSIVE"} {
		t.Run(mode, func(t *testing.T) {
			web, echo, declared, secret := webApplication(t), echoApplication(t), webApplication(t), echoApplication(t)
			mesh := func(class string) built {
				return buildAll(t, parse(t, "wire", fmt.Appendf(nil, wireMesh, class, web, echo, declared, secret, mode)))
			}
			server := mesh(fmt.Sprintf(`{namespace: default, labels: {app: server}, interception: NONE, addresses: [127.66.200.2], targets: [
				{host: web.default.svc.cluster.local, namespace: default, port: %[1]d, targetPort: %[1]d, protocol: UNSPECIFIED},
				{host: echo.default.svc.cluster.local, namespace: default, port: %[2]d, targetPort: %[2]d, protocol: UNSPECIFIED},
				{host: declared.default.svc.cluster.local, namespace: default, port: %[3]d, targetPort: %[3]d, protocol: HTTP},
				{host: secret.default.svc.cluster.local, namespace: default, port: %[4]d, targetPort: %[4]d, protocol: TCP}]}`,
				web, echo, declared, secret))
			server.listeners, server.routes = only(server.listeners, "127.66.200.2_"), nil
			client := mesh("{namespace: default}")
			client.listeners = only(client.listeners, "127.66.200.1", "0.0.0.0_"+fmt.Sprint(declared))
			for _, m := range client.listeners {
				l := m.(*listenerv3.Listener)
				l.BindToPort = nil
				l.GetAddress().GetSocketAddress().Address = strings.Replace(l.GetAddress().GetSocketAddress().GetAddress(), "0.0.0.0", "127.66.200.12",
					1)
			}

			ca := testkit.PKI(t)
			serverProxy := startProxy(t, "server", server, ca.NewSVID("default", "server"))
			clientProxy := startProxy(t, "client", client, ca.NewSVID("default", "client"))
			t.Cleanup(func() {
				if t.Failed() {
					for _, p := range []*envoytest.Process{serverProxy, clientProxy} {
						_, stats, _ := p.Get("/stats?filter=ssl|upstream_cx_connect_fail|no_filter_chain")
						t.Log(stats)
					}
				}
			})

			const identity = "URI=spiffe://cluster.local/ns/default/sa/client"
			for _, call := range []struct {
				name, address string
				port          int
				http2         bool
				wantVersion   string
			}{
				{"sniffed HTTP/1.1", "127.66.200.10", web, false, "HTTP/1.1"},
				{"sniffed HTTP/2", "127.66.200.10", web, true, "HTTP/2.0"},
				{"declared HTTP", "127.66.200.12", declared, false, "HTTP/1.1"},
				{"declared HTTP, HTTP/2 client", "127.66.200.12", declared, true, "HTTP/1.1"},
			} {
				t.Run(call.name, func(t *testing.T) {
					host := "web.default"
					if call.port == declared {
						host = "declared.default"
					}
					seen := get(t, fmt.Sprintf("http://%s:%d/", host, call.port), fmt.Sprintf("%s:%d", call.address, call.port), call.http2)
					if !strings.Contains(seen.certificate, identity) || strings.Contains(seen.certificate, "forged") {
						t.Errorf("the application saw the client certificate %q, want %s and nothing forged", seen.certificate, identity)
					}
					if seen.version != call.wantVersion {
						t.Errorf("the application saw %s, want %s", seen.version, call.wantVersion)
					}
				})
			}
			t.Run("sniffed bytes", func(t *testing.T) {
				before := handshakes(t, serverProxy, echo)
				if err := exchange(t, fmt.Sprintf("127.66.200.11:%d", echo)); err != nil {
					t.Fatal(err)
				}
				if after := handshakes(t, serverProxy, echo); after == before {
					t.Errorf("the server's proxy saw %d handshakes before and after: the bytes went in plaintext", after)
				}
			})
			t.Run("server with another identity", func(t *testing.T) {
				if err := exchange(t, fmt.Sprintf("127.66.200.13:%d", secret)); err == nil {
					t.Error("the client's proxy talked to a server whose certificate is not the service's")
				}
			})
			t.Run("plaintext caller", func(t *testing.T) {
				err := exchange(t, fmt.Sprintf("127.66.200.2:%d", echo))
				if mode == "STRICT" && err == nil {
					t.Error("plaintext was accepted")
				}
				if mode == "PERMISSIVE" && err != nil {
					t.Errorf("plaintext was refused: %v", err)
				}
			})
			if mode == "STRICT" {
				return // what follows begins with a connection that is let in without the mesh's TLS
			}
			t.Run("plaintext caller that claims a certificate", func(t *testing.T) {
				address := fmt.Sprintf("127.66.200.2:%d", declared)
				if seen := get(t, "http://"+address+"/", address, false); seen.certificate != "" {
					t.Errorf("the application was told of the client certificate %q", seen.certificate)
				}
			})
			t.Run("TLS of the caller's own", func(t *testing.T) {
				conn, err := tls.Dial("tcp", fmt.Sprintf("127.66.200.2:%d", web), &tls.Config{InsecureSkipVerify: true})
				if err == nil {
					conn.Close()
					t.Error("the proxy terminated a handshake that was meant for the application")
				}
			})
		})
	}
}

// only keeps the listeners whose names have one of the prefixes.
func only(listeners []proto.Message, prefixes ...string) []proto.Message {
	return slices.DeleteFunc(listeners, func(m proto.Message) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(m.(*listenerv3.Listener).GetName(), p) })
	})
}

// handshakes returns the number of TLS handshakes that an inbound listener has completed.
func handshakes(t *testing.T, p *envoytest.Process, port int) int {
	name := fmt.Sprintf("listener.127.66.200.2_%d.ssl.handshake", port)
	return p.Stats("^" + name + "$")[name]
}

// seen is what an application has seen of a request.
type seen struct{ version, certificate string }

func get(t *testing.T, url, address string, http2 bool) seen {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Forwarded-Client-Cert", "URI=spiffe://forged")
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s (%v)", response.Status, body, err)
	}
	version, certificate, _ := strings.Cut(string(body), "\n")
	return seen{version, certificate}
}

// webApplication answers HTTP/1.1 and HTTP/2 with what it has seen, and returns its port.
func webApplication(t *testing.T) int {
	t.Helper()
	listener := testkit.LoopbackListener(t)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s\n%s", r.Proto, r.Header.Get("X-Forwarded-Client-Cert"))
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}

// echoApplication echoes lines, and returns its port.
func echoApplication(t *testing.T) int {
	t.Helper()
	listener := testkit.LoopbackListener(t)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

// exchange sends a line that is not HTTP and expects its echo.
func exchange(t *testing.T, address string) error {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: testkit.Patience}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		return err
	}
	line := []byte("\x01\x02 opaque bytes\n")
	if _, err := conn.Write(line); err != nil {
		return err
	}
	got, err := bufio.NewReader(conn).ReadBytes('\n')
	if err == nil && !bytes.Equal(got, line) {
		err = fmt.Errorf("got %q back", got)
	}
	return err
}
