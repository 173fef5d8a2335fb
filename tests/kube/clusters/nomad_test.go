package clusters

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/token"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/process"
)

const nomadRules = `
- {namespace: default, job: web, task: agent, account: shop/web}
- {namespace: default, job: bank, task: "*", account: bank/web}
- {namespace: ops, job: "*", task: "*", account: ` + meshNamespace + `/ca}
`

// nomad holds that a task of Nomad gets the identity of its rule, with node-agent and Envoy, and nothing else.
func (m *mesh) nomad(t *testing.T) {
	const id = "spiffe://cluster.local/ns/shop/sa/web"
	cluster := testkit.Must(token.NewNomad("", false))(t)
	keys, rules := filepath.Join(m.dir, "nomad.json"), filepath.Join(m.dir, "rules.yaml")
	testkit.WriteFile(t, keys, testkit.Must(cluster.JWKS())(t))
	testkit.WriteFile(t, rules, []byte(nomadRules))
	args := []string{"remote-clusters", "trust", "--nomad", keys, "--name", "nomad", "--yes"}
	if out, err := m.fairlead(append(args, "--nomad-rules", rules, "--namespaces", "shop")...); err == nil ||
		!strings.Contains(err.Error(), "control plane's namespace") {
		t.Errorf("a rule for the ca: %v %s", err, out)
	}
	testkit.WriteFile(t, rules, []byte(strings.ReplaceAll(nomadRules, meshNamespace+"/ca", "fairlead-remote/injector")))
	out, err := m.fairlead(append(args, "--nomad-rules", rules, "--namespaces", "shop")...)
	if err != nil || !strings.Contains(out, "nomad, of Nomad") || !strings.Contains(out, "is shop/web") {
		t.Fatalf("%v: %s", err, out)
	}
	m.states("trusted", 3)
	m.xdsKnows(`"nomad"`)

	task := func(namespace, job, name string) string {
		return testkit.Must(cluster.Task(namespace, job, name, nil))(t)
	}
	ca, xds := m.dial(m.caAddr, caName, nil), m.dial(m.xdsAddr, xdsName, nil)
	web := task("default", "web", "agent")
	cert := m.issued(t, as(t.Context(), web), ca, id)
	m.issued(t, as(t.Context(), web), xds, id) // forwarded
	m.issued(t, t.Context(), m.dial(m.caAddr, caName, cert), id)
	for name, tc := range map[string]struct{ token, claimed, says string }{
		"a task without a rule":        {task("default", "web", "other"), "", "no rule is about task"},
		"a namespace beyond its bound": {task("default", "bank", "x"), "spiffe://cluster.local/ns/bank/sa/web", "namespace bank"},
		"an account in the subject": {testkit.Must(cluster.Task("", "", "", func(c map[string]any) {
			c["sub"] = "system:serviceaccount:shop:web"
		}))(t), "", "names no namespace, job and task"},
	} {
		ctx := as(t.Context(), tc.token, "clusterid", "west")
		m.refused(ctx, xds, codes.Unauthenticated, tc.says)
		m.logged(name, []string{`"decision":"refused"`, `"cluster":"nomad","claimed":"` + tc.claimed + `"`},
			func() { m.refused(ctx, ca, codes.Unauthenticated, tc.says) })
	}
	t.Run("with node-agent and Envoy", func(t *testing.T) { m.agentOf(t, web) })

	// The ConfigMap of old keys and rules is kept by a run that states none.
	again := testkit.Must(token.NewNomad("", true))(t)
	testkit.WriteFile(t, keys, testkit.Must(again.JWKS())(t))
	if out, err := m.fairlead(append(args, "--remove-old-keys")...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.refused(as(t.Context(), web), ca, codes.Unauthenticated, "not signed by a known key")
	m.issued(t, as(t.Context(), testkit.Must(again.Task("default", "web", "agent", nil))(t)), ca, id)
	testkit.NoError(t, m.west.Client(t).CoreV1().ConfigMaps(meshNamespace).Delete(t.Context(), "fairlead-remote-cluster-nomad",
		metav1.DeleteOptions{}))
	m.states("trusted", 2)
	m.xdsKnows("mid-other")
}

// agentOf runs node-agent with Envoy as a task that has a token in Nomad's directory of secrets.
func (m *mesh) agentOf(t *testing.T, token string) {
	secrets, state := filepath.Join(m.dir, "secrets"), filepath.Join(m.dir, "agent")
	testkit.NoError(t, os.Mkdir(secrets, 0o700))
	file, status := filepath.Join(secrets, "nomad_fairlead.jwt"), testkit.FreeAddress(t)
	ip := status.Addr().String() // an address for this Envoy alone: another one on the machine may have the same ports
	testkit.WriteFile(t, file, []byte(token))
	log := m.log("agent")
	var p *process.Process
	start := sync.OnceFunc(func() {
		p = process.Run(t, process.Program{Name: "node-agent", Path: binaries.Built(t, "node-agent"), Stdout: log, Stderr: log,
			Env: []string{"POD_NAMESPACE=shop", "POD_NAME=web-5c6328f7", "SERVICE_ACCOUNT=web", "INSTANCE_IP=" + ip,
				"ISTIO_META_INTERCEPTION_MODE=NONE"},
			Args: []string{"proxy", "sidecar", "--state-dir", state, "--token-file", file, "--root-cert-file", m.roots,
				"--envoy-binary", filepath.Join(binaries.Tools(), "envoy"), "--discovery-address", m.xdsAddr, "--ca-address", m.caAddr,
				"--bind", ip, "--status-address", status.String(), "--discovery-id", "spiffe://cluster.local/ns/istio-system/sa/xds-server",
				"--ca-id", "spiffe://cluster.local/ns/istio-system/sa/ca"}})
	})
	m.logged("the agent's certificate", []string{`"decision":"issued"`, `"method":"jwt"`, `"cluster":"nomad"`,
		`"identity":"spiffe://cluster.local/ns/shop/sa/web"`}, start)
	testkit.Eventually(t, 2*patience, func() error { // with a configuration of xds-server
		if err := p.Died(); err != nil {
			t.Fatalf("%v\n%s", err, p.LogTail())
		}
		if _, err := get("http://" + status.String() + "/healthz/ready"); err != nil {
			return fmt.Errorf("%w\n%s", err, p.LogTail())
		}
		return nil
	})
	testkit.NoError(t, p.Stop(patience))
}
