package issuing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/testkit/emptykube"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// signerText chooses a directory of plugged-in files.
const signerText = "apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: bench\ncaCerts: {directory: %q}\n"

// readyWithin is how long a server may take to start.
const readyWithin = time.Minute

// IstioAPI is a running CA with Istio's CreateCertificate.
type IstioAPI struct {
	*machine.Process

	address, serverName string
	// ops is the HTTP port of the ca.
	ops       string
	authority *Authority
	stops     []func()
}

// Stop ends the process and what it needs.
func (s *IstioAPI) Stop() {
	s.Process.Stop()
	for _, stop := range s.stops {
		stop()
	}
}

// StartCA runs Fairlead's ca with an authority as its plugged-in files. args are further flags.
func StartCA(ctx context.Context, program string, a *Authority, keys *Tokens, on *unix.CPUSet, args ...string) (*IstioAPI, error) {
	dir, err := os.MkdirTemp(filepath.Dir(a.Dir), "ca-")
	if err != nil {
		return nil, err
	}
	jwks, err := keys.JWKS()
	if err != nil {
		return nil, err
	}
	jwksFile, signerFile := filepath.Join(dir, "jwks.json"), filepath.Join(dir, "signer.yaml")
	if err := errors.Join(os.WriteFile(jwksFile, jwks, 0o600),
		os.WriteFile(signerFile, fmt.Appendf(nil, signerText, a.Dir), 0o600)); err != nil {
		return nil, err
	}
	ports, err := machine.FreePorts(2)
	if err != nil {
		return nil, err
	}
	s := &IstioAPI{authority: a, address: ports[0], serverName: "istiod.istio-system.svc", ops: ports[1]}
	log := filepath.Join(dir, "ca.log")
	if s.Process, err = machine.Start(process.Program{
		Name: "ca", Path: program, Stdout: log, Stderr: log,
		Args: append([]string{
			"--ca-dir", filepath.Join(dir, "state"), "--signer-file", signerFile, "--jwks-file", jwksFile, "--issuer", issuerName,
			"--grpc-address", ports[0], "--ops-address", ports[1], "--dns-names", "istio-system/ca=" + s.serverName,
		}, args...),
	}, on); err != nil {
		return nil, err
	}
	return s, s.wait(ctx, "http://"+ports[1]+"/readyz")
}

// StartIstiod runs Istio's own pilot-discovery as a CA with an authority as its Secret cacerts. It has no mesh to
// serve, and logs nothing but errors.
func StartIstiod(ctx context.Context, program string, a *Authority, keys *Tokens, on *unix.CPUSet) (*IstioAPI, error) {
	dir, err := os.MkdirTemp(filepath.Dir(a.Dir), "istiod-")
	if err != nil {
		return nil, err
	}
	jwks, err := keys.JWKS()
	if err != nil {
		return nil, err
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(jwks) }))
	kube := emptykube.Start()
	kubeconfig, mesh := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "mesh.yaml")
	if err := errors.Join(os.WriteFile(kubeconfig, kube.Kubeconfig(), 0o600),
		os.WriteFile(mesh, []byte("trustDomain: "+trustDomain+"\n"), 0o600)); err != nil {
		return nil, err
	}
	ports, err := machine.FreePorts(3)
	if err != nil {
		return nil, err
	}
	s := &IstioAPI{authority: a, address: ports[0], serverName: "istiod.istio-system.svc", stops: []func(){kube.Close, issuer.Close}}
	log := filepath.Join(dir, "istiod.log")
	if s.Process, err = machine.Start(process.Program{
		Name: "istiod", Path: program, Stdout: log, Stderr: log,
		Args: []string{
			"discovery", "--registries=", "--kubeconfig", kubeconfig, "--meshConfig", mesh, "--httpAddr", ports[1], "--grpcAddr", "",
			"--secureGRPCAddr", s.address, "--monitoringAddr", ports[2], "--httpsAddr", "", "--ctrlz_port", "0",
			"--log_output_level", "default:error",
		},
		Env: []string{
			"POD_NAMESPACE=istio-system", "POD_NAME=istiod", "KUBE_FEATURE_WatchListClient=false", "ROOT_CA_DIR=" + a.Dir,
			fmt.Sprintf(`JWT_RULE={"issuer":%q,"jwks_uri":%q,"audiences":[%q]}`, issuerName, issuer.URL, contract.TokenAudience),
		},
	}, on); err != nil {
		return nil, err
	}
	return s, s.wait(ctx, "http://"+ports[1]+"/ready")
}

// wait until the server is ready; if it does not become so, it is stopped.
func (s *IstioAPI) wait(ctx context.Context, url string) error {
	err := s.Until(ctx, readyWithin, func() error { return probe.Ready(ctx, probe.Client(nil), url) })
	if err != nil {
		s.Stop()
	}
	return err
}

// Clients connects each workload, which shows its token with each request or, with byCertificate, the certificate that
// it has got for its token, as a renewal does. The connections stay open until the process ends.
func (s *IstioAPI) Clients(ctx context.Context, workloads []*Workload, keys *Tokens, byCertificate bool) ([]Ask, error) {
	out := make([]Ask, 0, len(workloads))
	for _, w := range workloads {
		request := requestOf(w)
		if byCertificate {
			own, err := s.certificateOf(ctx, keys, w)
			if err != nil {
				return nil, err
			}
			client, err := s.dial(own)
			if err != nil {
				return nil, err
			}
			out = append(out, func(ctx context.Context) error { _, err := client.CreateCertificate(ctx, request); return err })
			continue
		}
		token, err := keys.Of(w)
		if err != nil {
			return nil, err
		}
		client, err := s.dial(nil)
		if err != nil {
			return nil, err
		}
		out = append(out, func(ctx context.Context) error {
			_, err := client.CreateCertificate(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), request)
			return err
		})
	}
	return out, nil
}

func requestOf(w *Workload) *security.IstioCertificateRequest {
	return &security.IstioCertificateRequest{Csr: w.CSR, ValidityDuration: int64(contract.CertificateTTL / time.Second)}
}

// certificateOf is what a workload gets for its token.
func (s *IstioAPI) certificateOf(ctx context.Context, keys *Tokens, w *Workload) (*tls.Certificate, error) {
	token, err := keys.Of(w)
	if err != nil {
		return nil, err
	}
	client, err := s.dial(nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.CreateCertificate(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), requestOf(w),
		grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", s.Name, err, s.LogTail())
	}
	own, err := s.verify(w, answer.GetCertChain())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return own, nil
}

func (s *IstioAPI) tls(own *tls.Certificate) *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: s.authority.Roots(), ServerName: s.serverName}
	if own != nil {
		cfg.Certificates = []tls.Certificate{*own}
	}
	return cfg
}

func (s *IstioAPI) dial(own *tls.Certificate) (security.IstioCertificateServiceClient, error) {
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(credentials.NewTLS(s.tls(own))))
	return security.NewIstioCertificateServiceClient(conn), err
}

// verify returns the certificate of an answer, which must be for the workload's key and name and verify with the root.
func (s *IstioAPI) verify(w *Workload, chain []string) (*tls.Certificate, error) {
	out := &tls.Certificate{PrivateKey: w.Key}
	pool := x509.NewCertPool()
	for _, text := range chain {
		for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, err
			}
			if len(out.Certificate) == 0 {
				out.Leaf = c
			}
			out.Certificate = append(out.Certificate, block.Bytes)
			pool.AddCert(c)
		}
	}
	if out.Leaf == nil || !w.Key.PublicKey.Equal(out.Leaf.PublicKey) || len(out.Leaf.URIs) != 1 ||
		out.Leaf.URIs[0].String() != w.URI().String() {
		return nil, fmt.Errorf("the certificate is not that of %s", w.URI())
	}
	_, err := out.Leaf.Verify(x509.VerifyOptions{
		Roots: s.authority.Roots(), Intermediates: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return out, err
}
