// Package kubetest runs a real kube-apiserver with etcd on loopback for tests of what asks Kubernetes for certificates.
package kubetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"fairlead.dev/pkg/testkit"
)

// Variable names the directories of kube-apiserver and etcd, as in PATH.
const Variable = "KUBE_BIN"

// admin is the user who may do everything.
const admin = "admin"

// Server is an API server with its etcd, until the end of a test.
type Server struct {
	t       testing.TB
	dir     string
	address netip.AddrPort
	args    []string
	api     *program
}

// Program returns the path of a program in the directories that a variable lists; without the variable it skips the
// test, and says what to run.
func Program(t testing.TB, variable, name, tool string) string {
	t.Helper()
	list := filepath.SplitList(os.Getenv(variable))
	if len(list) == 0 {
		t.Skipf("%s is not set: run `make signers`, or set it to what `tools/build-cached.sh %s` prints", variable, tool)
	}
	for _, dir := range list {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatalf("%s: no %s in %q; set it to what `tools/build-cached.sh %s` prints", variable, name, list, tool)
	return ""
}

// Start starts etcd and an API server with RBAC, and returns when that is ready. Beside the administrator there are
// these users, who may do nothing until Grant.
func Start(t testing.TB, users ...string) *Server {
	t.Helper()
	etcd, api := Program(t, Variable, "etcd", "kubernetes etcd"), Program(t, Variable, "kube-apiserver", "kubernetes etcd")
	dir := t.TempDir()
	s := &Server{t: t, dir: dir, address: testkit.FreeAddress(t)}
	client, peer := "http://"+testkit.FreeAddress(t).String(), "http://"+testkit.FreeAddress(t).String()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	accounts, err := keyutil.MarshalPrivateKeyToPEM(key)
	testkit.NoError(t, err)
	testkit.WriteFile(t, s.file("accounts.key"), accounts)
	var tokens strings.Builder
	fmt.Fprintf(&tokens, "%s,%s,%s,system:masters\n", admin, admin, admin)
	for _, u := range users {
		fmt.Fprintf(&tokens, "%s,%s,%s\n", u, u, u)
	}
	testkit.WriteFile(t, s.file("tokens.csv"), []byte(tokens.String()))
	s.run("etcd", etcd, "--data-dir="+s.file("etcd"), "--unsafe-no-fsync", "--log-level=warn", "--listen-client-urls="+client,
		"--advertise-client-urls="+client, "--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	s.args = []string{api,
		"--etcd-servers=" + client, "--bind-address=" + s.address.Addr().String(), "--secure-port=" + strconv.Itoa(int(s.address.Port())),
		"--advertise-address=" + s.address.Addr().String(), "--endpoint-reconciler-type=none", "--cert-dir=" + s.file("serving"), "--authorization-mode=RBAC",
		"--token-auth-file=" + s.file("tokens.csv"), "--service-account-issuer=https://issuer.test", "--service-cluster-ip-range=198.19.0.0/16",
		"--service-account-key-file=" + s.file("accounts.key"), "--service-account-signing-key-file=" + s.file("accounts.key"),
		"--disable-admission-plugins=ServiceAccount", "--shutdown-watch-termination-grace-period=1s",
	}
	s.Resume(t)
	return s
}

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }

// run starts a program that ends with the test.
func (s *Server) run(name, path string, args ...string) *program {
	s.t.Helper()
	log, err := os.OpenFile(s.file(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	testkit.NoError(s.t, err)
	defer log.Close()
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	// It dies with the thread that starts it, which stays until then: also if the tests are killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(ended)
	}()
	testkit.NoError(s.t, <-started)
	p := &program{cmd, ended}
	s.t.Cleanup(func() {
		p.kill()
		if text, err := os.ReadFile(s.file(name + ".log")); err == nil && s.t.Failed() {
			s.t.Logf("the log of %s ends with\n%s", name, text[max(0, len(text)-1500):])
		}
	})
	return p
}

// program runs until it ends or is killed.
type program struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Run starts a program that ends with the test, or when kill is called; it gets the kubeconfig of the administrator as
// its last argument.
func (s *Server) Run(t testing.TB, name, path string, args ...string) (kill func()) {
	t.Helper()
	file := s.file("kubeconfig")
	config := s.Config(admin)
	ca, err := os.ReadFile(config.CAFile)
	testkit.NoError(t, err)
	testkit.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: config.Host, CertificateAuthorityData: ca, TLSServerName: config.ServerName}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{admin: {Token: admin}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: admin}},
		CurrentContext: "test",
	}, file))
	return s.run(name, path, append(args, "--kubeconfig="+file)...).kill
}

// Kill ends the API server as a crash does; etcd goes on.
func (s *Server) Kill() { s.api.kill() }

// Resume starts the API server, with the same address and data, and returns when it is ready.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	s.api = s.run("kube-apiserver", s.args[0], s.args[1:]...)
	testkit.Eventually(t, testkit.Patience, func() error {
		if _, err := os.Stat(s.file("serving/apiserver.crt")); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		client, err := kubernetes.NewForConfig(s.Config(admin))
		if err != nil {
			return err
		}
		if err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
			return err
		}
		_, err = client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return err
	})
}

// Config is how a user reaches the API server.
func (s *Server) Config(user string) *rest.Config {
	return &rest.Config{Host: "https://" + s.address.String(), BearerToken: user, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.file("serving/apiserver.crt"), ServerName: "kubernetes"}}
}

// Admin is how the administrator reaches the API server.
func (s *Server) Admin() *rest.Config { return s.Config(admin) }

// Client is one of the administrator.
func (s *Server) Client(t testing.TB) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.Admin())
	testkit.NoError(t, err)
	return client
}

// Namespace makes a namespace, if it is not there.
func (s *Server) Namespace(t testing.TB, name string) {
	t.Helper()
	_, err := s.Client(t).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		testkit.NoError(t, err)
	}
}

// Grant replaces what a user may do, and waits until the API server knows.
func (s *Server) Grant(t testing.TB, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	client, ctx, meta := s.Client(t).RbacV1(), t.Context(), metav1.ObjectMeta{Name: "test:" + user}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
	_, err := client.ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = client.ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	}
	testkit.NoError(t, err)
	_, err = client.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		testkit.NoError(t, err)
	}
	// The authorizer learns of it by a watch: a marker of this call tells that it has.
	marker := "/marker-" + strings.ToLower(rand.Text())
	role.Rules = append(role.Rules, rbacv1.PolicyRule{NonResourceURLs: []string{marker}, Verbs: []string{"get"}})
	_, err = client.ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	testkit.NoError(t, err)
	as, err := kubernetes.NewForConfig(s.Config(user))
	testkit.NoError(t, err)
	testkit.Eventually(t, testkit.Patience, func() error {
		if err := as.Discovery().RESTClient().Get().AbsPath(marker).Do(ctx).Error(); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the role is not known yet"), err)
		}
		return nil
	})
}
