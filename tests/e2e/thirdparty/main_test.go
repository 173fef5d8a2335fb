// Package thirdparty runs clients of xDS that are not Envoy in whole meshes: gRPC for Go and for Node.js, as programs
// that call and are called without a proxy.
package thirdparty

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
	bin "fairlead.dev/tests/internal/binaries"
)

// takesEffect bounds how long a change may take to be seen in answers. gRPC backs off between attempts to connect.
const takesEffect = testkit.Patience

var (
	// binaries are the programs under test, program the path of ./program.
	binaries fleet.Binaries
	program  string
)

func TestMain(m *testing.M) {
	fleet.Main(m, &binaries, func(ctx context.Context, dir string) error {
		program = filepath.Join(dir, "program")
		return bin.Build(ctx, program, "fairlead.dev/tests/e2e/thirdparty/program")
	})
}

// seen and result are what the clients tell of calls; see program/main.go.
type seen struct {
	Pod     string `json:"pod"`
	Version string `json:"version"`
	Peer    string `json:"peer"`
	TLS     bool   `json:"tls"`
}

type result struct {
	Seen   []seen   `json:"seen"`
	Errors []string `json:"errors"`
}

// versions counts the answers by the server's version.
func (r result) versions() map[string]int {
	out := map[string]int{}
	for _, s := range r.Seen {
		out[s.Version]++
	}
	return out
}

// mesh is a running mesh of testdata/mesh.yaml.
type mesh struct{ *fleet.Mesh }

// start starts the mesh with more Deployments than the file has, and waits until the Pods are ready.
func start(t *testing.T, more ...string) mesh {
	t.Helper()
	content, err := os.ReadFile("testdata/mesh.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var files []string
	for name, text := range map[string]string{
		"mesh.yaml": strings.ReplaceAll(strings.Join(append([]string{string(content)}, more...), "\n---\n"), "$PROGRAM", program),
		serviceFile: service(""),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	m := mesh{fleet.Start(t, binaries, fleet.Options{Files: files})}
	m.WaitReady(t)
	return m
}

// serviceFile holds the Service of the servers.
const serviceFile = "service.yaml"

// service is the Service of the servers, of all of them or of those of a version.
func service(version string) string {
	selector := "app: server"
	if version != "" {
		selector += ", version: " + version
	}
	return `apiVersion: v1
kind: Service
metadata: {name: server, namespace: apps}
spec:
  selector: {` + selector + `}
  ports: [{name: grpc, port: 7070}]
`
}

// nodejs is the Deployment of the client for Node.js. Where Node.js or its packages are missing, the test is skipped.
func nodejs(t *testing.T) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skipf("%v: install Node.js 20 (Debian and Ubuntu: apt-get install nodejs npm)", err)
	}
	modules, err := filepath.Abs(filepath.Join(bin.Tools(), "grpcjs", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(modules, "@grpc", "grpc-js-xds")); err != nil {
		t.Skipf("%v: run `make grpcjs`", err)
	}
	script, err := filepath.Abs("testdata/client.js")
	if err != nil {
		t.Fatal(err)
	}
	return `apiVersion: apps/v1
kind: Deployment
metadata: {name: js-client, namespace: apps}
spec:
  selector: {matchLabels: {app: js-client}}
  template:
    metadata:
      labels: {app: js-client}
      annotations: {inject.istio.io/templates: grpc-agent}
    spec:
      serviceAccountName: client
      containers:
        - name: program
          image: node
          command: [` + node + `, ` + script + `]
          env: [{name: NODE_PATH, value: ` + modules + `}]
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1}
`
}

// call lets a client call a target n times. The client is a Pod, or "pod:port" where it has several. A header is
// "key:value".
func (m mesh) call(t *testing.T, client, target string, n int, header string) (result, error) {
	t.Helper()
	pod, port, several := strings.Cut(client, ":")
	if !several {
		port = "8080"
	}
	query := url.Values{"target": {target}, "n": {strconv.Itoa(n)}, "header": {header}, "timeout": {"5s"}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+net.JoinHostPort(m.Pod(t, pod).IP, port)+"/call?"+
		query.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return result{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return result{}, fmt.Errorf("%s: %s %w", pod, body, err)
	}
	var out result
	return out, json.Unmarshal(body, &out)
}

// until calls a target ten times in a row until the result is as wanted.
func (m mesh) until(t *testing.T, client, target, header string, ok func(result) error) result {
	t.Helper()
	var last result
	m.Eventually(t, takesEffect, func() error {
		var err error
		if last, err = m.call(t, client, target, 10, header); err != nil {
			return err
		}
		if err := ok(last); err != nil {
			return fmt.Errorf("%w; %v answered, errors %q", err, last.Seen, last.Errors)
		}
		return nil
	})
	return last
}

// answeredBy is the condition that all calls were answered, by servers of these versions and by each of them.
func answeredBy(versions ...string) func(result) error {
	return func(r result) error {
		got := r.versions()
		if len(r.Errors) > 0 || len(got) != len(versions) {
			return fmt.Errorf("want answers of %v", versions)
		}
		for _, v := range versions {
			if got[v] == 0 {
				return fmt.Errorf("want answers of %v", versions)
			}
		}
		return nil
	}
}

// nothingRejected fails the test if a program has rejected an update.
func (m mesh) nothingRejected(t *testing.T) {
	t.Helper()
	streams, err := m.Streams(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range streams {
		for _, ty := range s.Types {
			if ty.Rejection != nil {
				t.Errorf("%s has rejected %s: %s", s.NodeID, ty.TypeURL, ty.Rejection.Message)
			}
		}
	}
}
