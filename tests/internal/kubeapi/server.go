// Package kubeapi runs a real etcd and kube-apiserver for a test, without nodes: TLS, RBAC, and controllers of
// kube-controller-manager if a test asks for some. KUBE_BIN names the directories of the programs (Program).
package kubeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/process"
)

// Server is an API server with its etcd, until the end of a test.
type Server struct {
	// Kubeconfig is the file of an administrator, in the group system:masters.
	Kubeconfig string
	// Config is the same; clients with it are not slowed down.
	Config *rest.Config
	// Dir has all files, the logs etcd.log, kube-apiserver.log and kube-controller-manager.log among them. It is kept
	// if the test fails.
	Dir string
	// Took is how long Start took.
	Took time.Duration

	t     testing.TB
	plane ControlPlane
	args  []string
	etcd  *process.Process
	api   *process.Process
}

// Options of Start.
type Options struct {
	// Controllers of kube-controller-manager that run, by name: "namespace-controller", without which namespaces are
	// not deleted, "garbage-collector-controller", "endpointslice-controller", "serviceaccount-token-controller", which
	// fills in Secrets of tokens, ...
	Controllers []string
	// Args are further arguments of kube-apiserver; of one given twice the last counts.
	Args []string
	// Issuer of the tokens of service accounts; "" means the constant Issuer.
	Issuer string
}

// Start starts etcd and an API server on loopback and returns when it is ready and the namespace default is there. They
// run until the test ends. Pods need no service account (the admission plugin ServiceAccount is off), because no
// controller makes those of a namespace.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	began := time.Now()
	dir, err := os.MkdirTemp("", "kubeapi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of etcd and the API server are kept in %s", dir)
			_ = os.RemoveAll(filepath.Join(dir, "etcd")) // only the logs are worth their space
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &Server{t: t, Dir: dir, args: o.Args, plane: ControlPlane{
		Dir: dir, Etcd: testkit.FreeAddress(t), EtcdPeer: testkit.FreeAddress(t), API: testkit.FreeAddress(t),
		Services: netip.MustParsePrefix("198.19.0.0/16"), TokenIssuer: o.Issuer,
	}}
	if err := s.plane.WritePKI(); err != nil {
		t.Fatal(err)
	}
	if s.Kubeconfig, err = s.plane.UserKubeconfig("admin", "admin", "system:masters"); err != nil {
		t.Fatal(err)
	}
	s.Config = Load(t, s.Kubeconfig)
	s.etcd = s.start(t, "etcd", s.plane.EtcdArgs())
	s.Resume(t)
	s.Took = time.Since(began)
	if len(o.Controllers) > 0 {
		s.start(t, "kube-controller-manager", []string{
			"--kubeconfig=" + s.Kubeconfig, "--controllers=" + strings.Join(o.Controllers, ","), "--leader-elect=false",
			"--kube-api-qps=200", "--kube-api-burst=400", "--secure-port=0",
			"--root-ca-file=" + s.plane.File("ca.crt"), "--service-account-private-key-file=" + s.plane.File("service-accounts.key"),
		})
	}
	return s
}

// Load returns the configuration of clients in a kubeconfig, without a limit of requests.
func Load(t testing.TB, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// Client is a client of the administrator.
func (s *Server) Client(t testing.TB) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// patience of one program to end: an API server gives clients that do not answer a minute to end their connections.
const patience = 90 * time.Second

// start runs a program until the test of Start ends, of which t may be a part.
func (s *Server) start(t testing.TB, name string, args []string) *process.Process {
	t.Helper()
	path, err := Program(name)
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(s.Dir, name+".log")
	p, err := process.Start(process.Program{Name: name, Path: path, Args: args, Stdout: log, Stderr: log}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := p.Died(); err != nil {
			s.t.Errorf("%s ended by itself: %v", name, err)
		}
		p.Kill()
	})
	return p
}

// Stop ends the API server as an upgrade does; etcd goes on.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.api.Stop(patience); err != nil {
		t.Error(err)
	}
}

// Kill ends the API server as a crash does; etcd goes on.
func (s *Server) Kill() { s.api.Kill() }

// Resume starts an API server that was stopped or killed, with the same address and data, and returns when it is
// ready.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	s.api = s.start(t, "kube-apiserver", append(s.plane.AloneArgs(), s.args...))
	client := s.Client(t)
	testkit.Eventually(t, testkit.Patience, func() error {
		for _, p := range []*process.Process{s.etcd, s.api} {
			if err := p.Died(); err != nil {
				t.Fatalf("%s ended by itself: %v\n%s", p.Name, err, p.LogTail())
			}
		}
		return Serves(t.Context(), client)
	})
}

// Backup kills the API server and etcd, copies etcd's data, starts both again, and returns what Restore takes.
func (s *Server) Backup(t testing.TB) (backup string) {
	t.Helper()
	backup = t.TempDir()
	s.withoutEtcd(t, func(data string) error { return os.CopyFS(backup, os.DirFS(data)) })
	return backup
}

// Restore replaces etcd's data by those of a backup, "" for none at all. Revisions go back too.
func (s *Server) Restore(t testing.TB, backup string) {
	t.Helper()
	s.withoutEtcd(t, func(data string) error {
		if err := os.RemoveAll(data); err != nil || backup == "" {
			return err
		}
		return os.CopyFS(data, os.DirFS(backup))
	})
}

// withoutEtcd calls f with the directory of etcd's data while neither etcd nor the API server runs.
func (s *Server) withoutEtcd(t testing.TB, f func(data string) error) {
	t.Helper()
	s.Kill()
	s.etcd.Kill()
	if err := f(filepath.Join(s.Dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	s.etcd = s.start(t, "etcd", s.plane.EtcdArgs())
	s.Resume(t)
}

// Restart stops the API server and starts it again. Watches from before do not resume: 410 Gone.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t)
	s.Resume(t)
}

// Ready asks an API server whether it is ready.
func Ready(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// Serves tells of an API server that it is ready and has made the namespace default.
func Serves(ctx context.Context, client kubernetes.Interface) error {
	if err := Ready(ctx, client); err != nil {
		return fmt.Errorf("the API server is not ready: %w", err)
	}
	_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
	return err
}

// Compact makes etcd forget all revisions but the current one: after a Restart, a paged list that began before ends
// with 410 Gone, as a watch does also without Compact.
func (s *Server) Compact(t testing.TB) {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(s.plane.File("apiserver-etcd.crt"), s.plane.File("apiserver-etcd.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(s.plane.File("etcd-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots,
		MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	call := func(method, body string) (answer struct{ Header struct{ Revision string } }) {
		t.Helper()
		url := "https://" + s.plane.Etcd.String() + "/v3/kv/" + method
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, json.Unmarshal(raw, &answer)); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("etcd answers %s to %s: %s %v", resp.Status, method, raw, err)
		}
		return answer
	}
	now := call("range", `{"key":"AA=="}`).Header.Revision
	call("compaction", `{"revision":"`+now+`","physical":true}`)
}

// RotateTokenKey restarts the API server with a new key for the tokens of service accounts. Those that the one before
// has signed stay valid, and its public key is served, too.
func (s *Server) RotateTokenKey(t testing.TB, name string) {
	t.Helper()
	if err := newTokenKey(filepath.Dir(s.plane.File(name)), name); err != nil {
		t.Fatal(err)
	}
	s.args = append(s.args, "--service-account-key-file="+s.plane.File(name+".pub"),
		"--service-account-signing-key-file="+s.plane.File(name+".key"))
	s.Restart(t)
}
