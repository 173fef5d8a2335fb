package rotations

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/resolver"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/e2e/internal/hostmesh"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/probe"
)

var (
	// Istio's agents renew at half of it.
	ttl  = flag.Duration("ttl", 20*time.Second, "lifetime of all certificates")
	rate = flag.Int("rate", 220, "new connections a second, of all members")
)

// The members of the mesh. Each serves HTTP on port 8080, TCP on 9000 and gRPC on 7070, and calls the others; the
// program has no proxy, and gRPC alone.
const (
	ours    = "ours"
	other   = "other"
	stock   = "stock"
	watches = "stock-watches"
	machine = "machine"
	proxied = "program"
)

// addresses are those of the members. The service of member i has address 198.19.0.i.
var addresses = map[string]string{
	ours: "198.18.1.1", other: "198.18.1.2", stock: "198.18.1.3", watches: "198.18.1.4", machine: "198.18.1.5", proxied: "198.18.1.6",
}

// members have sidecars.
var members = []string{ours, other, stock, watches, machine}

// member is one that runs.
type member struct {
	name string
	host *hostmesh.Host
	// agent is the process that has Envoy as its child.
	agent func() *netns.Process
	// admin asks the page of an Envoy; nil without one.
	admin func(page string) ([]byte, error)
	// names resolves the program's targets by its agent; nil for others.
	names resolver.Builder
}

// rig is the running mesh, with its traffic.
type rig struct {
	*hostmesh.Mesh

	t       *testing.T
	members map[string]*member
	traffic *traffic
	// refresh is how often the program reads its files.
	refresh time.Duration
	// bootstrap is the file by which the program finds its agent.
	bootstrap string
}

// caArgs are those of the ca. Istio's agents verify xds-servers by their addresses.
func caArgs(hub string) []string {
	return []string{
		"--workload-ttl", (*ttl).String(), "--min-workload-ttl", (*ttl).String(), "--max-workload-ttl", (*ttl).String(),
		"--ip-addresses", contract.SystemNamespace + "/" + contract.XDSServerAccount + "=" + hub,
		"--dns-names", contract.SystemNamespace + "/" + contract.XDSServerAccount + "=istiod.istio-system.svc",
	}
}

// reads is how often a program reads its files within the lifetime that its agent asks for.
const reads = 96

// start starts the mesh, with further arguments of the ca, and waits until all of it is ready and the traffic flows.
// The program reads its files every second.
func start(t *testing.T, more ...string) *rig {
	t.Helper()
	return startWith(t, time.Second, more...)
}

// startWith is start for a program that reads its files seldom.
func startWith(t *testing.T, refresh time.Duration, more ...string) *rig {
	t.Helper()
	istio(t)
	r := &rig{t: t, members: map[string]*member{}, refresh: refresh}
	r.Mesh = hostmesh.Start(t, hostmesh.Options{
		XDSServers: 2, Config: map[string]string{"mesh.yaml": objects()},
		CA: func(hub string) []string { return append(caArgs(hub), more...) },
	})
	for name, ip := range addresses {
		h := r.Plug(name, ip)
		if name != proxied {
			h.Redirect()
			serve(t, h)
		}
		r.members[name] = &member{name: name, host: h}
	}
	r.joinOurs()
	for _, name := range []string{stock, watches} {
		r.joinStock(name)
	}
	for _, name := range members {
		m := r.members[name]
		testkit.Eventually(t, hostmesh.Ready, func() error {
			err := probe.Ready(t.Context(), probe.Client(m.host.DialBy), "http://127.0.0.1:15021/healthz/ready")
			if err != nil {
				return fmt.Errorf("%s is not ready: %w", name, err)
			}
			return nil
		})
	}
	r.startProgram()
	r.traffic = startTraffic(t, r)
	return r
}

// joinOurs starts the agents of ours: sidecars, the machine's and the program's.
func (r *rig) joinOurs() {
	r.t.Helper()
	kept := r.Path("machine")
	env := filepath.Join(kept, "cluster.env")
	root, err := os.ReadFile(r.Plane().RootFile)
	testkit.NoError(r.t, err)
	testkit.NoError(r.t, os.Mkdir(kept, 0o755))
	testkit.NoError(r.t, os.WriteFile(env, []byte(clusterEnv), 0o644))
	// Nobody writes new roots to a machine's file.
	testkit.NoError(r.t, os.WriteFile(filepath.Join(kept, "root-cert.pem"), root, 0o644))
	for _, w := range []hostmesh.Workload{
		{Name: ours}, {Name: other},
		{Name: proxied, Env: []string{"ISTIO_META_GENERATOR=grpc", "SECRET_TTL=" + (reads * r.refresh).String()}},
		{Name: machine, EnvFile: env, Args: []string{"--root-cert-file", filepath.Join(kept, "root-cert.pem")}},
	} {
		w.Namespace = "apps"
		w.Env = append(w.Env, statistics)
		m := r.members[w.Name]
		p := r.Join(m.host, w)
		m.agent = p.Agent
		if w.Name == proxied {
			r.bootstrap = filepath.Join(p.State(), "grpc-bootstrap.json")
			continue
		}
		client := probe.Unix(filepath.Join(p.State(), probe.EnvoyAdmin))
		m.admin = func(page string) ([]byte, error) { return probe.Get(r.t.Context(), client, "http://envoy"+page) }
	}
}

// statistics has an Envoy count its handshakes.
const statistics = `ISTIO_METAJSON_ANNOTATIONS={"sidecar.istio.io/statsInclusionRegexps":".*[.]ssl[.].*"}`

// serve serves as the application of a host with a sidecar does.
func serve(t *testing.T, h *hostmesh.Host) {
	t.Helper()
	go func() {
		_ = http.Serve(h.Listen(8080), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// Who called must be known: the connection had mutual TLS.
			if !strings.Contains(r.Header.Get("X-Forwarded-Client-Cert"), "URI=spiffe://cluster.local/ns/apps/sa/") {
				http.Error(w, "no caller's certificate", http.StatusForbidden)
			}
		}))
	}()
	lis := h.Listen(9000)
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return // closed
			}
			go func(conn net.Conn) {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}(conn)
		}
	}()
	go func() { _ = newServer().Serve(h.Listen(7070)) }()
}

// service is the address of a member's own.
func service(name string) string {
	ip := addresses[name]
	return "198.19.0." + ip[strings.LastIndex(ip, ".")+1:]
}

// everybody is the address of the service that all members with a sidecar are of.
const everybody = "198.19.0.100"

// objects are those of the mesh. Nothing is tried twice, so that nothing hides that it failed, and each request has a
// connection of its own on the whole way.
func objects() string {
	var b strings.Builder
	b.WriteString(mesh)
	entry := func(host, address, labels string) {
		fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: apps}
spec:
  hosts: [%[1]s.apps.example]
  addresses: [%[2]s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 8080}
  - {number: 9000, name: tcp, protocol: TCP}
  - {number: 7070, name: grpc, protocol: GRPC}
  workloadSelector: {labels: {%[3]s}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: apps}
spec:
  host: %[1]s.apps.example
  trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: apps}
spec:
  hosts: [%[1]s.apps.example]
  http:
  - match: [{port: 80}]
    retries: {attempts: 0}
    route: [{destination: {host: %[1]s.apps.example, port: {number: 80}}}]
  - match: [{port: 7070}]
    retries: {attempts: 0}
    route: [{destination: {host: %[1]s.apps.example, port: {number: 7070}}}]
`, host, address, labels)
	}
	entry("all", everybody, "serves: all")
	for _, name := range append(slices.Clone(members), proxied) {
		entry(name, service(name), "app: "+name)
		serves := "all"
		switch name {
		case machine:
			continue
		case proxied:
			serves = "grpc"
		}
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: apps, labels: {app: %[1]s, serves: %[3]s, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: %[1]s, containers: [{name: app, image: app}]}
status: {phase: Running, podIP: %[2]s, podIPs: [{ip: %[2]s}], conditions: [{type: Ready, status: "True"}]}
`, name, addresses[name], serves)
	}
	return b.String()
}

const mesh = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: machines, namespace: apps}
spec:
  metadata: {labels: {app: machine, serves: all}}
  template: {serviceAccount: machine}
`

// clusterEnv is what fairlead vm bootstrap writes for the machine.
var clusterEnv = `ISTIO_INBOUND_PORTS='*'
ISTIO_METAJSON_LABELS='{"app":"machine","serves":"all","service.istio.io/canonical-name":"machine"}'
ISTIO_META_AUTO_REGISTER_GROUP='machines'
ISTIO_META_CLUSTER_ID='Kubernetes'
ISTIO_META_WORKLOAD_NAME='machines'
ISTIO_NAMESPACE='apps'
ISTIO_SERVICE='machines.apps'
ISTIO_SERVICE_CIDR='*'
ISTIO_SVC_IP='` + addresses[machine] + `'
SERVICE_ACCOUNT='machine'
TRUST_DOMAIN=''
`
