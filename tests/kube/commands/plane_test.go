package commands

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// plane is a control plane of real processes that read an API server, which has a Pod for each: connections to a Pod's
// ports, through the API server and the kubelet, lead to the process.
type plane struct {
	*controlplane.Plane
	kubelet *kubelet
}

// freePorts are free ones of loopback.
func freePorts(t *testing.T) controlplane.Ports {
	t.Helper()
	return controlplane.Ports{GRPC: testkit.FreeAddress(t).String(), Ops: testkit.FreeAddress(t).String()}
}

// startPlane starts a ca, and what administrators of the cluster need. The kubelet's node is there.
func startPlane(t *testing.T, s *kubeapi.Server, k *kubelet) *plane {
	t.Helper()
	dir := t.TempDir()
	p, err := controlplane.New(controlplane.Config{
		Dir: dir, Binaries: binaries.Set{Dir: filepath.Dir(fairlead(t))}, CAPorts: freePorts(t), Args: []string{"--log-level", "warn"},
		Start: func(p process.Program) (*process.Process, error) { return process.Start(p, nil) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(testkit.Patience); err != nil {
			t.Error(err)
		}
	})
	if err := p.StartCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	roots, err := os.ReadFile(p.RootFile)
	if err != nil {
		t.Fatal(err)
	}
	api := s.Client(t).CoreV1()
	_, bundle := api.ConfigMaps(contract.SystemNamespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: contract.RootConfigMap}, Data: map[string]string{"root-cert.pem": string(roots)},
	}, metav1.CreateOptions{})
	_, account := api.ServiceAccounts(contract.SystemNamespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: contract.AdminAccount}}, metav1.CreateOptions{})
	keys, err := s.Client(t).RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(t.Context())
	if err = errors.Join(bundle, account, err, os.WriteFile(filepath.Join(dir, "api-jwks.json"), keys, 0o600)); err != nil {
		t.Fatal(err)
	}
	return &plane{p, k}
}

// runs starts a service of the plane, for which the API server has a Pod of a revision, "" for the default one.
func (p *plane) runs(t *testing.T, s *kubeapi.Server, service *controlplane.Service, program, pod, revision, image string) {
	t.Helper()
	service.Add("--issuer", kubeapi.Issuer, "--jwks-file", filepath.Join(p.Dir, "api-jwks.json"), "--admin-jwks-file",
		filepath.Join(p.Dir, "api-jwks.json"))
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	if err := service.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.pod(t, s, service.Ports, program, pod, revision, image)
}

// pod makes the Pod of a service that listens on ports.
func (p *plane) pod(t *testing.T, s *kubeapi.Server, at controlplane.Ports, program, pod, revision, image string) {
	t.Helper()
	labels := map[string]string{"app": program}
	if revision != "" {
		labels["istio.io/rev"] = revision
	}
	flag := map[string]string{"xds-server": "secure-address"}[program]
	if flag == "" {
		flag = "grpc-address"
	}
	container := corev1.Container{Name: program, Image: image, Args: []string{"--identity=" + contract.SystemNamespace + "/" + program}}
	for flag, address := range map[string]string{flag: at.GRPC, "ops-address": at.Ops} {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		container.Args = append(container.Args, "--"+flag+"=:"+port)
		p.kubelet.ports[pod+":"+port] = address
	}
	p.kubelet.runs(t, s, podOf(contract.SystemNamespace, pod, labels, container))
}

// watcher adds a config-watcher that reads the API server.
func (p *plane) watcher(t *testing.T, s *kubeapi.Server, pod, revision, image string) *controlplane.Service {
	t.Helper()
	w, err := p.ConfigWatcher(freePorts(t), "--kubernetes", "--kubeconfig", s.Kubeconfig, "--state-dir", filepath.Join(p.Dir, "state-"+pod))
	if err != nil {
		t.Fatal(err)
	}
	p.runs(t, s, w, "config-watcher", pod, revision, image)
	return w
}

// TestTheConfigurationOfAClusterIsShownAsThatOfOneMachine asks a real config-watcher, which reads the API server,
// through that: by the flags of a cluster, and by its address as on one machine. What is printed is the same.
func TestTheConfigurationOfAClusterIsShownAsThatOfOneMachine(t *testing.T) {
	s := start(t)
	s.ApplyCRDs(t)
	s.Apply(t, `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {hosts: [web.example.com], http: [{route: [{destination: {host: missing}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web.example.com}
`)
	k := &kubelet{ports: map[string]string{}}
	k.node(t, s)
	p := startPlane(t, s, k)
	w := p.watcher(t, s, "config-watcher-1", "", "config-watcher:1.2.3")
	token, err := s.Client(t).CoreV1().ServiceAccounts(contract.SystemNamespace).CreateToken(t.Context(), contract.AdminAccount,
		tokenOf(contract.AdminAudience), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	testkit.WriteFile(t, file, []byte(token.Status.Token))
	here := []string{"--config-watcher-address", w.GRPC, "--token-file", file, "--root-cert-file", p.RootFile}
	for _, a := range [][]string{
		{"config", "get", "vs,dr", "-A"}, {"config", "get", "vs/web", "-n", "shop", "-o", "yaml"},
		{"config", "get", "vs", "-l", "app=web", "-o", "name"},
		{"config", "get", "vs/web.shop", "-o", "json"}, {"config", "status"}, {"config", "status", "vs/web", "-n", "shop"},
		{"config", "status", "dr", "-o", "yaml"},
		{"config", "whoami"}, {"config", "can-i", "list", "vs"},
	} {
		inCluster, said := does(t, s, 0, a...)
		out, _, code := program(t, fairlead(t), "", append(a, here...)...)
		if code != 0 || inCluster == "" || inCluster != out {
			t.Errorf("fairlead %v differs in the cluster:\n%s%s\nand on one machine, exit code %d:\n%s", a, inCluster, said, code, out)
		}
	}
	out, _ := does(t, s, 0, "config", "get", "vs")
	if !strings.Contains(out, "VirtualService   web    1            kubernetes/Kubernetes") {
		t.Errorf("get:\n%s", out)
	}
	if out, _ := does(t, s, 0, "config", "status", "vs/web", "-n", "shop"); !strings.Contains(out, "Accepted") ||
		!strings.Contains(out, "WARNING") {
		t.Errorf("status:\n%s", out)
	}

	for name, c := range map[string]struct {
		code int
		says string
		args []string
	}{
		"no such object":    {1, `VirtualService shop/wb`, []string{"config", "get", "vs/wb", "-n", "shop"}},
		"no such kind":      {2, `unknown kind`, []string{"config", "get", "virtualservce"}},
		"no such namespace": {1, `no control plane runs in namespace nowhere`, []string{"config", "status", "-i", "nowhere"}},
		"no such revision":  {1, `no control plane of revision blue runs`, []string{"config", "get", "--revision", "blue"}},
		"no such context":   {2, `context "other" does not exist`, []string{"config", "status", "--context", "other"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, said := does(t, s, c.code, c.args...); !strings.Contains(said, c.says) {
				t.Errorf("%q", said)
			}
		})
	}
	t.Run("without the right to a token", func(t *testing.T) {
		user := s.User(t, "reader")
		s.Grant(t, kubeapi.UserSubject("reader"), kubeapi.Rule("", []string{"pods", "configmaps"}, "get", "list"),
			kubeapi.Rule("", []string{"pods/portforward"}, "create", "get"))
		if _, said, code := run(t, fairlead(t), user, "", "config", "get"); code != 1 ||
			!strings.Contains(said, "ask for the right to create serviceaccounts/token") {
			t.Errorf("%d, %q", code, said)
		}
	})
	t.Run("of two control planes", func(t *testing.T) {
		p.watcher(t, s, "config-watcher-blue-1", "blue", "config-watcher:1.2.4")
		for _, a := range [][]string{{"config", "get"}, {"config", "status"}} {
			if _, said := does(t, s, 2, a...); !strings.Contains(said, "revisions blue, default") || !strings.Contains(said, "--revision") {
				t.Errorf("%v: %q", a, said)
			}
			for _, revision := range []string{"blue", "default"} {
				does(t, s, 0, append(a, "--revision", revision)...)
			}
		}
	})
	t.Run("of a replica that is away", func(t *testing.T) {
		p.pod(t, s, controlplane.Ports{GRPC: "127.0.0.1:1", Ops: "127.0.0.1:1"}, "config-watcher", "config-watcher-0", "away", "x")
		if _, said := does(t, s, 1, "config", "get", "--revision", "away"); !strings.Contains(said, "config-watcher-0") ||
			!strings.Contains(said, "connection refused") {
			t.Errorf("%q", said)
		}
	})
}
