package mesh

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/process"
)

const (
	istioSystem = "istio-system"
	// remoteSystem has keeper and injector of a cluster whose control plane is elsewhere.
	remoteSystem = "fairlead-remote"
)

// member is a cluster of a mesh of two. Its context in the kubeconfig of both, and the id of the cluster, is its name,
// as in Istio's guides; network is what the guides call that of its Pods.
type member struct {
	*cluster
	name, network, node string
	dir                 string
	// gateways is the namespace of gateways that name none.
	gateways string
}

// pair is two clusters with a link, of `make multicluster`. Tests run in the network of the first.
type pair struct {
	first, second *member
	// kubeconfig has a context for each.
	kubeconfig string
}

// both connects to the clusters of `make multicluster`, and links them: their nodes alone, or their Pods, too.
func both(t *testing.T, pods bool) *pair {
	t.Helper()
	other := os.Getenv("CLUSTER_OTHER")
	if other == "" {
		t.Skip("CLUSTER_OTHER names no directory of a second cluster: run `make multicluster`")
	}
	if os.Getenv("ISTIO_SAMPLES") == "" {
		t.Skip("ISTIO_SAMPLES names no directory with the samples of Istio's source: run `make multicluster`")
	}
	p := &pair{
		first: &member{cluster: connect(t), name: "cluster1", network: "network1", dir: os.Getenv("CLUSTER_DIR"), gateways: istioSystem},
		second: &member{cluster: connectTo(t, filepath.Join(other, "admin.kubeconfig")), name: "cluster2", network: "network1", dir: other,
			gateways: istioSystem},
	}
	if !pods {
		p.second.network = "network2"
	}
	p.link(t, pods)
	merged := clientcmdapi.NewConfig()
	for _, m := range p.members() {
		one, err := clientcmd.LoadFromFile(m.kubeconfig)
		testkit.NoError(t, err)
		at := one.Contexts[one.CurrentContext]
		merged.Clusters[m.name], merged.AuthInfos[m.name] = one.Clusters[at.Cluster], one.AuthInfos[at.AuthInfo]
		merged.Contexts[m.name] = &clientcmdapi.Context{Cluster: m.name, AuthInfo: m.name}
		found, err := m.CoreV1().Nodes().Get(t.Context(), firstNode, metav1.GetOptions{})
		testkit.NoError(t, err)
		m.node = found.Status.Addresses[0].Address
	}
	p.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	testkit.NoError(t, clientcmd.WriteToFile(*merged, p.kubeconfig))
	t.Cleanup(func() { p.leave(t) })
	return p
}

func (p *pair) members() []*member { return []*member{p.first, p.second} }

// other is the member that m is not.
func (p *pair) other(m *member) *member {
	if m == p.first {
		return p.second
	}
	return p.first
}

// link joins the clusters anew.
func (p *pair) link(t *testing.T, pods bool) {
	t.Helper()
	args := []string{"link", "--dir", p.first.dir}
	if pods {
		args = append(args, "--pods")
	}
	process.MustDo(t, exec.Command(os.Getenv("CLUSTER_PROGRAM"), append(args, p.second.dir)...))
}

// leave removes the mesh from both, so that the next test finds them empty. A test that failed shows what was there.
func (p *pair) leave(t *testing.T) {
	if os.Getenv("CLUSTER_KEEP") != "" {
		return // to look at it
	}
	for _, m := range p.members() {
		if t.Failed() {
			t.Logf("%s", m.name)
			for _, namespace := range []string{istioSystem, remoteSystem, sample, bookinfo} {
				m.describe(t, namespace)
			}
		}
	}
	for _, m := range p.members() {
		m.kubectlAtEnd(t, "delete", "namespace", sample, bookinfo, "--ignore-not-found", "--wait=false")
		cmd := exec.Command(m.program("fairlead"), "uninstall", "--purge", "--with-contents", "-y")
		cmd.Env = m.env()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: fairlead uninstall: %v: %s", m.name, err, out)
		}
		m.kubectlAtEnd(t, "delete", "namespace", sample, bookinfo, istioSystem, remoteSystem, "--ignore-not-found")
		m.kubectlAtEnd(t, "delete", "configmaps", "-A", "-l", "fairlead.dev/managed-by", "--ignore-not-found")
	}
}

// command is a command of fairlead with the contexts of both.
func (p *pair) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.first.program("fairlead"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig)
	return cmd
}

// fairlead runs a command with the contexts of both, which must succeed, and returns what it prints.
func (p *pair) fairlead(t *testing.T, args ...string) string {
	t.Helper()
	return process.MustDo(t, p.command(t.Context(), args...))
}

// install installs IstioOperators of Istio's guides, each into its cluster, at once. Images and the ca's Secret are all
// that is said besides.
func (p *pair) install(t *testing.T, operator func(*member) string, members ...*member) {
	t.Helper()
	commands, said := make([]*exec.Cmd, len(members)), make([]bytes.Buffer, len(members))
	for i, m := range members {
		cmd := p.command(t.Context(), append([]string{"install", "-y", "--context", m.name, "-f", "-"}, images...)...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(operator(m)), &said[i], &said[i]
		testkit.NoError(t, cmd.Start())
		commands[i] = cmd
	}
	for i, cmd := range commands {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: fairlead install: %v: %s", members[i].name, err, said[i].String())
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// primary is what Istio's guides install in a cluster that has a control plane; the last line, which has the ca take
// Secret cacerts, is Fairlead's.
func primary(m *member) string {
	return fmt.Sprintf(`apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
spec:
  values:
    global:
      meshID: mesh1
      multiCluster:
        clusterName: %s
      network: %s
    ca: {signer: {caCerts: {directory: /etc/cacerts}}}
`, m.name, m.network)
}

// eastwest installs the gateways that Istio's script makes, and gives their Services the nodes' addresses, as balancers
// would.
func (p *pair) eastwest(t *testing.T, members ...*member) {
	t.Helper()
	script := filepath.Join(os.Getenv("ISTIO_SAMPLES"), "multicluster", "gen-eastwest-gateway.sh")
	p.install(t, func(m *member) string { return process.MustDo(t, exec.Command("bash", script, "--network", m.network)) }, members...)
	for _, m := range members {
		m.balancer(t, "istio-eastwestgateway")
	}
}

// expose applies a file of Istio's samples that opens the gateway to something.
func (m *member) expose(t *testing.T, what string) {
	t.Helper()
	m.kubectl(t, "apply", "-n", istioSystem, "-f", filepath.Join(os.Getenv("ISTIO_SAMPLES"), "multicluster", what))
}

// balancer does what a load balancer's controller does: a Service has the node's address.
func (m *member) balancer(t *testing.T, service string) {
	t.Helper()
	m.kubectl(t, "patch", "service", "-n", m.gateways, service, "--subresource=status", "--type=merge", "-p",
		fmt.Sprintf(`{"status": {"loadBalancer": {"ingress": [{"ip": %q}]}}}`, m.node))
}

// read has the control plane of a cluster read the other, as `istioctl create-remote-secret | kubectl apply` does.
func (p *pair) read(t *testing.T, by *member) {
	t.Helper()
	other := p.other(by)
	secret := p.fairlead(t, "create-remote-secret", "--context", other.name, "--name", other.name)
	by.kubectl(t, "apply", "-f", by.file(t, secret))
}

// check asserts that `fairlead clusters check` finds nothing wrong, but what is allowed: names of checks with warnings.
func (p *pair) check(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		out, err := p.command(t.Context(), "clusters", "check", "--context", p.first.name, "--context", p.second.name).CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("WARNING")) {
			return fmt.Errorf("clusters check: %w\n%s", err, out)
		}
		return nil
	})
}

// began is when `make multicluster` began to start the clusters.
func began(t *testing.T) time.Time {
	t.Helper()
	at, err := strconv.ParseInt(os.Getenv("CLUSTER_BEGAN"), 10, 64)
	if err != nil {
		return time.Now()
	}
	return time.Unix(at, 0)
}

// meshNamespace makes the namespace of the control plane, with the label of its network, and in it the Secret cacerts
// with a certificate of the mesh's root for this cluster.
func (m *member) meshNamespace(t *testing.T, root *authority) {
	t.Helper()
	_, err := m.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: istioSystem, Labels: map[string]string{"topology.istio.io/network": m.network},
	}}, metav1.CreateOptions{})
	testkit.NoError(t, err)
	if root == nil {
		return
	}
	_, err = m.CoreV1().Secrets(istioSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "cacerts"}, Data: root.cacerts(t, m.name),
	}, metav1.CreateOptions{})
	testkit.NoError(t, err)
}
