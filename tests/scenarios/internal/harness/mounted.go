package harness

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/controlplane"
)

// mountCertificate asks the ca for a certificate of the workload, by its token, and writes key, chain and roots into a
// directory, from which its agent takes them (FILE_MOUNTED_CERTS).
func (l *workload) mountCertificate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	plane := l.harness.plane
	id := plane.ID(l.spec.Namespace, l.spec.ServiceAccount)
	request, err := controlplane.NewRequest(id.URL())
	if err != nil {
		return err
	}
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: plane.CA.GRPC, TokenFile: l.path("token"),
		TLS: tlsconf.Client(tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: plane.RootFile}),
			plane.ID(contract.SystemNamespace, contract.CAAccount)),
	}, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return l.host.Dial(ctx, "tcp", address, "")
	}))
	if err != nil {
		return err
	}
	defer conn.Close()
	cert, err := request.Send(ctx, conn, contract.CertificateTTL)
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", l.spec.Name, err)
	}
	var chain bytes.Buffer
	for _, der := range cert.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("certificate of %s: %w", l.spec.Name, err)
		}
		if c.CheckSignatureFrom(c) != nil { // roots are of a file of their own
			chain.Write(testkit.CertPEM(c))
		}
	}
	der, err := x509.MarshalPKCS8PrivateKey(request.Key)
	if err != nil {
		return err
	}
	roots, err := os.ReadFile(plane.RootFile)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.mounted(""), 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		svid.KeyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), svid.ChainFile: chain.Bytes(), svid.RootsFile: roots,
	} {
		if err := errors.Join(os.WriteFile(l.mounted(name), content, 0o600), os.Chown(l.mounted(name), proxyUID, proxyUID)); err != nil {
			return err
		}
	}
	return nil
}

// mounted is the path of a file of mountCertificate.
func (l *workload) mounted(name string) string { return filepath.Join(l.path("certs"), name) }

// mountedEnvironment tells the agent of the files.
func (l *workload) mountedEnvironment() []string {
	if !l.harness.options.MountedCertificates {
		return nil
	}
	return []string{
		"FILE_MOUNTED_CERTS=true", "ISTIO_META_TLS_CLIENT_CERT_CHAIN=" + l.mounted(svid.ChainFile),
		"ISTIO_META_TLS_CLIENT_KEY=" + l.mounted(svid.KeyFile), "ISTIO_META_TLS_CLIENT_ROOT_CERT=" + l.mounted(svid.RootsFile),
	}
}
