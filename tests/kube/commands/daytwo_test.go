package commands

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/tests/internal/kubeapi"
)

func podOf(namespace, name string, labels map[string]string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{Containers: containers}}
}

// TestDashboardForwardsAPort opens a program's page through the API server, which is asked by WebSocket.
func TestDashboardForwardsAPort(t *testing.T) {
	s := start(t)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "the page "+r.URL.Path)
	}))
	t.Cleanup(page.Close)
	k := &kubelet{ports: map[string]string{"grafana-1:3000": page.Listener.Addr().String()}}
	k.node(t, s)
	k.runs(t, s, podOf("istio-system", "grafana-1", map[string]string{"app.kubernetes.io/name": "grafana"},
		corev1.Container{Name: "grafana", Image: "x"}))
	watcher := corev1.Container{Name: "config-watcher", Image: "x",
		Args: []string{"--grpc-address=:15060", "--ops-address=:15014", "--identity=istio-system/config-watcher"}}
	k.runs(t, s, podOf("istio-system", "config-watcher-1", map[string]string{"app": "config-watcher"}, watcher))

	cmd := exec.CommandContext(t.Context(), fairlead(t), "dashboard", "grafana", "--browser=false", "--kubeconfig", s.Kubeconfig)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	for _, path := range []string{"/a", "/b"} {
		res, err := http.Get(strings.TrimSpace(line) + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || string(body) != "the page "+path {
			t.Errorf("%s%s: %q, %v", line, path, body, err)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v: %s", err, said.String())
	}

	if _, said := does(t, s, 1, "dashboard", "kiali"); !strings.Contains(said, "no Pod of kiali (app=kiali) runs in namespace istio-system") {
		t.Errorf("%q", said)
	}
	user := s.User(t, "viewer")
	s.Grant(t, kubeapi.UserSubject("viewer"), kubeapi.Rule("", []string{"pods"}, "get", "list"))
	if _, said, code := run(t, fairlead(t), user, "", "dashboard", "grafana", "--browser=false"); code != 1 ||
		!strings.Contains(said, "pods/portforward") {
		t.Errorf("without the right: %d, %q", code, said)
	}
	if _, said, code := run(t, fairlead(t), user, "", "proxy-status"); code != 1 || !strings.Contains(said, "forbidden") {
		t.Errorf("without the right to a token: %d, %q", code, said)
	}
}

func TestACommandSaysWhereItHasLookedForAMesh(t *testing.T) {
	s := start(t)
	for _, a := range [][]string{{"proxy-status"}, {"describe", "pod", "a.b"}, {"why", "a", "b"}, {"proxy-config", "a", "clusters"},
		{"wait", "vs/a"}, {"dashboard", "ca"}} {
		if _, said := does(t, s, 1, a...); !strings.Contains(said, "no control plane runs in namespace istio-system") ||
			!strings.Contains(said, "fairlead install") {
			t.Errorf("%v: %q", a, said)
		}
	}
	// A Pod of another namespace that looks like a config-watcher is not asked, and gets no token.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	k := &kubelet{ports: map[string]string{"config-watcher-1:15014": l.Addr().String(), "config-watcher-1:15060": l.Addr().String()}}
	k.node(t, s)
	k.runs(t, s, podOf("shop", "config-watcher-1", map[string]string{"app": "config-watcher"},
		corev1.Container{Name: "config-watcher", Image: "x",
			Args: []string{"--grpc-address=:15060", "--ops-address=:15014", "--identity=istio-system/config-watcher"}}))
	if _, said := does(t, s, 1, "proxy-status"); !strings.Contains(said, "no control plane") {
		t.Errorf("%q", said)
	}
}

// TestAControlPlaneIsFoundBehindManyPods gives a namespace more Pods of a control plane's label than one page of a list
// has, as those that were evicted stay: the one that runs is the last of them.
func TestAControlPlaneIsFoundBehindManyPods(t *testing.T) {
	s := start(t)
	pods := s.Client(t).CoreV1().Pods("istio-system")
	for i := range 510 {
		evicted := podOf("istio-system", fmt.Sprintf("config-watcher-%03d", i), map[string]string{"app": "config-watcher"},
			corev1.Container{Name: "config-watcher", Image: "x"})
		if _, err := pods.Create(t.Context(), evicted, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	k := &kubelet{}
	k.node(t, s)
	k.runs(t, s, podOf("istio-system", "config-watcher-last", map[string]string{"app": "config-watcher"},
		corev1.Container{Name: "config-watcher", Image: "x",
			Args: []string{"--grpc-address=:15060", "--ops-address=:15014", "--identity=istio-system/config-watcher"}}))
	if _, said := does(t, s, 1, "proxy-status"); !strings.Contains(said, "root certificates") {
		t.Errorf("config-watcher-last is not asked: %q", said)
	}
}

// TestBugReportOfACluster plants secrets in objects and logs of a cluster, and looks for them in the archive.
func TestBugReportOfACluster(t *testing.T) {
	s := start(t)
	s.ApplyCRDs(t)
	const data, variable, token = "value-of-the-secret", "hunter2-of-the-pod",
		"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzb21lYm9keSJ9.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
	const key = "MHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PuoAoGCCqGSM49"
	const pem = "-----BEGIN EC PRIVATE KEY-----\n" + key + "\n-----END EC PRIVATE KEY-----\n"
	s.Apply(t, `
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: istio-system}
stringData: {k: `+data+`}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: with-key, namespace: shop}
spec: {configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {private_key: {inline_string: "`+
		strings.ReplaceAll(pem, "\n", `\n`)+`"}}}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: [web.example.com], http: [{route: [{destination: {host: web}}]}]}
`)
	k := &kubelet{logs: map[string]string{
		"shop/web-1/istio-proxy": "2026-01-01T00:00:00Z with key\n" + pem + "Authorization: Bearer " + token + "\n",
		"shop/web-1/app": "2026-01-01T00:00:00Z connect with " + variable + "\nbasic " +
			base64.StdEncoding.EncodeToString([]byte("joe:"+variable)) + "\n",
		"shop/web-2/istio-proxy":    "other\n",
		"shop/web-2/app":            "other\n",
		"istio-system/istiod-1/one": "2026-01-01T00:00:00Z token=" + token + "\n2026-02-01T00:00:00Z late line\n",
	}}
	k.node(t, s)
	for _, name := range []string{"web-1", "web-2"} {
		k.runs(t, s, podOf("shop", name, nil,
			corev1.Container{Name: "app", Image: "x", Env: []corev1.EnvVar{{Name: "DB_PASSWORD", Value: variable}}},
			corev1.Container{Name: "istio-proxy", Image: "x"}))
	}
	k.runs(t, s, podOf("shop", "plain-1", nil, corev1.Container{Name: "app", Image: "x"}))
	k.runs(t, s, podOf("istio-system", "istiod-1", nil, corev1.Container{Name: "one", Image: "x"}))

	dir := t.TempDir()
	does(t, s, 0, "bug-report", "--dir", dir, "--exclude", "shop//web-2", "--end-time", "2026-01-15T00:00:00Z")
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("%v, %v", archives, err)
	}
	if info, err := os.Stat(archives[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	files := unpack(t, archives[0])
	for _, name := range []string{
		"versions/api-server.json", "cluster/namespaces.json", "configuration/networking.istio.io/virtualservices.json",
		"proxies/shop/web-1/pod.json",
		"proxies/shop/web-1/app.log", "proxies/shop/web-1/istio-proxy.log", "control-plane/pods/istiod-1/one.log", "control-plane/services.json",
	} {
		if len(files[name]) == 0 {
			t.Errorf("the report has no %s", name)
		}
	}
	for name, text := range files {
		if strings.Contains(name, "web-2") || strings.Contains(name, "plain-1") {
			t.Errorf("the report has %s", name)
		}
		for _, secret := range []string{data, variable, token, key} {
			for skip := range 3 {
				encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", skip) + secret))
				if strings.Contains(text, encoded[4:len(encoded)-4]) || strings.Contains(text, secret) {
					t.Errorf("%s has %s", name, secret)
				}
			}
		}
	}
	if !strings.Contains(files["configuration/networking.istio.io/virtualservices.json"], "web.example.com") {
		t.Error("the VirtualService is not in the report")
	}
	if log := files["control-plane/pods/istiod-1/one.log"]; strings.Contains(log, "late line") || !strings.Contains(log, "token=[redacted]") {
		t.Errorf("log: %q", log)
	}
	if missing := files["missing.txt"]; !strings.Contains(missing, "control-plane: no control plane runs in namespace istio-system") {
		t.Errorf("missing: %s", missing)
	}
}

func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		files[name] = string(text)
	}
}
