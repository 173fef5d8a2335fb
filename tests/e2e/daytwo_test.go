package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// described is what `fairlead describe -o json` says.
type described struct {
	Pod struct {
		Identity string
		Proxy    struct{ XDSServer, Acknowledged string }
		// Certificate is the workload's.
		Certificate struct{ Identity, NotAfter string }
		MutualTLS   []struct {
			Port       int
			Mode, From string
		}
		Policies []struct{ Kind, Name, Scope string }
	}
	Services []struct {
		Name, Host string
		Ports      []struct {
			Server, Client, ClientFrom string
			Rules                      []origin
		}
		Subsets []struct {
			Name string
			Pods int
		}
	}
	Findings []struct{ Level, Code, Object, Message string }
	Unknown  []string
}

func (d *described) finds(code, object string) bool {
	for _, f := range d.Findings {
		if f.Code == code && f.Object == object {
			return true
		}
	}
	return false
}

func describe(t *testing.T, m *fleet.Mesh, args ...string) *described {
	t.Helper()
	code, out, errOut := m.CLI(t, append([]string{"describe", "-o", "json"}, args...)...)
	if code != 0 {
		t.Fatalf("fairlead describe %v: exit code %d: %s", args, code, errOut)
	}
	d := &described{}
	if err := json.Unmarshal([]byte(out), d); err != nil {
		t.Fatalf("fairlead describe %v: %v: %s", args, err, out)
	}
	if len(d.Unknown) > 0 {
		t.Errorf("fairlead describe %v does not know: %v", args, d.Unknown)
	}
	return d
}

const strictServer = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: apps}
spec:
  selector: {matchLabels: {app: server}}
  mtls: {mode: STRICT}
`

// TestDescribe describes a Pod and its Service, before and after objects are in each other's way.
func TestDescribe(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}})
	m.WaitReady(t)
	apply(t, m, routeNamed("first")+"---\n"+strictServer)
	d := describe(t, m, "pod", "server-v1-0", "--from", "client-0.apps")
	if d.Pod.Identity != "spiffe://cluster.local/ns/apps/sa/server" || d.Pod.Certificate.Identity != d.Pod.Identity ||
		d.Pod.Proxy.XDSServer == "" {
		t.Errorf("the Pod: %+v", d.Pod)
	}
	if len(d.Pod.MutualTLS) != 1 || d.Pod.MutualTLS[0].Mode != "STRICT" || d.Pod.MutualTLS[0].From != "apps/strict" {
		t.Errorf("mutual TLS: %+v", d.Pod.MutualTLS)
	}
	if len(d.Services) != 1 || len(d.Services[0].Ports) != 1 {
		t.Fatalf("Services: %+v", d.Services)
	}
	port := d.Services[0].Ports[0]
	names := fmt.Sprint(port.Rules)
	if port.Server != "STRICT" || !strings.Contains(port.Client, "automatic") || !strings.Contains(names, "VirtualService") ||
		!strings.Contains(names, "DestinationRule") {
		t.Errorf("port: %+v", port)
	}
	if !d.finds("SubsetSelectsNothing", "DestinationRule apps/server") {
		t.Errorf("findings: %+v", d.Findings)
	}
	if d.finds("MutualTLSConflict", "Service apps/server") {
		t.Errorf("a conflict without one: %+v", d.Findings)
	}
	for _, f := range d.Findings {
		if f.Code == "NamespaceWithoutProxies" || f.Code == "NamespaceNotInjected" {
			t.Errorf("every Pod has a proxy here: %+v", f)
		}
	}

	// The DestinationRule of the file makes clients send plain text.
	file := filepath.Join(m.ConfigDir, "pair.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m.WriteConfig(t, "pair.yaml", strings.Replace(string(text), "  host: server\n",
		"  host: server\n  trafficPolicy: {tls: {mode: DISABLE}}\n", 1))
	testkit.Eventually(t, testkit.Patience, func() error {
		d := describe(t, m, "service", "server.apps")
		if !d.finds("MutualTLSConflict", "Service apps/server") || d.Services[0].Ports[0].ClientFrom != "apps/server" {
			return fmt.Errorf("findings: %+v", d.Findings)
		}
		return nil
	})
	for _, args := range [][]string{{"pod", "none.apps"}, {"service", "none.apps"}} {
		if code, _, errOut := m.CLI(t, append([]string{"describe"}, args...)...); code != 1 || !strings.Contains(errOut, "none") {
			t.Errorf("describe %v: exit code %d, %s", args, code, errOut)
		}
	}
	if code, out, _ := m.CLI(t, "describe", "svc", "server", "-n", "apps"); code != 0 ||
		!strings.Contains(out, "error MutualTLSConflict Service apps/server") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// TestWait waits for objects in each way.
func TestWait(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}})
	m.WaitReady(t)
	for _, generation := range []string{"1", "2"} {
		file := filepath.Join(t.TempDir(), "route.yaml")
		if err := os.WriteFile(file, []byte(routeNamed("g"+generation)), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, errOut := m.CLI(t, "config", "apply", "-f", file); code != 0 {
			t.Fatal(errOut)
		}
		for _, args := range [][]string{{"vs/server.apps"}, {"virtualservice", "server", "-n", "apps", "--for=distribution"},
			{"vs/server.apps", "--for", "delivery", "--threshold", "0.5", "--generation", generation}} {
			if code, out, errOut := m.CLI(t, append([]string{"wait"}, args...)...); code != 0 ||
				!strings.Contains(out, "VirtualService apps/server: ") {
				t.Errorf("wait %v: exit code %d, %s%s", args, code, out, errOut)
			}
		}
		r := why(t, m, "client-0", "server:80", "--type", "virtualhosts")
		if o := r.from("VirtualService", "server"); o == nil || fmt.Sprint(o.Generation) != generation {
			t.Errorf("after the wait the proxy has %+v, want generation %s", o, generation)
		}
	}
	for says, args := range map[string][]string{
		"not yet 9":      {"vs/server.apps", "--generation", "9", "--timeout", "1s"},
		"no such object": {"vs/none.apps", "--timeout", "1s"},
		"still there":    {"vs/server.apps", "--for", "deleted", "--timeout", "1s"},
	} {
		if code, _, errOut := m.CLI(t, append([]string{"wait", "-v"}, args...)...); code != 1 || !strings.Contains(errOut, says) {
			t.Errorf("wait %v: exit code %d, %s", args, code, errOut)
		}
	}
	if code, out, errOut := m.CLI(t, "wait", "vs/server.apps", "-o", "json"); code != 0 || !strings.Contains(out, `"done": true`) ||
		!strings.Contains(out, `"for": "programmed"`) {
		t.Errorf("wait -o json: exit code %d, %s%s", code, out, errOut)
	}
	if code, out, _ := m.CLI(t, "wait", "vs/none.apps", "--timeout", "1s", "-o", "json"); code != 1 ||
		!strings.Contains(out, `"done": false`) {
		t.Errorf("wait -o json for nothing: exit code %d, %s", code, out)
	}
	if code, _, errOut := m.CLI(t, "config", "delete", "vs/server", "-n", "apps"); code != 0 {
		t.Fatal(errOut)
	}
	if code, out, errOut := m.CLI(t, "wait", "vs/server.apps", "--for", "deleted"); code != 0 ||
		!strings.Contains(out, "deleted, 3 of 3 proxies") {
		t.Errorf("exit code %d, %s%s", code, out, errOut)
	}
}

// planted are secrets in the places where a mesh on one machine may have them.
var planted = map[string]string{
	"data of a Secret": "value-in-a-secret-object", "variable": "hunter2-in-environment", "header": "bearer-token-in-a-log-line",
	"basic": "joe:password-of-joe",
}

// TestBugReportHasNoSecrets plants secrets, and looks for them and for the mesh's own tokens and keys in the archive.
func TestBugReportHasNoSecrets(t *testing.T) {
	text, err := os.ReadFile("testdata/pair.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("          image: echo\n"),
		fmt.Appendf(nil, "          image: echo\n          env: [{name: DB_PASSWORD, value: %s}]\n", planted["variable"]), 1)
	text = fmt.Appendf(text, "\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: apps}\ndata: {k: %s}\n",
		base64.StdEncoding.EncodeToString([]byte(planted["data of a Secret"])))
	pair := filepath.Join(t.TempDir(), "pair.yaml")
	if err := os.WriteFile(pair, text, 0o600); err != nil {
		t.Fatal(err)
	}
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{pair}})
	m.WaitReady(t)
	log, err := os.OpenFile(m.Path("logs", "server-v1-0.apps.echo.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(log, "request with Authorization: Bearer %s\nAuthorization: Basic %s\nconnect with %s\n", planted["header"],
		base64.StdEncoding.EncodeToString([]byte(planted["basic"])), planted["variable"])
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	secrets := map[string]string{}
	for what, secret := range planted {
		secrets[what] = secret
	}
	for _, pattern := range []string{"tokens/*", "ca/root/*", "issuer/key.pem"} {
		files, err := filepath.Glob(m.Path(pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("the run directory has no %s, %v", pattern, err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				continue // a directory
			}
			switch lines := bytes.Split(raw, []byte("\n")); {
			case bytes.Contains(raw, []byte("PRIVATE KEY")):
				raw = lines[1]
			case pattern != "tokens/*":
				continue // a certificate
			}
			secrets[f] = strings.TrimSpace(string(raw))
		}
	}

	dir := t.TempDir()
	code, out, errOut := m.CLI(t, "bug-report", "--dir", dir)
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, errOut)
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("%v, %v", archives, err)
	}
	files := unpack(t, archives[0])
	keys := 0
	for name := range secrets {
		if strings.HasSuffix(name, "key.pem") {
			keys++
		}
	}
	if keys < 2 {
		t.Errorf("%d private keys are looked for, want those of ca and issuer", keys)
	}
	for _, name := range []string{
		"missing.txt", "state.json", "versions/components.txt", "configuration/objects-in-force.json", "configuration/files/pair.yaml",
		"status/proxy-status.txt", "status/objects.json",
		"status/analysis.json", "control-plane/config-watcher/sources.json", "control-plane/ca/log.txt", "control-plane/xds-server-0/metrics.txt",
		"proxies/client-0.apps/config-dump.json", "proxies/server-v1-0.apps/istio-proxy/log.txt", "proxies/server-v1-0.apps/echo/log.txt",
	} {
		if len(files[name]) == 0 {
			t.Errorf("the report has no %s", name)
		}
	}
	if string(files["missing.txt"]) != "Nothing is missing.\n" {
		t.Errorf("missing: %s", files["missing.txt"])
	}
	for what, secret := range secrets {
		for name, content := range files {
			if holds(content, secret) {
				t.Errorf("%s has the %s", name, what)
			}
		}
	}
	if server := string(files["proxies/server-v1-0.apps/echo/log.txt"]); !strings.Contains(server, "request with Authorization: [redacted]") {
		t.Errorf("log: %s", server)
	}

	// Of one Deployment, and of the last minute.
	chosen := t.TempDir()
	if code, _, errOut := m.CLI(t, "bug-report", "--dir", chosen, "--include", "apps/client", "--duration", "1m"); code != 0 {
		t.Fatal(errOut)
	}
	archives, _ = filepath.Glob(filepath.Join(chosen, "*.tar.gz"))
	for name := range unpack(t, archives[0]) {
		if strings.HasPrefix(name, "proxies/") && !strings.HasPrefix(name, "proxies/client-0.apps/") {
			t.Errorf("--include apps/client takes %s", name)
		}
	}
}

// holds tells whether a text has a secret, plain or in base64 of any alignment.
func holds(text []byte, secret string) bool {
	for skip := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", skip) + secret))
		if encoded = encoded[4 : len(encoded)-4]; bytes.Contains(text, []byte(encoded)) {
			return true
		}
	}
	return bytes.Contains(text, []byte(secret))
}

func unpack(t *testing.T, path string) map[string][]byte {
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
	files := map[string][]byte{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		if files[name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDashboard opens the pages of a service and of a proxy, with and without the key in their URL.
func TestDashboard(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}})
	m.WaitReady(t)
	for name, says := range map[string]string{"config-watcher": "/debug/sources", "client-0.apps": "config_dump"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cmd := m.Command(ctx, "dashboard", name, "--browser=false")
			page, wait := firstLine(t, cmd)
			jar, err := cookiejar.New(nil)
			if err != nil {
				t.Fatal(err)
			}
			if status, body := fetch(t, &http.Client{Jar: jar}, page); status != http.StatusOK || !strings.Contains(body, says) {
				t.Errorf("%s: %d %.200s", page, status, body)
			}
			stripped, _, _ := strings.Cut(page, "?")
			if status, body := fetch(t, http.DefaultClient, stripped); status != http.StatusForbidden || strings.Contains(body, says) {
				t.Errorf("without the key: %d %.200s", status, body)
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			if err := wait(); err != nil {
				t.Errorf("Ctrl-C: %v", err)
			}
		})
	}
	for says, args := range map[string][]string{"runs no grafana": {"grafana"}, "no xds-server is named": {"xds-server", "x"},
		"none": {"proxy", "none.apps"}} {
		if code, _, errOut := m.CLI(t, append([]string{"dashboard", "--browser=false"}, args...)...); code != 1 ||
			!strings.Contains(errOut, says) {
			t.Errorf("dashboard %v: exit code %d, %s", args, code, errOut)
		}
	}
}

func fetch(t *testing.T, client *http.Client, page string) (int, string) {
	t.Helper()
	res, err := client.Get(page)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// firstLine starts a command and returns the first line that it prints, and a function that waits for its end.
func firstLine(t *testing.T, cmd *exec.Cmd) (string, func() error) {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	t.Cleanup(func() { _ = out.Close() })
	var line []byte
	for buf := make([]byte, 1); ; {
		if _, err := out.Read(buf); err != nil || buf[0] == '\n' {
			return string(line), cmd.Wait
		}
		line = append(line, buf[0])
	}
}
