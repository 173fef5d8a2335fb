package ondemand

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"fairlead.dev/pkg/testkit"
)

// virtualService of one route, in YAML's flow form.
func virtualService(host, route string) string {
	return fmt.Sprintf("---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s, namespace: apps}\nspec: {hosts: "+
		"[%s], http: [%s]}\n", host, host, route)
}

// external is a host outside the mesh, at the outside host.
const external = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: external, namespace: apps}
spec:
  hosts: [external.example]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}, {number: 443, name: tls, protocol: TLS, targetPort: 8443}]
  endpoints: [{address: ` + outsideIP + `}]
`

// headless is a service whose clients connect to its Pods.
const headless = `---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: apps}
spec: {selector: {app: server}, clusterIP: None, ports: [{name: tcp-echo, port: 9090}, {name: http, port: 8080}]}
`

// TestKindsOfTraffic sends what is not a plain request to a plain service from a sidecar that holds only what it calls.
func TestKindsOfTraffic(t *testing.T) {
	f := newFixture(t, options{annotations: annotated, mesh: policy("REGISTRY_ONLY", "")})
	defer f.check()
	number := func(i int) request { return request{address: numberedVIP(i) + ":80", authority: numberedName(i)} }

	t.Run("a mirror that nobody calls otherwise", func(t *testing.T) {
		f.WriteConfig("mirror.yaml", virtualService(numberedName(1), "{route: [{destination: {host: svc-1}}], mirror: {host: svc-2}}"))
		testkit.Eventually(t, takesEffect, func() error {
			_, err := call(f.client.Host, number(1))
			if _, ok := shadows.Load(numberedName(1) + "-shadow"); !ok {
				err = errors.Join(err, errors.New("no request was mirrored"))
			}
			return err
		})
	})
	t.Run("a subset that does not exist, and appears", func(t *testing.T) {
		f.WriteConfig("subset.yaml", virtualService(numberedName(3), "{route: [{destination: {host: svc-3, subset: v1}}]}"))
		f.eventually(t, number(3), status(http.StatusServiceUnavailable))
		for range 3 {
			testkit.Quick(t, time.Second, func() time.Duration {
				a, err := call(f.client.Host, number(3))
				if err != nil || a.status != http.StatusServiceUnavailable {
					t.Errorf("status %d after %v, %v; want 503", a.status, a.took, err)
				}
				return a.took
			})
		}
		f.WriteConfig("rule.yaml", `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: svc-3, namespace: apps}
spec: {host: svc-3, subsets: [{name: v1, labels: {version: v1}}]}
`)
		f.eventually(t, number(3), from("v1"))
	})
	t.Run("an external host", func(t *testing.T) {
		serveTLS(t, f)
		outside := request{address: "198.19.2.1:80", authority: "external.example"}
		f.eventually(t, outside, status(http.StatusBadGateway))
		if _, err := f.serverName("198.19.2.1:443", "external.example"); err == nil || isTimeout(err) {
			t.Errorf("TLS to a host that nobody has: %v, want the connection closed", err)
		}
		f.WriteConfig("external.yaml", external)
		f.eventually(t, outside, from("outside"))
		testkit.Eventually(t, takesEffect, func() error {
			got, err := f.serverName("198.19.2.1:443", "external.example")
			if err == nil && got != "external.example" {
				err = fmt.Errorf("the server was asked for %q", got)
			}
			return err
		})
		if _, err := f.serverName("198.19.2.1:443", "other.example"); err == nil || isTimeout(err) {
			t.Errorf("TLS to another server name: %v, want the connection closed", err)
		}
	})
	t.Run("a headless service", func(t *testing.T) {
		f.WriteConfig("headless.yaml", headless)
		for pod, ip := range map[string]string{"v1": v1IP, "v2": v2IP} {
			testkit.Eventually(t, takesEffect, func() error { return said(pod + ": hello")(f.client.Host.Say(ip+":9090", "hello")) })
			f.eventually(t, request{address: ip + ":8080", authority: "headless:8080"}, from("v1", "v2"))
		}
	})
	t.Run("an upgrade in a first request", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		conn, err := f.client.Host.Dial(ctx, numberedVIP(4)+":80")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(bound))
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nhost: svc-4\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
		reader := bufio.NewReader(conn)
		resp, err := http.ReadResponse(reader, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%v, %v", resp, err)
		}
		_, _ = io.WriteString(conn, "hello")
		got := make([]byte, 5)
		if _, err := io.ReadFull(reader, got); err != nil || string(got) != "hello" {
			t.Errorf("answered with %q, %v", got, err)
		}
	})
	t.Run("a gRPC stream that stays open", func(t *testing.T) {
		conn, err := grpc.NewClient("passthrough:///server.apps.svc:7070", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return f.client.Host.Dial(ctx, serverVIP+":7070")
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
		defer cancel()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/echo.Echo/Talk")
		if err != nil {
			t.Fatal(err)
		}
		const longer = 8 * time.Second // than any limit on requests that wait for their route
		for end := time.Now().Add(longer); ; {
			if err := errors.Join(stream.SendMsg(&emptypb.Empty{}), stream.RecvMsg(&emptypb.Empty{})); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(end) {
				break
			}
			<-time.After(longer - 100*time.Millisecond)
		}
	})
	t.Run("endpoints are followed", func(t *testing.T) {
		f.ok(t, number(5))
		f.WriteConfig("slice.yaml", service("apps", "one", "198.19.3.1", httpPort)+pod("apps", "gone", "server", "v3", "198.18.1.99", ""))
		testkit.Eventually(t, takesEffect, func() error {
			if n := len(f.client.Endpoints("outbound|80||" + numberedName(5) + ".apps.svc.cluster.local")); n != 3 {
				return fmt.Errorf("%d endpoints, want 3", n)
			}
			return nil
		})
		f.RemoveConfig("slice.yaml")
		testkit.Eventually(t, takesEffect, func() error {
			got := f.client.Endpoints("outbound|80||" + numberedName(5) + ".apps.svc.cluster.local")
			if slices.ContainsFunc(got, func(a string) bool { return strings.HasPrefix(a, "198.18.1.99:") }) {
				return fmt.Errorf("endpoints %q", got)
			}
			return nil
		})
	})
}

// serveTLS answers handshakes on port 8443 of the outside host with the server name that was asked for.
func serveTLS(t *testing.T, f *fixture) {
	t.Helper()
	own := testkit.PKI(t).NewSVID("outside", "outside")
	material, err := own.Current()
	if err != nil {
		t.Fatal(err)
	}
	lis := f.outside.Listen(8443)
	serveTCP(lis, func(conn net.Conn) {
		server := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*material.Certificate}, MinVersion: tls.VersionTLS12})
		if server.Handshake() == nil {
			_, _ = io.WriteString(server, server.ConnectionState().ServerName)
			_ = server.Close()
		}
	})
}

// serverName makes a TLS connection from the client and returns what the server says it was asked for.
func (f *fixture) serverName(address, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	conn, err := f.client.Host.Dial(ctx, address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(bound))
	client := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true}) //nolint:gosec // who answers is not what is tested
	// A connection that is closed meanwhile is an error here, and a clean end to who only reads.
	if err := client.HandshakeContext(ctx); err != nil {
		return "", err
	}
	got, err := io.ReadAll(client)
	return string(got), err
}
