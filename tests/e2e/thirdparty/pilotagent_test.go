package thirdparty

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
	"fairlead.dev/tests/internal/process"
)

// istio is where Istio's own programs are, and the template of their Envoy's bootstrap. Without them the test is
// skipped.
func istio(t *testing.T) (dir, template string) {
	t.Helper()
	dir, template = os.Getenv("ISTIO_BIN"), os.Getenv("ISTIO_BOOTSTRAP")
	if dir == "" || template == "" {
		t.Skip("ISTIO_BIN and ISTIO_BOOTSTRAP are not set: run `make stock`, which builds Istio's pilot-agent and istioctl")
	}
	return dir, template
}

// stock is a workload with a stock Istio sidecar: pilot-agent with an Envoy, and the application behind it.
type stock struct {
	mesh *fleet.Mesh
	// ip is the workload's address. status, admin, envoyReady and prometheus are ports on all addresses or on
	// 127.0.0.1.
	ip                                                 string
	application, status, admin, envoyReady, prometheus int
	log                                                string
}

// freePort is a port that nobody uses on any address now.
func freePort(t *testing.T) int {
	t.Helper()
	lis, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().(*net.TCPAddr).Port
}

// processOf finds a service process of the mesh.
func processOf(t *testing.T, m *fleet.Mesh, name string) *fleet.Service {
	t.Helper()
	s, err := m.State(t).Service(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// startStock writes the workload's objects and starts application and sidecar. The sidecar is told nothing but where
// discovery is: no address of the ca, no names to expect.
func startStock(t *testing.T, m *fleet.Mesh) *stock {
	t.Helper()
	dir, template := istio(t)
	discovery := netip.MustParseAddrPort(processOf(t, m, "xds-server-0").GRPCAddress)
	ip := discovery.Addr().As4()
	ip[2], ip[3] = 200, 1 // in the mesh's range, beyond its Pods
	s := &stock{
		mesh: m, ip: netip.AddrFrom4(ip).String(), application: freePort(t), status: freePort(t), admin: freePort(t),
		envoyReady: freePort(t), prometheus: freePort(t),
	}
	objects, err := os.ReadFile("testdata/stock-workload.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m.WriteConfig(t, "stock-workload.yaml", strings.NewReplacer("$IP", s.ip, "$PORT", strconv.Itoa(s.application)).Replace(string(objects)))

	// The working directory has what a Pod has mounted.
	home := t.TempDir()
	credentials := filepath.Join(home, "credentials")
	if code, out, errOut := m.CLI(t, "credentials", "apps/stock", "--out", credentials); code != 0 {
		t.Fatalf("fairlead credentials: exit %d: %s%s", code, out, errOut)
	}
	for from, to := range map[string]string{"istio-token": "var/run/secrets/tokens/istio-token",
		"root-cert.pem": "var/run/secrets/istio/root-cert.pem"} {
		content, err := os.ReadFile(filepath.Join(credentials, from))
		if err == nil {
			err = os.MkdirAll(filepath.Join(home, filepath.Dir(to)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(home, to), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	config, err := json.Marshal(map[string]any{
		"discoveryAddress": discovery.String(), "binaryPath": binaries.Envoy, "configPath": "./etc/istio/proxy",
		"proxyBootstrapTemplatePath": template,
		"statusPort":                 s.status, "proxyAdminPort": s.admin, "interceptionMode": "NONE", "concurrency": 1,
		"terminationDrainDuration": "1s",
	})
	if err != nil {
		t.Fatal(err)
	}
	s.log = filepath.Join(home, "pilot-agent.log")
	s.run(t, home, filepath.Join(home, "application.log"), []string{"POD_NAME=stock", "PORT=" + strconv.Itoa(s.application)}, binaries.Echo,
		"stock")
	s.run(t, home, s.log, []string{
		"PATH=" + os.Getenv("PATH"), "PROXY_CONFIG=" + string(config),
		"POD_NAME=stock-0", "POD_NAMESPACE=apps", "INSTANCE_IP=" + s.ip, "SERVICE_ACCOUNT=stock", "TRUST_DOMAIN=cluster.local",
		"ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR=" + net.JoinHostPort(s.ip, "15053"),
		fmt.Sprint("ENVOY_STATUS_PORT=", s.envoyReady), fmt.Sprint("ENVOY_PROMETHEUS_PORT=", s.prometheus),
		// A certificate lives for the least that the ca gives, a minute, and is renewed after six seconds.
		"SECRET_TTL=60s", "SECRET_GRACE_PERIOD_RATIO=0.9",
	}, filepath.Join(dir, "pilot-agent"), "proxy", "sidecar", "--domain", "apps.svc.cluster.local", "--proxyLogLevel=warning")
	return s
}

// run starts a process that ends with the test.
func (s *stock) run(t *testing.T, dir, log string, env []string, name string, args ...string) {
	t.Helper()
	p, err := process.Start(process.Program{
		Name: filepath.Base(name), Path: name, Args: args, Stdout: log, Stderr: log,
		Change: func(cmd *exec.Cmd) error {
			cmd.Dir, cmd.Env = dir, env
			return nil
		},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Expect()
		_ = p.Signal(syscall.SIGTERM) // it may have ended
		if err := p.Wait(testkit.Patience); err != nil {
			t.Error(err)
		}
		p.KillGroup() // what it may have left
		if t.Failed() {
			t.Logf("end of %s:\n%s", filepath.Base(log), p.LogTail())
		}
	})
}

// logged are the lines of the agent's log that contain all of these texts.
func (s *stock) logged(t *testing.T, texts ...string) (lines []string) {
	t.Helper()
	content, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(line, text)
		}
		if all {
			lines = append(lines, line)
		}
	}
	return lines
}

// waitReady waits until the sidecar says itself that it takes traffic, on the port where the kubelet would ask.
func (s *stock) waitReady(t *testing.T) {
	t.Helper()
	s.mesh.Eventually(t, fleet.Ready, func() error {
		a, err := fleet.Direct().Get(t.Context(), fmt.Sprintf("http://127.0.0.1:%d/healthz/ready", s.envoyReady))
		if err == nil && a.Status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", a.Status, a.Body)
		}
		return err
	})
}

// get calls as the workload's application, through its sidecar.
func (s *stock) get(ctx context.Context, target string) (fleet.Seen, error) {
	var seen fleet.Seen
	proxy := &url.URL{Scheme: "http", Host: net.JoinHostPort(s.ip, "15080")}
	client := &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return seen, err
	}
	res, err := client.Do(req)
	if err != nil {
		return seen, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", res.StatusCode, body)
	}
	return seen, errors.Join(err, json.Unmarshal(body, &seen))
}

// serial is the number of the certificate that the sidecar's Envoy uses.
func (s *stock) serial(ctx context.Context) (string, error) {
	a, err := fleet.Direct().Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/certs", s.admin))
	if err != nil {
		return "", err
	}
	var certs struct {
		Certificates []struct {
			CertChain []struct {
				SerialNumber string `json:"serial_number"`
			} `json:"cert_chain"`
		}
	}
	if err := json.Unmarshal(a.Body, &certs); err != nil {
		return "", err
	}
	for _, c := range certs.Certificates {
		if len(c.CertChain) > 0 {
			return c.CertChain[0].SerialNumber, nil
		}
	}
	return "", errors.New("envoy has no certificate")
}

// istioctl runs the real istioctl against the mesh's xds-server as the owner of a credentials directory. It is told a
// revision so that it does not look for one in a cluster.
func (s *stock) istioctl(t *testing.T, credentials string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	dir, _ := istio(t)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "istioctl"), append(args,
		"--revision", "default", "--xds-address", processOf(t, s.mesh, "xds-server-0").GRPCAddress, "--cert-dir", credentials)...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}
