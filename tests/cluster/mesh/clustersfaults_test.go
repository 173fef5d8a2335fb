package mesh

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/load"
)

// staleAfter is the --remote-cluster-stale-after of a test that does not wait for ten minutes.
const staleAfter = 15 * time.Second

// twoNetworks is what happens to a mesh on two networks on its worse days; LONG=1 runs it.
func (p *pair) twoNetworks(t *testing.T) {
	if !long() {
		t.Log("failover, a gateway that is killed and an API server that is away: LONG=1 runs them")
		return
	}
	p.first.kubectl(t, "apply", "-n", sample, "-f", filepath.Join(os.Getenv("ISTIO_SAMPLES"), "helloworld", "helloworld-gateway.yaml"))
	p.first.kubectl(t, "delete", "-n", bookinfo, "gateways.networking.istio.io,virtualservices.networking.istio.io", "--all")
	requests := load.Config{Rate: 50, URL: p.first.ingress(t) + "/hello"}
	testkit.Eventually(t, soon, func() error { return load.Once(requests) })
	t.Run("a gateway is killed", func(t *testing.T) { p.killedGateway(t, requests) })
	t.Run("failover by locality", p.failover)
	t.Run("an API server is away", func(t *testing.T) { p.awayAPIServer(t, requests) })
}

// killedGateway kills the gateway of the second cluster under load from the first: one of two, and then all there are.
func (p *pair) killedGateway(t *testing.T, requests load.Config) {
	m := p.second
	scale := func(t *testing.T, n int) {
		t.Helper()
		m.kubectl(t, "delete", "hpa", "-n", istioSystem, "istio-eastwestgateway", "--ignore-not-found")
		m.kubectl(t, "scale", "-n", istioSystem, "deployment/istio-eastwestgateway", fmt.Sprintf("--replicas=%d", n))
		m.available(t, istioSystem, "istio-eastwestgateway")
		m.settled(t, istioSystem)
	}
	scale(t, 2)
	l := load.Start(t, requests)
	l.Holds(t, "nothing happens", aftermath, func(*testing.T) {})
	l.Holds(t, "one of two gateways is deleted", aftermath, func(t *testing.T) {
		m.kubectl(t, "delete", "pod", "-n", istioSystem, m.podOf(t, istioSystem, "istio=eastwestgateway"))
		m.available(t, istioSystem, "istio-eastwestgateway")
	})
	// A request that a connection ends under has no other path.
	l.Loses(t, "Envoy of one of two gateways is killed", 2, aftermath, func(t *testing.T) {
		pods, err := m.CoreV1().Pods(istioSystem).List(t.Context(), metav1.ListOptions{LabelSelector: "istio=eastwestgateway"})
		testkit.NoError(t, err)
		signal(t, m.processOf(t, "envoy", string(pods.Items[0].UID)), syscall.SIGKILL)
	})
	l.Loses(t, "no gateway is left: the first cluster's own endpoint answers", 2, aftermath, func(t *testing.T) {
		scale(t, 0)
		p.first.answeredBy(t, "v1")
	})
	scale(t, 1)
	p.first.answeredBy(t, "v1", "v2")
	l.Stop()
}

// localities is the DestinationRule of Istio's guide of failover by locality.
const localities = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: helloworld, namespace: sample}
spec:
  host: helloworld.sample.svc.cluster.local
  trafficPolicy:
    connectionPool: {http: {maxRequestsPerConnection: 1}}
    loadBalancer:
      simple: ROUND_ROBIN
      localityLbSetting: {enabled: true, failover: [{from: region1, to: region2}]}
    outlierDetection: {consecutive5xxErrors: 1, interval: 1s, baseEjectionTime: 20s}
`

// failover has clients call the endpoint of their own region, and that of the other while theirs fails.
func (p *pair) failover(t *testing.T) {
	for i, m := range p.members() {
		m.kubectl(t, "label", "node", firstNode, fmt.Sprintf("topology.kubernetes.io/region=region%d", i+1), "--overwrite")
		m.apply(t, localities)
	}
	// Proxies know their locality from their start.
	for _, m := range p.members() {
		m.kubectl(t, "rollout", "restart", "-n", sample, "deployment/curl")
		m.available(t, sample, "curl")
		m.settled(t, sample)
	}
	p.first.answeredBy(t, "v1")
	p.second.answeredBy(t, "v2")
	fail := func(what string) {
		t.Helper()
		p.first.kubectl(t, "exec", "-n", sample, "-c", "helloworld", "deploy/helloworld-v1", "--", "/usr/local/bin/samples", "-tell", what)
	}
	fail("fail")
	p.first.answeredBy(t, "v2")
	fail("mend")
	p.first.answeredBy(t, "v1") // after the ejection has ended
	for _, m := range p.members() {
		m.kubectl(t, "delete", "destinationrule", "-n", sample, "helloworld")
	}
	p.first.answeredBy(t, "v1", "v2")
}

// awayAPIServer stops the API server of the second cluster: its endpoints stay, come last when it has been away for
// --remote-cluster-stale-after, and stay so when what runs in the first is started anew.
func (p *pair) awayAPIServer(t *testing.T, requests load.Config) {
	p.first.kubectl(t, "patch", "deployment", "-n", istioSystem, "config-watcher", "--type=json", "-p",
		`[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--remote-cluster-stale-after=`+staleAfter.String()+`"}]`)
	p.first.available(t, istioSystem, "config-watcher")
	p.first.settled(t, istioSystem)
	p.first.answeredBy(t, "v1", "v2")
	l := load.Start(t, requests)
	server := p.second.processOf(t, "kube-apiserver", "")
	signal(t, server, syscall.SIGSTOP)
	t.Cleanup(func() { _ = syscall.Kill(server, syscall.SIGCONT) })
	l.Holds(t, "it is stopped", aftermath, func(t *testing.T) {
		p.first.answeredBy(t, "v1", "v2")
		p.first.answeredBy(t, "v1") // its endpoints come last
	})
	l.Holds(t, "what runs in the other cluster is started anew", aftermath, func(t *testing.T) {
		for _, name := range []string{"config-watcher", "xds-server", "fairlead-injector", "ca"} {
			for _, pid := range p.first.processesOf(t, name, "") {
				signal(t, pid, syscall.SIGKILL)
			}
		}
		p.first.available(t, istioSystem, "ca", "config-watcher", "xds-server", "injector")
		p.first.answeredBy(t, "v1")
	})
	// They are there, and are used when no others are left.
	p.first.kubectl(t, "scale", "-n", sample, "deployment/helloworld-v1", "--replicas=0")
	p.first.answeredBy(t, "v2")
	p.first.kubectl(t, "scale", "-n", sample, "deployment/helloworld-v1", "--replicas=1")
	p.first.available(t, sample, "helloworld-v1")
	p.first.answeredBy(t, "v1")
	signal(t, server, syscall.SIGCONT)
	p.first.answeredBy(t, "v1", "v2")
}

func signal(t *testing.T, pid int, what syscall.Signal) {
	t.Helper()
	testkit.NoError(t, syscall.Kill(pid, what))
}

// processOf is the process of a cluster that runs a program, in a Pod if its UID is given.
func (m *member) processOf(t *testing.T, program, pod string) int {
	t.Helper()
	all := m.processesOf(t, program, pod)
	if len(all) != 1 {
		t.Fatalf("%s: %d processes run %s", m.name, len(all), program)
	}
	return all[0]
}

// processesOf are the processes of a cluster that run a program. They belong to its process 1, and so to its control
// group or to one below.
func (m *member) processesOf(t *testing.T, program, pod string) (pids []int) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(m.dir, "process-1.json"))
	testkit.NoError(t, err)
	var first struct{ PID int }
	testkit.NoError(t, json.Unmarshal(raw, &first))
	entries, err := os.ReadDir("/proc")
	testkit.NoError(t, err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // it may have ended
		path, _, _ := strings.Cut(string(command), "\x00")
		groups, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if filepath.Base(path) == program && strings.Contains(string(groups), pod) && below(pid, first.PID) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// below says whether a process is a descendant of another.
func below(pid, of int) bool {
	for pid > 1 {
		if pid == of {
			return true
		}
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false
		}
		fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
		if len(fields) < 2 {
			return false
		}
		if pid, err = strconv.Atoi(fields[1]); err != nil {
			return false
		}
	}
	return false
}
