package mesh

import (
	"bufio"
	"encoding/json"
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
)

// TestCommandsOnTheCluster asks a mesh with two replicas of each service by every command that reads, through the API
// server and a real kubelet.
func TestCommandsOnTheCluster(t *testing.T) {
	c := connect(t)
	defer c.fairlead(t, "uninstall", "--purge", "--with-contents", "-y")
	c.fairlead(t, append([]string{"install", "-y", "--set", "profile=minimal"}, images...)...)
	c.kubectl(t, "scale", "-n", "istio-system", "deployment/config-watcher", "deployment/xds-server", "--replicas=2")
	c.available(t, "istio-system", "config-watcher", "xds-server")
	const ns = "shop"
	c.namespace(t, ns)
	c.apply(t, program(ns, "one", "echo", "one")+gateway+route("one"))
	c.available(t, ns, "one", "gateway")
	proxy := "deploy/gateway"

	// All replicas are asked: whichever config-watcher the gateway's xds-server reports to, it is in the list.
	testkit.Eventually(t, patience, func() error {
		status := c.fairlead(t, "proxy-status", "-n", ns)
		if !strings.Contains(status, "gateway-") || strings.Contains(status, "NOT SENT") ||
			strings.Count(strings.SplitN(status, "\n", 2)[0], " of config-watcher") != 2 {
			return fmt.Errorf("proxy-status: %s", status)
		}
		return nil
	})
	if out := c.fairlead(t, "wait", "vs/shop.shop", "--for", "delivery"); !strings.Contains(out, "1 of 1 proxies") {
		t.Errorf("wait: %s", out)
	}
	for _, args := range [][]string{{"proxy-config", proxy, "listeners", "-n", ns},
		{"proxy-config", proxy, "listeners", "-n", ns, "--served"}} {
		if out := c.fairlead(t, args...); !strings.Contains(out, "8080") {
			t.Errorf("%v: %s", args, out)
		}
	}
	if out := c.fairlead(t, "why", proxy, "http.8080", "--type", "routes", "-n", ns); !strings.Contains(out, "shop/shop") {
		t.Errorf("why: %s", out)
	}
	if out := c.fairlead(t, "config", "get", "vs", "-n", ns); !strings.Contains(out, "kubernetes/Kubernetes") {
		t.Errorf("config get: %s", out)
	}
	if out := c.fairlead(t, "config", "status", "vs/shop", "-n", ns); !strings.Contains(out, "Programmed") {
		t.Errorf("config status: %s", out)
	}
	if out := c.fairlead(t, "version"); strings.Count(out, " config-watcher ") != 2 || strings.Contains(out, "unknown:") ||
		!strings.Contains(out, "(1 proxies)") {
		t.Errorf("version: %s", out)
	}
	pod := strings.TrimPrefix(strings.TrimSpace(c.kubectl(t, "get", "pods", "-n", ns, "-l", "app=gateway", "-o", "name")), "pod/")
	var d struct {
		Pod struct {
			Kind        string
			Certificate struct{ Identity string }
		}
		Unknown []string
	}
	if err := json.Unmarshal([]byte(c.fairlead(t, "describe", "pod", pod+"."+ns, "--from", pod+"."+ns, "-o", "json", "--bin-dir",
		os.Getenv("BIN_DIR"))), &d); err != nil {
		t.Fatal(err)
	}
	if d.Pod.Kind != "gateway" || d.Pod.Certificate.Identity != "spiffe://cluster.local/ns/shop/sa/gateway" || len(d.Unknown) > 0 {
		t.Errorf("describe: %+v", d)
	}
	if out := c.fairlead(t, "describe", "service", "one."+ns, "--bin-dir", os.Getenv("BIN_DIR")); !strings.Contains(out,
		"Gateway shop/shop, by VirtualService shop/shop") || !strings.Contains(out, "PodWithoutProxy") {
		t.Errorf("describe service: %s", out)
	}

	if out := c.fairlead(t, "proxy", "renew", pod+"."+ns); !strings.Contains(out, pod+"."+ns+": renewed after") {
		t.Errorf("renew: %s", out)
	}

	dir := t.TempDir()
	c.fairlead(t, "bug-report", "--dir", dir, "--include", ns, "--bin-dir", os.Getenv("BIN_DIR"))
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("%v, %v", archives, err)
	}
	list, err := exec.CommandContext(t.Context(), "tar", "-tzf", archives[0]).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/proxies/shop/" + pod + "/config-dump.json", "/proxies/shop/" + pod + "/istio-proxy.log",
		"/configuration/installations.json", "/sources.json", "/proxies.json"} {
		if !strings.Contains(string(list), want) {
			t.Errorf("the report has no %s:\n%s", want, list)
		}
	}
	if whole, err := exec.CommandContext(t.Context(), "tar", "-xzOf", archives[0]).Output(); err != nil ||
		strings.Contains(string(whole), "PRIVATE KEY") || strings.Contains(string(whole), "eyJhbGci") {
		t.Errorf("the report has a key or a token, %v", err)
	}

	for name, says := range map[string]string{"xds-server": "/debug/proxies", pod + "." + ns: "config_dump"} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("BIN_DIR"), "fairlead"), "dashboard", name, "--browser=false",
			"--kubeconfig", c.kubeconfig)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		page, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Jar: jar}).Get(strings.TrimSpace(page))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), says) {
			t.Errorf("dashboard %s: %d %.300s, %v", name, res.StatusCode, body, err)
		}
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("dashboard %s, Ctrl-C: %v", name, err)
		}
	}
}
