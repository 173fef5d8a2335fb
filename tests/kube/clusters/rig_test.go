package clusters

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	security "istio.io/api/security/v1alpha1"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

const (
	patience      = testkit.Patience
	meshNamespace = contract.SystemNamespace
	caName        = "ca.istio-system.svc"
	xdsName       = "istiod.istio-system.svc"
)

// mesh is a control plane whose cluster is west.
type mesh struct {
	t       *testing.T
	west    *kubeapi.Server
	servers map[string]*kubeapi.Server
	// kubeconfig has a context of each cluster; the current one is west.
	kubeconfig string
	dir, roots string

	ca             *process.Process
	caArgs         []string
	caAddr, caOps  string
	xdsAddr, xdsOp string
}

// startClusters starts API servers at once, each with a key of its own. Those whose name ends with "-other" have an
// issuer of their own.
func startClusters(t *testing.T, names ...string) map[string]*kubeapi.Server {
	t.Helper()
	out := map[string]*kubeapi.Server{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, name := range names {
		o := kubeapi.Options{}
		if strings.HasSuffix(name, "-other") {
			o.Issuer = "https://" + name + ".example"
		}
		all.Go(func() {
			s := kubeapi.Start(t, o)
			mu.Lock()
			defer mu.Unlock()
			out[name] = s
		})
	}
	all.Wait()
	if len(out) != len(names) {
		t.FailNow()
	}
	return out
}

// startMesh starts ca, config-watcher and xds-server of west, the ca with the rights of an installation. Without flags
// in watcher config-watcher reads no cluster.
func startMesh(t *testing.T, servers map[string]*kubeapi.Server, watcher ...string) *mesh {
	t.Helper()
	m := &mesh{t: t, west: servers["west"], servers: servers, dir: t.TempDir(), caAddr: testkit.FreeAddress(t).String(),
		caOps: testkit.FreeAddress(t).String(), xdsAddr: testkit.FreeAddress(t).String(), xdsOp: testkit.FreeAddress(t).String()}
	m.roots, m.kubeconfig = filepath.Join(m.dir, "roots.pem"), filepath.Join(m.dir, "kubeconfig")
	all := clientcmdapi.NewConfig()
	for name, s := range servers {
		one := testkit.Must(clientcmd.LoadFromFile(s.Kubeconfig))(t)
		of := one.Contexts[one.CurrentContext]
		all.Clusters[name], all.AuthInfos[name] = one.Clusters[of.Cluster], one.AuthInfos[of.AuthInfo]
		all.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	all.CurrentContext = "west"
	testkit.NoError(t, clientcmd.WriteToFile(*all, m.kubeconfig))

	m.west.ApplyCRDs(t)
	account := m.west.ServiceAccount(t, meshNamespace, "ca")
	for _, file := range testkit.Must(filepath.Glob("../../../deploy/kustomize/base/ca/rbac.yaml"))(t) {
		m.west.Apply(t, string(testkit.Must(os.ReadFile(file))(t)))
	}
	m.caArgs = []string{
		"--grpc-address", m.caAddr, "--ops-address", m.caOps, "--ca-dir", filepath.Join(m.dir, "ca"), "--kubernetes", "--kubeconfig", account,
		"--kube-context", "test", "--root-cert-out", m.roots, "--dns-names", "istio-system/ca=" + caName,
		"--dns-names", "istio-system/xds-server=" + xdsName, "--dns-names", "istio-system/config-watcher=config-watcher.istio-system.svc",
		"--dns-names", "istio-system/injector=" + primaryInjector, "--remote-dns-names", remoteNamespace + "/injector=" + remoteInjector,
	}
	m.startCA()

	keys := filepath.Join(m.dir, "kubelet")
	testkit.NoError(t, os.MkdirAll(keys, 0o700))
	m.kubelet()
	own := func(account string) []string {
		m.west.ServiceAccount(t, meshNamespace, account)
		file := filepath.Join(m.dir, account+".token")
		testkit.WriteFile(t, file, []byte(m.token("west", meshNamespace, account)))
		return []string{"--ca-address", m.caAddr, "--root-cert-file", m.roots, "--ca-token-file", file, "--state-dir",
			filepath.Join(m.dir, "state-"+account)}
	}
	watcherAddr, watcherOps := testkit.FreeAddress(t).String(), testkit.FreeAddress(t).String()
	m.run("config-watcher", watcherOps, append(append(own("config-watcher"), "--grpc-address", watcherAddr, "--ops-address", watcherOps),
		watcher...)...)
	m.run("xds-server", m.xdsOp, append(own("xds-server"), "--secure-address", m.xdsAddr, "--ops-address", m.xdsOp,
		"--config-watcher-address", watcherAddr, "--jwks-file", filepath.Join(keys, "jwks.json"), "--issuer", kubeapi.Issuer,
		"--remote-clusters-file", filepath.Join(keys, "remote-clusters.json"))...)
	return m
}

// startCA starts the ca, or starts it again, and waits until it is ready.
func (m *mesh) startCA() { m.ca = m.run("ca", m.caOps, m.caArgs...) }

func (m *mesh) run(name, ops string, args ...string) *process.Process {
	m.t.Helper()
	p := process.Run(m.t, process.Program{Name: name, Path: binaries.Built(m.t, name), Args: args, Stdout: m.log(name), Stderr: m.log(name)})
	testkit.Eventually(m.t, 2*patience, func() error {
		if err := p.Died(); err != nil {
			m.t.Fatalf("%s has ended: %v\n%s", name, err, p.LogTail())
		}
		_, err := get("http://" + ops + "/readyz")
		return err
	})
	return p
}

func (m *mesh) log(name string) string { return filepath.Join(m.dir, name+".log") }

func get(url string) (string, error) {
	res, err := http.Get(url) //nolint:gosec,noctx // a test's own process
	if err != nil {
		return "", err
	}
	defer res.Body.Close() //nolint:errcheck // a test
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %d: %s", url, res.StatusCode, text)
	}
	return string(text), err
}

// kubelet writes ConfigMap fairlead-jwks into the files of xds-server's volume.
func (m *mesh) kubelet() {
	m.t.Helper()
	testkit.Eventually(m.t, patience, func() error {
		found, err := m.west.Client(m.t).CoreV1().ConfigMaps(meshNamespace).Get(m.t.Context(), "fairlead-jwks", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for key, value := range found.Data {
			testkit.WriteFile(m.t, filepath.Join(m.dir, "kubelet", key), []byte(value))
		}
		return nil
	})
}

// token is one of a service account, which is made, signed by the API server of a cluster.
func (m *mesh) token(cluster, namespace, account string, audience ...string) string {
	m.t.Helper()
	if len(audience) == 0 {
		audience = []string{contract.TokenAudience}
	}
	m.servers[cluster].ServiceAccount(m.t, namespace, account)
	return testkit.Must(m.servers[cluster].Client(m.t).CoreV1().ServiceAccounts(namespace).CreateToken(m.t.Context(), account,
		&authv1.TokenRequest{Spec: authv1.TokenRequestSpec{Audiences: audience}}, metav1.CreateOptions{}))(m.t).Status.Token
}

// dial connects to the ca or to xds-server, whose certificate has the name.
func (m *mesh) dial(address, name string, cert *tls.Certificate) *grpc.ClientConn {
	m.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(testkit.Must(os.ReadFile(m.roots))(m.t))
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: name}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	conn := testkit.Must(grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(cfg))))(m.t)
	m.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// as sends a token, and what else a client may state.
func as(ctx context.Context, token string, headers ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, append([]string{"authorization", "Bearer " + token}, headers...)...)
}

// certify asks for a certificate and returns the identity in it.
func (m *mesh) certify(ctx context.Context, conn *grpc.ClientConn) (string, *tls.Certificate, error) {
	m.t.Helper()
	key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(m.t)
	der := testkit.Must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key))(m.t)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err := security.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &security.IstioCertificateRequest{
		Csr: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))}, grpc.WaitForReady(true))
	if err != nil {
		return "", nil, err
	}
	block, _ := pem.Decode([]byte(res.GetCertChain()[0]))
	leaf := testkit.Must(x509.ParseCertificate(block.Bytes))(m.t)
	return leaf.URIs[0].String(), &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key, Leaf: leaf}, nil
}

// fairlead runs the command with the kubeconfig of all clusters.
func (m *mesh) fairlead(args ...string) (string, error) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), binaries.Built(m.t, "fairlead"), append(args, "--kubeconfig", m.kubeconfig)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return string(out), err
}

// trust has the tokens of a cluster trusted, and the ca know of it.
func (m *mesh) trust(cluster string, args ...string) {
	m.t.Helper()
	out, err := m.fairlead(append([]string{"remote-clusters", "trust", "--context", cluster, "--yes"}, args...)...)
	if err != nil || !strings.Contains(out, "SHA-256") {
		m.t.Fatalf("%v: %s", err, out)
	}
}

// configMap is that of a cluster.
func (m *mesh) configMap(cluster string) *corev1.ConfigMap {
	m.t.Helper()
	return testkit.Must(m.west.Client(m.t).CoreV1().ConfigMaps(meshNamespace).Get(m.t.Context(), "fairlead-remote-cluster-"+cluster,
		metav1.GetOptions{}))(m.t)
}

// states waits until the ca counts so many ConfigMaps of remote clusters in a state.
func (m *mesh) states(state string, want int) {
	m.t.Helper()
	testkit.Eventually(m.t, patience, func() error {
		text, err := get("http://" + m.caOps + "/metrics")
		if err == nil && !strings.Contains(text, fmt.Sprintf("fairlead_ca_remote_clusters{state=%q} %d\n", state, want)) {
			err = errors.New("the ca counts others in state " + state)
		}
		return err
	})
}
