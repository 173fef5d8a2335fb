package translate_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
)

// onDemandMesh is a mesh without mTLS; %s are further services, endpoints and objects.
const onDemandMesh = `
class: {namespace: default, onDemand: true}
mesh: {enableAutoMtls: false, outboundTrafficPolicy: {mode: %s}}
services:
- {hostname: mysql.default.svc.cluster.local, addresses: [10.96.0.1], ports: [{name: mysql, number: 3306, protocol: PROTOCOL_MYSQL}]}
- {hostname: secure.example.com, namespace: default, resolution: RESOLUTION_STATIC, ports: [{name: tls, number: 8443, protocol: PROTOCOL_TLS}]}
- {hostname: "*.wild.example.com", namespace: default, resolution: RESOLUTION_STATIC, ports: [{name: tls, number: 8443, protocol: PROTOCOL_TLS}]}
- {hostname: web.default.svc.cluster.local, addresses: [10.96.0.2], ports: [{name: http, number: 7070, protocol: PROTOCOL_HTTP}]}
- {hostname: beside.default.svc.cluster.local, addresses: [10.96.0.3], ports: [{name: tcp, number: 7070, protocol: PROTOCOL_TCP}]}
- {hostname: sniffed.default.svc.cluster.local, addresses: [10.96.0.4], ports: [{name: x, number: 7071}]}
- {hostname: routed.default.svc.cluster.local, addresses: [10.96.0.5], ports: [{name: tcp, number: 7072, protocol: PROTOCOL_TCP}]}
%s
endpoints:
- {host: mysql.default.svc.cluster.local, port: 3306, endpoints: [{address: 10.9.0.1, port: 3306, plain: true}]}
- {host: secure.example.com, namespace: default, port: 8443, endpoints: [{address: 10.9.0.1, port: 8443, plain: true}]}
- {host: "*.wild.example.com", namespace: default, port: 8443, endpoints: [{address: 10.9.0.1, port: 8443, plain: true}]}
- {host: web.default.svc.cluster.local, port: 7070, endpoints: [{address: 10.9.0.1, port: 80, plain: true}]}
- {host: beside.default.svc.cluster.local, port: 7070, endpoints: [{address: 10.9.0.1, port: 7070, plain: true}]}
- {host: sniffed.default.svc.cluster.local, port: 7071, endpoints: [{address: 10.9.0.1, port: 7071, plain: true}]}
%s
objects:
- {kind: PeerAuthentication, metadata: {name: default, namespace: default}, spec: {mtls: {mode: DISABLE}}}
- {kind: VirtualService, metadata: {name: routed, namespace: default}, spec: {hosts: [routed.default.svc.cluster.local], tcp: [{route: [
    {destination: {host: beside.default.svc.cluster.local, port: {number: 7070}}, weight: 50},
    {destination: {host: mysql.default.svc.cluster.local, port: {number: 3306}}, weight: 50}]}]}}
`

func onDemandFixture(t *testing.T, policy, services, endpoints string) fixture {
	return parse(t, "on demand", fmt.Appendf(nil, onDemandMesh, policy, services, endpoints))
}

// A real Envoy runs as an on-demand sidecar with redirected connections.
func TestOnDemandOnEnvoy(t *testing.T) {
	if userns.Again(t, "ip", "nft") {
		return
	}
	n := newNetns(t, "10.9.0.1", "10.9.0.2")
	n.banner(t, "10.9.0.1:3306", "mysql")
	n.banner(t, "10.9.0.1:7070", "beside")
	n.banner(t, "10.9.0.1:5555", "inside")
	n.banner(t, "10.9.0.2:5555", "outside")
	n.banner(t, "10.9.0.2:6666", "outside")
	n.banner(t, "10.9.0.2:7777", "outside")
	n.banner(t, "10.9.0.2:8888", "outside")
	serve(n.listen(t, "10.9.0.1:7071"), func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	n.web(t, "10.9.0.1:80", "inside")
	n.web(t, "10.9.0.2:7070", "outside")
	certificate, err := testkit.PKI(t).NewSVID("default", "test").Current()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate.CertPEM, certificate.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	for address, text := range map[string]string{"10.9.0.1:8443": "inside", "10.9.0.2:8443": "outside"} {
		serve(tls.NewListener(n.listen(t, address), &tls.Config{Certificates: []tls.Certificate{pair}}), func(conn net.Conn) {
			_, _ = fmt.Fprintln(conn, text)
		})
	}
	s := newMeshServer(onDemandFixture(t, "ALLOW_ANY", "", ""))
	socket := filepath.Join(t.TempDir(), "xds.sock")
	stop := s.listen(t, socket)
	p := startOnDemand(t, n, socket)
	if names := clusterNames(t, p); slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "outbound") }) {
		t.Errorf("clusters before the first connection: %q", names)
	}

	want := func(got string, err error, want string) {
		t.Helper()
		if err != nil || got != want {
			t.Errorf("got %q (%v), want %q", got, err, want)
		}
	}
	for _, which := range []string{"first", "second"} {
		start := time.Now()
		got, err := n.greeting("10.96.0.1:3306")
		t.Logf("%s connection: %v", which, time.Since(start))
		want(got, err, "mysql")
	}
	got, err := n.greeting("10.9.0.2:6666")
	want(got, err, "outside")
	// These connections come while the first one waits for the cluster.
	var conns []net.Conn
	for range 20 {
		conn, err := n.dial("10.9.0.2:7777")
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		got, err = line(conn)
		want(got, err, "outside")
		_ = conn.Close()
	}
	got, err = n.greeting("10.96.0.3:7070")
	want(got, err, "beside")
	seen := map[string]bool{}
	for range 30 {
		got, err = n.greeting("10.96.0.5:7072")
		if err != nil {
			t.Fatal(err)
		}
		seen[got] = true
	}
	if !seen["mysql"] || !seen["beside"] || len(seen) != 2 {
		t.Errorf("a VirtualService with two destinations leads to %v", seen)
	}
	for serverName, reached := range map[string]string{
		"secure.example.com": "inside", "SECURE.example.com": "inside", "a.b.wild.example.com": "inside", "other.example.com": "outside",
		"": "outside",
	} {
		got, err = n.handshake("10.9.0.2:8443", serverName)
		want(got, err, reached)
	}
	if conn, err := n.dial("10.96.0.4:7071"); err != nil {
		t.Error(err)
	} else {
		_, _ = conn.Write([]byte("\x01\x02 opaque\n"))
		got, err = line(conn)
		want(got, err, "\x01\x02 opaque")
		conn.Close()
	}

	for _, call := range []struct{ address, host, want string }{
		{"10.96.0.2:7070", "web.default.svc.cluster.local:7070", "inside"},
		{"10.96.0.2:7070", "web.default:7070", "inside"},
		{"10.96.0.2:7070", "10.96.0.2:7070", "inside"},
		{"10.9.0.2:7070", "elsewhere.example.com:7070", "outside"},
	} {
		got, err = n.get(call.address, call.host)
		want(got, err, call.want)
	}

	const service = `- {hostname: late.default.svc.cluster.local, addresses: [10.9.0.2], ports: [{name: tcp, number: 5555, protocol: PROTOCOL_TCP}]}`
	const endpoint = `- {host: late.default.svc.cluster.local, port: 5555, endpoints: [{address: 10.9.0.1, port: 5555, plain: true}]}`
	held, err := n.dial("10.9.0.2:5555")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	got, err = line(held)
	want(got, err, "outside")
	for _, step := range []struct{ services, endpoints, want string }{
		{"", "", "outside"}, {service, endpoint, "inside"}, {"", "", "outside"}, {service, endpoint, "inside"},
	} {
		s.set(onDemandFixture(t, "ALLOW_ANY", step.services, step.endpoints))
		testkit.Eventually(t, testkit.Patience, func() error {
			got, err := n.greeting("10.9.0.2:5555")
			if err == nil && got != step.want {
				err = fmt.Errorf("got %q, want %q", got, step.want)
			}
			return err
		})
	}
	// A connection stays with the cluster that it began with.
	_, _ = io.WriteString(held, "still there\n")
	got, err = line(held)
	want(got, err, "still there")

	s.set(onDemandFixture(t, "REGISTRY_ONLY", "", ""))
	testkit.Eventually(t, testkit.Patience, func() error {
		if got, err := n.greeting("10.9.0.2:6666"); err == nil {
			return fmt.Errorf("an unknown address says %q", got)
		}
		return nil
	})
	got, err = n.greeting("10.96.0.1:3306")
	want(got, err, "mysql")

	// Without a control plane, known destinations stay reachable, and connections to unknown ones fail within the
	// timeout.
	stop()
	got, err = n.greeting("10.96.0.1:3306")
	want(got, err, "mysql")
	start := time.Now()
	if got, err := n.greeting("10.9.0.2:8888"); err == nil || time.Since(start) > 20*time.Second {
		t.Errorf("a new address says %q without a control plane, after %v", got, time.Since(start))
	}
	// Another xds-server answers for everything that the proxy has, and for new requests.
	other := newMeshServer(onDemandFixture(t, "ALLOW_ANY", "", ""))
	other.listen(t, socket)
	testkit.Eventually(t, testkit.Patience, func() error {
		got, err := n.greeting("10.9.0.2:6666")
		if err == nil && got != "outside" {
			err = fmt.Errorf("got %q", got)
		}
		return err
	})
	for _, address := range []string{"10.9.0.2:8888", "10.9.0.2:5555"} {
		got, err = n.greeting(address)
		want(got, err, "outside")
	}
	got, err = n.greeting("10.96.0.1:3306")
	want(got, err, "mysql")
}
