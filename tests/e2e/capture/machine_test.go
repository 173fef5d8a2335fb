package capture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/tests/e2e/internal/hostmesh"
)

const (
	machineIP  = "198.18.1.7"
	strangerIP = "198.18.1.8"
	machineVIP = "198.19.0.17"
)

// machines is a group of machines, a service of them, and a client in a Pod. Only mTLS is let in.
const machines = `
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: machines, namespace: apps}
spec:
  metadata: {labels: {app: machine}}
  template: {serviceAccount: machine}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: machine, namespace: apps}
spec:
  hosts: [machine.apps.example]
  addresses: [` + machineVIP + `]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  workloadSelector: {labels: {app: machine}}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: apps, labels: {app: client, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: client, containers: [{name: app, image: app}]}
status: {phase: Running, podIP: ` + clientIP + `, podIPs: [{ip: ` + clientIP + `}], conditions: [{type: Ready, status: "True"}]}
---
` + strict

// clusterEnv is what fairlead vm bootstrap writes for one of them.
const clusterEnv = `ISTIO_INBOUND_PORTS='*'
ISTIO_METAJSON_LABELS='{"app":"machine","service.istio.io/canonical-name":"machine"}'
ISTIO_META_AUTO_REGISTER_GROUP='machines'
ISTIO_META_CLUSTER_ID='Kubernetes'
ISTIO_META_WORKLOAD_NAME='machines'
ISTIO_NAMESPACE='apps'
ISTIO_SERVICE='machines.apps'
ISTIO_SERVICE_CIDR='*'
ISTIO_SVC_IP='` + machineIP + `'
SERVICE_ACCOUNT='machine'
TRUST_DOMAIN=''
`

// TestMachine: a machine of which the mesh knows only its group joins by the cluster.env of its bootstrap, serves a
// sidecar's requests over mTLS, starts again without its token, and is removed when it dies. One that says it were at
// another's address is not let in.
func TestMachine(t *testing.T) {
	hostmesh.Needs(t)
	m := hostmesh.New(t, 2, map[string]string{"machines.yaml": machines})
	vm, pod, other := m.Plug("machine", machineIP), m.Plug("client", clientIP), m.Plug("stranger", strangerIP)
	for _, h := range []*hostmesh.Host{vm, pod} {
		h.Redirect()
	}
	serveHTTP(vm.Listen(8080))
	serveHTTP(other.Listen(8080))
	kept, err := os.MkdirTemp("", "flcerts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(kept) })
	if err := os.Chown(kept, hostmesh.ProxyUID, hostmesh.ProxyUID); err != nil {
		t.Fatal(err)
	}
	joins := []string{"ISTIO_META_AUTO_REGISTER_GROUP=machines"}
	envFile := filepath.Join(kept, "cluster.env")
	if err := os.WriteFile(envFile, []byte(clusterEnv), 0o644); err != nil {
		t.Fatal(err)
	}
	machine := m.Join(vm, hostmesh.Workload{Namespace: "apps", Name: "machine", EnvFile: envFile,
		Env: []string{"PROV_CERT=" + kept, "OUTPUT_CERTS=" + kept}})
	client := m.Join(pod, hostmesh.Workload{Namespace: "apps", Name: "client"})
	hostmesh.WaitReady(t, machine, client)
	f := &fixture{Mesh: m, client: client, naked: other}
	const cluster = "outbound|80||machine.apps.example"
	want := func(addresses ...string) {
		t.Helper()
		testkit.Eventually(t, hostmesh.Ready, func() error {
			if got := client.Endpoints(cluster); !slices.Equal(got, addresses) {
				return fmt.Errorf("the client has endpoints %q, want %q", got, addresses)
			}
			return nil
		})
	}
	serves := func() {
		t.Helper()
		want(machineIP + ":8080")
		testkit.Eventually(t, hostmesh.Ready, func() error {
			_, err := f.get(client.Host, machineVIP+":80", "machine.apps.example")
			return err
		})
		f.wantCaller(t, client.Host, machineVIP+":80", "machine.apps.example", "spiffe://cluster.local/ns/apps/sa/client")
		testkit.Eventually(t, hostmesh.Ready, func() error {
			if _, err := f.get(other, machineIP+":8080", "machine.apps.example"); err == nil {
				return errors.New("a caller without a certificate is let in")
			}
			return nil
		})
	}
	serves()

	// Another machine with the group's own service account, which claims the first one's address.
	spoof := m.Join(other, hostmesh.Workload{
		Namespace: "apps", Name: "spoof", Env: append(joins, "INSTANCE_IP="+machineIP), Account: "machine",
	})
	testkit.Eventually(t, hostmesh.Ready, func() error {
		if log := spoof.LogTail(); !strings.Contains(log, "registration is refused") || !strings.Contains(log, strangerIP) {
			return errors.New("the agent's log does not say that it is refused")
		}
		return nil
	})
	spoof.Stop()
	serves()

	// The token is gone, as one that has expired: the certificate that was kept gets the next one.
	machine.RemoveToken()
	machine.Restart()
	hostmesh.WaitReady(t, machine)
	serves()

	// Another xds-server takes over; the entry stays.
	server, err := m.ServerOf(machine)
	if err != nil {
		t.Fatal(err)
	}
	m.KillXDS(server)
	serves()
	m.StartXDS(server)
	m.WaitXDS(server)
	serves()

	machine.AssertNothingRejected()
	machine.Stop()
	want()
	client.AssertNothingRejected()
}
