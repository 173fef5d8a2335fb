package cacerts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer/kuberequest/kubetest"
)

// TestMoveFromIstiod mounts the Secret that an istiod keeps its own root in: what that istiod signs and what this
// package signs verify with the same root, also after istiod has renewed it.
func TestMoveFromIstiod(t *testing.T) {
	pilot := kubetest.Program(t, "ISTIO_BIN", "pilot-discovery", "istio")
	server := kubetest.Start(t)
	server.Namespace(t, "istio-system")
	for name, value := range map[string]string{
		"POD_NAMESPACE": "istio-system", "POD_NAME": "istiod", "SERVICE_ACCOUNT": "istiod", "CLUSTER_ID": "Kubernetes",
		"INJECTION_WEBHOOK_CONFIG_NAME": "", "VALIDATION_WEBHOOK_CONFIG_NAME": "",
	} {
		t.Setenv(name, value)
	}
	secure := testkit.FreeAddress(t).String()
	start := func() (stop func()) {
		free := func() string { return testkit.FreeAddress(t).String() }
		return server.Run(t, "istiod", pilot, "discovery", "--httpAddr", free(), "--grpcAddr", free(), "--secureGRPCAddr", secure,
			"--monitoringAddr", free(), "--httpsAddr", free(), "--ctrlz_port", "0", "--domain", "cluster.local")
	}
	stop := start()
	client := server.Client(t)
	dir := t.TempDir()
	mount(t, dir, istioSecret(t, client, nil))
	i, _ := newIssuer(t, dir, Mesh{})
	run(t, i)
	a, _ := i.Authorities()
	if err := i.Problem(); err != nil || a == nil {
		t.Fatal(err)
	}
	first := i.current.Certificate
	if _, isRSA := i.current.Key.Public().(interface{ Size() int }); !isRSA {
		t.Errorf("istiod's key is a %T", i.current.Key.Public())
	}
	// Workloads of istiod have its roots from this ConfigMap.
	theirs := istioRoots(t, client)
	if err := issuedBy(t, i, &catest.CA{Cert: first}, theirs...); err != nil {
		t.Errorf("a leaf does not verify with istiod's roots: %v", err)
	}
	istiodVerifies(t, secure, a.Roots)

	// An istiod whose root is in its grace period from the beginning renews it at once, with the same key.
	stop()
	t.Setenv("CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE", "100")
	t.Setenv("CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL", "1s")
	t.Setenv("CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR", "false")
	start()
	renewed := istioSecret(t, client, testkit.CertPEM(first))
	mount(t, dir, renewed)
	testkit.Eventually(t, testkit.Patience, func() error {
		if now, _ := i.Authorities(); now == a {
			return errors.New("the renewed root is not used")
		}
		return i.Problem()
	})
	if err := issuedBy(t, i, &catest.CA{Cert: first}, theirs...); err != nil {
		t.Errorf("a leaf below the renewed root does not verify with the root before: %v", err)
	}
}

// istioSecret waits for the Secret istio-ca-secret with another certificate than before, and returns its files.
func istioSecret(t *testing.T, client kubernetes.Interface, before []byte) texts {
	t.Helper()
	var files texts
	testkit.Eventually(t, testkit.Patience, func() error {
		secret, err := client.CoreV1().Secrets("istio-system").Get(t.Context(), "istio-ca-secret", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if files = secret.Data; slices.Equal(files["ca-cert.pem"], before) {
			return errors.New("istiod has not renewed its root")
		}
		return nil
	})
	return files
}

func istioRoots(t *testing.T, client kubernetes.Interface) []*x509.Certificate {
	t.Helper()
	var roots []*x509.Certificate
	testkit.Eventually(t, testkit.Patience, func() error {
		held, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), "istio-ca-root-cert", metav1.GetOptions{})
		if err != nil {
			return err
		}
		roots, err = tlsconf.ParseAuthorities([]byte(held.Data["root-cert.pem"]))
		return err
	})
	return roots
}

// istiodVerifies waits until istiod presents its own certificate, which its CA has signed, and verifies that.
func istiodVerifies(t *testing.T, address string, roots []*x509.Certificate) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		conn, err := (&tls.Dialer{Config: &tls.Config{
			RootCAs: catest.Pool(roots...), ServerName: "istiod.istio-system.svc", MinVersion: tls.VersionTLS12,
		}}).DialContext(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("istiod's own certificate: %w", err)
		}
		return conn.Close()
	})
}
