package thirdparty

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const clientID = "spiffe://cluster.local/ns/apps/sa/client"

// TestGo is gRPC for Go on both sides.
func TestGo(t *testing.T) {
	m := start(t)
	t.Run("a service that goes and comes back", func(t *testing.T) {
		// Not for Node.js: grpc-js-xds 1.14.1 does not notice a listener that comes back as it was (XdsClient compares
		// with what it had).
		m.until(t, "go-client-0", "xds:///server:7070", "", answeredBy("v1", "v2"))
		m.WriteConfig(t, serviceFile, "# nothing\n")
		m.until(t, "go-client-0", "xds:///server:7070", "", failsWith("Unavailable"))
		m.WriteConfig(t, serviceFile, service(""))
		m.until(t, "go-client-0", "xds:///server:7070", "", answeredBy("v1", "v2"))
	})
	follows(t, m, "go-client-0")
	secured(t, m, "go-client-0")
	// Before the other program calls: the CLI shows one stream of a Pod, and does not say which.
	t.Run("what the CLI shows of it", func(t *testing.T) {
		for section, says := range map[string]string{
			"clusters":      "server.apps.svc.cluster.local",
			"listeners":     "calls of the program",
			"routes":        "server.apps.svc.cluster.local:7070",
			"endpoints":     m.Pod(t, "server-v1-0").IP + ":",
			"bootstrap":     "xds_servers",
			"all":           "SERVICE FQDN",
			"c --port 7070": "server.apps.svc.cluster.local",
		} {
			code, out, errOut := m.CLI(t, append([]string{"proxy-config", "go-client-0"}, strings.Fields(section)...)...)
			if code != 0 || !strings.Contains(out, says) || section != "bootstrap" && !strings.Contains(errOut, "gRPC program without an Envoy") {
				t.Errorf("proxy-config %s: exit code %d, lacks %q\n%s\n%s", section, code, says, out, errOut)
			}
		}
		if code, _, errOut := m.CLI(t, "proxy-config", "log", "go-client-0"); code != 1 ||
			!strings.Contains(errOut, "GRPC_GO_LOG_SEVERITY_LEVEL") {
			t.Errorf("proxy-config log: exit code %d, %s", code, errOut)
		}
	})
	t.Run("two programs in one Pod", func(t *testing.T) {
		before := streams(t, m, "go-client-0") // gRPC for Go opens one for every target
		m.until(t, "go-client-0:8081", "xds:///behind:7070", "", answeredBy("v1"))
		m.Eventually(t, takesEffect, func() error {
			if now := streams(t, m, "go-client-0"); before == 0 || now != before+1 {
				return fmt.Errorf("%d streams of the Pod are known, %d before its other program called", now, before)
			}
			return nil
		})
	})
	m.nothingRejected(t)
}

// streams counts the streams of a Pod that are known to `fairlead proxy-status`.
func streams(t *testing.T, m mesh, pod string) int {
	t.Helper()
	all, err := m.Streams(t)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, s := range all {
		if s.Pod() == pod {
			count++
		}
	}
	return count
}

// TestNodeJS is gRPC for Node.js calling servers in Go.
func TestNodeJS(t *testing.T) {
	m := start(t, nodejs(t))
	follows(t, m, "js-client-0")
	secured(t, m, "js-client-0")
	m.nothingRejected(t)
}

// follows checks what a client does with services, endpoints and routes. Each part starts from what the one before it
// left.
func follows(t *testing.T, m mesh, client string) {
	const target = "xds:///server:7070"
	for _, name := range []string{"server", "server.apps", "server.apps.svc.cluster.local"} {
		t.Run("calls "+name, func(t *testing.T) {
			m.until(t, client, "xds:///"+name+":7070", "", answeredBy("v1", "v2"))
		})
	}
	t.Run("a service behind a sidecar", func(t *testing.T) {
		m.until(t, client, "xds:///behind:7070", "", answeredBy("v1"))
	})
	t.Run("endpoints that change", func(t *testing.T) {
		for _, version := range []string{"v2", "v1"} {
			m.WriteConfig(t, serviceFile, service(version))
			m.until(t, client, target, "", answeredBy(version))
		}
		m.WriteConfig(t, serviceFile, service(""))
		m.until(t, client, target, "", answeredBy("v1", "v2"))
	})
	t.Run("weights", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - route: [{destination: {host: server, subset: v2}}]
`))
		m.until(t, client, target, "", answeredBy("v2"))
		m.WriteConfig(t, "route.yaml", virtualService(`
    - route:
        - {destination: {host: server, subset: v1}, weight: 80}
        - {destination: {host: server, subset: v2}, weight: 20}
`))
		m.until(t, client, target, "", answeredBy("v1", "v2"))
		const n = 400
		r, err := m.call(t, client, target, n, "")
		if err != nil {
			t.Fatal(err)
		}
		// Six standard deviations of a binomial distribution with p = 0.2 are 48.
		if v2 := r.versions()["v2"]; v2 < n/5-48 || v2 > n/5+48 || len(r.Seen) != n {
			t.Errorf("answers %v, want v1 80 %%, v2 20 %%; errors %q", r.versions(), r.Errors)
		}
	})
	t.Run("matches", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - match: [{headers: {end-user: {exact: jason}}}]
      route: [{destination: {host: server, subset: v2}}]
    - match: [{withoutHeaders: {skip: {exact: "yes"}}, method: {exact: POST}, uri: {prefix: /fairlead.test.Echo/}}]
      route: [{destination: {host: server, subset: v1}}]
    - directResponse: {status: 403}
`))
		m.until(t, client, target, "end-user:jason", answeredBy("v2"))
		m.until(t, client, target, "end-user:mary", answeredBy("v1"))
		m.until(t, client, target, "", answeredBy("v1"))
		m.until(t, client, target, "skip:yes", func(r result) error {
			if len(r.Seen) > 0 || len(r.Errors) == 0 {
				return fmt.Errorf("want it refused")
			}
			return nil
		})
	})
	t.Run("faults", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - fault: {abort: {grpcStatus: RESOURCE_EXHAUSTED, percentage: {value: 100}}}
      route: [{destination: {host: server, subset: v1}}]
`))
		m.until(t, client, target, "", failsWith("ResourceExhausted", "RESOURCE_EXHAUSTED"))
	})
	t.Run("a host that does not exist", func(t *testing.T) {
		r, err := m.call(t, client, "xds:///nobody:7070", 1, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := failsWith("Unavailable", "UNAVAILABLE", "DeadlineExceeded", "DEADLINE_EXCEEDED")(r); err != nil {
			t.Errorf("%v: %v, errors %q", err, r.Seen, r.Errors)
		}
	})
}

// secured checks what PeerAuthentication does to a gRPC server that is configured by xDS, and to its callers.
func secured(t *testing.T, m mesh, client string) {
	const target = "xds:///secure:7070"
	direct := "dns:///" + m.Pod(t, "secure-0").IP + ":7070"
	m.WriteConfig(t, "mtls.yaml", peerAuthentication("STRICT"))
	t.Run("STRICT", func(t *testing.T) {
		m.until(t, client, target, "", func(r result) error {
			for _, s := range r.Seen {
				if !s.TLS || s.Peer != clientID {
					return fmt.Errorf("want TLS with the identity of %s", clientID)
				}
			}
			return answeredBy("v1")(r)
		})
		m.until(t, client, direct, "", failsWith("Unavailable", "UNAVAILABLE"))
	})
	t.Run("STRICT behind a sidecar", func(t *testing.T) {
		m.until(t, client, "xds:///behind:7070", "", func(r result) error {
			for _, s := range r.Seen {
				if s.Peer != clientID {
					return fmt.Errorf("the sidecar saw another caller than %s", clientID)
				}
			}
			return answeredBy("v1")(r)
		})
		m.until(t, client, "dns:///"+m.Pod(t, "behind-0").IP+":7070", "", failsWith("Unavailable", "UNAVAILABLE"))
	})
	t.Run("DISABLE", func(t *testing.T) {
		m.WriteConfig(t, "mtls.yaml", peerAuthentication("DISABLE"))
		m.until(t, client, target, "", func(r result) error {
			for _, s := range r.Seen {
				if s.TLS {
					return fmt.Errorf("want plaintext")
				}
			}
			return answeredBy("v1")(r)
		})
	})
}

// failsWith is the condition that all calls failed, with one of the codes.
func failsWith(codes ...string) func(result) error {
	return func(r result) error {
		if len(r.Seen) > 0 || len(r.Errors) == 0 {
			return fmt.Errorf("want all to fail")
		}
		for _, e := range r.Errors {
			if !slices.ContainsFunc(codes, func(code string) bool { return strings.Contains(e, code) }) {
				return fmt.Errorf("want %v", codes)
			}
		}
		return nil
	}
}

// virtualService makes a VirtualService of host server whose http section is given.
func virtualService(http string) string {
	return `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: apps}
spec:
  hosts: [server]
  http:
` + strings.Trim(http, "\n") + "\n"
}

// peerAuthentication makes the namespace's.
func peerAuthentication(mode string) string {
	return `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: apps}
spec: {mtls: {mode: ` + mode + `}}
`
}
