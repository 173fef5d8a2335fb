package appprobe

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// Istio's own agent gives kubelet the same status for every probe, and the application sees the same request.
func TestStockAgentAnswersAlike(t *testing.T) {
	bin := os.Getenv("ISTIO_BIN")
	if bin == "" {
		t.Skip("ISTIO_BIN is not set: run `make stock`, which builds Istio's pilot-agent")
	}
	app := startApplication(t)
	text := annotation(app.cases())
	ours, stock := startAgent(t, text), startStock(t, bin, text)
	for _, tc := range app.cases() {
		path := "/app-health/" + tc.name + "/livez"
		a, b := ask(t, ours, path), ask(t, stock, path)
		if a.status != b.status {
			t.Errorf("%s: ours answers %d, Istio's %d", tc.name, a.status, b.status)
		}
		if tc.want == http.StatusOK && a.body != b.body {
			t.Errorf("%s: ours answers %.300q, Istio's %.300q", tc.name, a.body, b.body)
		}
	}
}

// startStock runs pilot-agent without an Envoy and a control plane, and returns the address of its status port.
func startStock(t *testing.T, bin, text string) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name string, data []byte) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	material, err := testkit.PKI(t).NewSVID("shop", "web").Current()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(material.Certificate.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	put("var/run/secrets/istio/root-cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}))
	put("var/run/secrets/tokens/istio-token", []byte("token"))
	put("etc/istio/proxy/none", nil)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := portOf(lis)
	_ = lis.Close()
	cmd := exec.Command(filepath.Join(bin, "pilot-agent"), "proxy", "sidecar")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = []string{
		"HOME=" + dir, "POD_NAME=web-1", "POD_NAMESPACE=shop", "INSTANCE_IP=127.0.0.1", "SERVICE_ACCOUNT=web", "DISABLE_ENVOY=true",
		"CA_ADDR=127.0.0.1:1",
		fmt.Sprintf(`PROXY_CONFIG={"discoveryAddress":"127.0.0.1:1","statusPort":%d,"configPath":%q}`, port,
			filepath.Join(dir, "etc/istio/proxy")),
		Variable + "=" + text,
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log(strings.ToValidUTF8(output.String(), "?"))
		}
	})
	address := fmt.Sprintf("127.0.0.1:%d", port)
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(50 * time.Millisecond) {
		if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			_ = conn.Close()
			return address
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("pilot-agent ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("pilot-agent does not listen")
		}
	}
}
