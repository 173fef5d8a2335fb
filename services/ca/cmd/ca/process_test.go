package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
)

// playCA in the environment makes the test binary the ca.
const playCA = "FAIRLEAD_TEST_PLAY_CA"

// TestMain lets the test binary play the ca, whose memory is then its own.
func TestMain(m *testing.M) {
	if os.Getenv(playCA) != "" {
		main()
	}
	os.Exit(m.Run())
}

// child is a ca in a process of its own, with the memory that deploy/kustomize/base/ca gives it.
type child struct {
	t       *testing.T
	cmd     *exec.Cmd
	issuer  *testkit.Issuer
	address string
	ops     string
	roots   *x509.CertPool
}

func spawn(t *testing.T, flags ...string) *child {
	t.Helper()
	dir := t.TempDir()
	c := &child{t: t, issuer: testkit.NewIssuer(t), address: testkit.FreeAddress(t).String(), ops: testkit.FreeAddress(t).String()}
	rootFile := filepath.Join(dir, "root.pem")
	c.cmd = exec.Command(os.Args[0], append([]string{ //nolint:gosec // the test binary itself
		"--grpc-address", c.address, "--ops-address", c.ops, "--ca-dir", filepath.Join(dir, "ca"), "--root-cert-out", rootFile,
		"--jwks-file", c.issuer.JWKSFile, "--issuer", c.issuer.Name, "--dns-names", "istio-system/ca=" + serverName,
	}, flags...)...)
	c.cmd.Env = append(os.Environ(), playCA+"=1", fmt.Sprintf("GOMEMLIMIT=%d", memoryLimit))
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive a test that panics
	var output bytes.Buffer
	c.cmd.Stdout, c.cmd.Stderr = &output, &output
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		if t.Failed() {
			text := output.String()
			t.Log(text[max(0, len(text)-4096):])
		}
	})
	testkit.Eventually(t, testkit.Patience, func() error {
		res, err := http.Get("http://" + c.ops + "/readyz")
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz: HTTP %d", res.StatusCode)
		}
		return nil
	})
	text, err := os.ReadFile(rootFile)
	if err != nil {
		t.Fatal(err)
	}
	c.roots = x509.NewCertPool()
	c.roots.AppendCertsFromPEM(text)
	return c
}

const (
	// memoryLimit is that of deploy/kustomize/base/ca/deployment.yaml.
	memoryLimit = 256 << 20
	serverName  = "ca.istio-system.svc"
)

func (c *child) dial() *grpc.ClientConn {
	c.t.Helper()
	conn, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: c.roots, ServerName: serverName,
	})))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (c *child) as(namespace, account string) context.Context {
	return metadata.AppendToOutgoingContext(c.t.Context(), "authorization",
		"Bearer "+c.issuer.Token(namespace, account, contract.TokenAudience))
}

// resident is the memory that the process has, in bytes.
func (c *child) resident() int {
	c.t.Helper()
	status, err := testkit.ProcessStatus(c.cmd.Process.Pid)
	if err != nil || status.VmRSS == 0 {
		c.t.Fatalf("no resident memory: %v", err)
	}
	return int(status.VmRSS)
}
