package commands

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const vmObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: vm, namespace: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio-ca-root-cert, namespace: shop}
data: {root-cert.pem: "the root\n"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    trustDomain: example.org
    defaultConfig:
      discoveryAddress: istiod.istio-system.svc:15012
      meshId: m1
      proxyMetadata: {A: "it's b", EMPTY: ""}
      tracing: {zipkin: {address: "zipkin:9411"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio-blue, namespace: istio-system}
data: {mesh: ""}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio-green, namespace: istio-system}
data:
  mesh: |
    defaultConfig:
      discoveryAddress: istiod-green.istio-system.svc:15012
      proxyMetadata: {CA_ADDR: "ca.istio-system.svc:15012,ca.example.org:15012"}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata:
  name: machines
  namespace: shop
  annotations: {proxy.istio.io/config: "{concurrency: 3, proxyMetadata: {B: c}}"}
spec:
  metadata:
    labels: {app: machine, version: v2}
    annotations: {proxy.istio.io/config: "{statusPort: 15000}"}
  probe: {periodSeconds: 5, httpGet: {path: /healthz, port: 8080}}
  template: {serviceAccount: vm, network: vpc, ports: {http: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: istio-eastwestgateway, namespace: istio-system}
spec: {ports: [{name: tls, port: 15012}], externalIPs: [203.0.113.9]}
`

// differences are what is not as istioctl writes it where the mesh has a ca with a Service of its own. The address of
// the ca stays what the mesh says, because only there a certificate is enough for the next one, and the machine is told
// where the Service is.
var differences = map[string]string{
	"CA_ADDR='istiod-green.istio-system.svc:15012'\n": "CA_ADDR='ca.istio-system.svc:15012,ca.example.org:15012'\n",
	"203.0.113.9 istiod-green.istio-system.svc\n":     "203.0.113.9 istiod-green.istio-system.svc\n203.0.113.9 ca.istio-system.svc\n",
}

// TestVMFilesAreIstioctls: from the same objects, the files of a machine are those that istioctl writes, except for the
// listed differences, each of which occurs.
func TestVMFilesAreIstioctls(t *testing.T) {
	s := start(t)
	s.ApplyCRDs(t)
	s.Apply(t, vmObjects)
	istioctl, _ := istio(t)
	found := map[string]bool{}
	for name, flags := range map[string][]string{
		"as it is":             nil,
		"registered":           {"--autoregister", "--capture-dns=false", "--internalIP", "10.0.0.7", "--ingressIP", "192.0.2.4"},
		"of another revision":  {"--revision", "blue", "--externalIP", "203.0.113.7", "--clusterID", "east"},
		"with a ca of its own": {"--revision", "green"},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := t.TempDir(), t.TempDir()
			given := append([]string{"x", "workload", "entry", "configure", "--name", "machines", "--namespace", "shop", "--clusterID",
				"Kubernetes"}, flags...)
			does(t, s, 0, append(given, "-o", ours)...)
			if out, said, code := run(t, istioctl, s.Kubeconfig, "", append(given, "-o", theirs)...); code != 0 {
				t.Fatalf("istioctl: %s%s", out, said)
			}
			files, err := os.ReadDir(theirs)
			if err != nil || len(files) != 5 {
				t.Fatalf("istioctl wrote %v, %v", files, err)
			}
			for _, f := range files {
				want, got := read(t, theirs, f.Name()), read(t, ours, f.Name())
				if f.Name() == "istio-token" {
					want, got = claims(t, want), claims(t, got)
				}
				for theirs, ours := range differences {
					if strings.Contains(want, theirs) {
						found[theirs], want = true, strings.Replace(want, theirs, ours, 1)
					}
				}
				if got != want {
					t.Errorf("%s is\n%s\nistioctl's is\n%s", f.Name(), got, want)
				}
			}
			info, err := os.Stat(filepath.Join(ours, "istio-token"))
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("istio-token: %v, %v", info, err)
			}
		})
	}
	if len(found) != len(differences) {
		t.Errorf("of the listed differences only %v occur", found)
	}
	t.Run("a group", func(t *testing.T) {
		for _, given := range [][]string{
			{"--name", "g", "--namespace", "shop"},
			{"--name", "g", "-n", "shop", "-l", "app=machine,tier=b", "-a", "a=b", "-p", "http=8080,grpc=7070", "-s", "vm", "--network", "vpc",
				"--locality", "r/z", "-w", "7"},
		} {
			given = append([]string{"x", "workload", "group", "create"}, given...)
			want, _, _ := program(t, istioctl, "", given...)
			got, said, code := program(t, fairlead(t), "", given...)
			if code != 0 || got != want || want == "" {
				t.Errorf("%v: exit code %d %s\n%s\nistioctl's is\n%s", given, code, said, got, want)
			}
		}
	})
}

// TestVMBootstrap: with `fairlead vm bootstrap` the machine registers itself; wrong input writes nothing.
func TestVMBootstrap(t *testing.T) {
	s := start(t)
	s.ApplyCRDs(t)
	s.Apply(t, vmObjects)
	dir := filepath.Join(t.TempDir(), "machine")
	out, _ := does(t, s, 0, "vm", "bootstrap", "--name", "machines", "-n", "shop", "-o", dir)
	if !strings.Contains(out, "istio-token is a secret, valid until") {
		t.Error(out)
	}
	if env := read(t, dir, "cluster.env"); !strings.Contains(env, "ISTIO_META_AUTO_REGISTER_GROUP='machines'\n") {
		t.Error(env)
	}
	for name, c := range map[string]struct {
		code  int
		given []string
		says  string
	}{
		"no such group": {1, []string{"--name", "other", "-n", "shop"}, `"other" not found`},
		"no group":      {2, nil, "set --file, or --name and --namespace"},
		"a bad address": {2, []string{"--name", "machines", "-n", "shop", "--internalIP", "10.0.0"}, "--internalIP 10.0.0: not an IP address"},
		"a short token": {2, []string{"--name", "machines", "-n", "shop", "--tokenDuration", "5"}, "600 seconds"},
		"two addresses": {2, []string{"--name", "machines", "-n", "shop", "--internalIP", "10.0.0.1", "--externalIP", "10.0.0.2"},
			"exclude each other"},
		"no such control": {1, []string{"--name", "machines", "-n", "shop", "-r", "red"}, `"istio-red" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "none")
			if _, said := does(t, s, c.code, append([]string{"vm", "bootstrap", "-o", dir}, c.given...)...); !strings.Contains(said, c.says) {
				t.Error(said)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("something was written: %v", err)
			}
		})
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// claims are those of a token that do not differ between two tokens for the same.
func claims(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("no token: %q", token)
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Aud      []string `json:"aud"`
		Sub      string   `json:"sub"`
		Exp, Iat int64
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	return strings.Join(c.Aud, ",") + " " + c.Sub + " " + (time.Duration(c.Exp-c.Iat) * time.Second).String()
}
