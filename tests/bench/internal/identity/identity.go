// Package identity runs the real ca and gets certificates from it for whoever takes part in a benchmark.
package identity

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit/token"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/bench/internal/machine"
)

// TrustDomain of the benchmarked mesh, SystemNamespace of Fairlead's own services in it.
const (
	TrustDomain     = "cluster.local"
	SystemNamespace = "istio-system"

	issuer = "https://issuer.bench"
	// tokenTTL is longer than any run.
	tokenTTL = 12 * time.Hour
)

// Authority is the ca and the issuer of the tokens it believes.
type Authority struct {
	// Address is the ca's, RootFile the trust bundle, JWKSFile the keys of the tokens.
	Address, RootFile, JWKSFile string

	dir    string
	tokens token.Issuer
	ca     *machine.Process
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

// Start runs the ca binary on the given cores, with its state in dir.
func Start(ctx context.Context, binary, dir string, cores *machine.Cores) (*Authority, error) {
	tokens, err := token.NewIssuer(issuer)
	if err != nil {
		return nil, err
	}
	a := &Authority{tokens: tokens, dir: dir, RootFile: filepath.Join(dir, "root-cert.pem"), JWKSFile: filepath.Join(dir, "jwks.json")}
	a.ctx, a.stop = context.WithCancel(ctx)
	keys, err := a.tokens.JWKS()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(a.JWKSFile, keys, 0o600); err != nil {
		return nil, err
	}
	ports, err := machine.FreePorts(2)
	if err != nil {
		return nil, err
	}
	a.Address = ports[0]
	cmd := exec.Command(binary, "--grpc-address", ports[0], "--ops-address", ports[1], "--log-level", "warn", "--trust-domain", TrustDomain,
		"--ca-dir", filepath.Join(dir, "ca"), "--root-cert-out", a.RootFile, "--jwks-file", a.JWKSFile, "--issuer", issuer)
	if a.ca, err = machine.Start(cmd, &cores.Clients, filepath.Join(dir, "ca.log")); err != nil {
		return nil, err
	}
	if err := machine.Ready(a.ctx, a.ca, ports[1]); err != nil {
		a.Stop()
		return nil, err
	}
	return a, nil
}

// Stop ends the ca and the renewal of certificates.
func (a *Authority) Stop() {
	a.stop()
	a.wg.Wait()
	a.ca.Stop()
}

// ID of a service account.
func ID(namespace, account string) spiffeid.ID {
	return spiffeid.RequireFromSegments(spiffeid.RequireTrustDomainFromString(TrustDomain), "ns", namespace, "sa", account)
}

// Token signs a service account token.
func (a *Authority) Token(namespace, account, audience string) (string, error) {
	return a.tokens.ServiceAccount(namespace, account, audience, tokenTTL)
}

// TokenFile writes a token for the ca.
func (a *Authority) TokenFile(namespace, account string) (string, error) {
	token, err := a.Token(namespace, account, "istio-ca")
	if err != nil {
		return "", err
	}
	path := filepath.Join(a.dir, strings.Join([]string{namespace, account, "token"}, "."))
	return path, os.WriteFile(path, []byte(token), 0o600)
}

// Flags are those by which a service of the system namespace comes to its certificate and knows the tokens of others.
func (a *Authority) Flags(account string) ([]string, error) {
	token, err := a.TokenFile(SystemNamespace, account)
	if err != nil {
		return nil, err
	}
	return []string{
		"--trust-domain", TrustDomain, "--ca-address", a.Address, "--ca-token-file", token, "--root-cert-file", a.RootFile,
		"--issuer", issuer, "--jwks-file", a.JWKSFile, "--admin-jwks-file", a.JWKSFile,
	}, nil
}

// Certificate keeps a certificate of a service account until Stop; it returns once there is one.
func (a *Authority) Certificate(ctx context.Context, namespace, account string) (*svid.Manager, error) {
	token, err := a.TokenFile(namespace, account)
	if err != nil {
		return nil, err
	}
	m, err := svid.New(svid.Config{
		CAAddress: a.Address, CAIDs: []spiffeid.ID{ID(SystemNamespace, "ca")}, TokenFile: token, RootFile: a.RootFile, Identity: ID(namespace, account), TTL: contract.CertificateTTL,
	})
	if err != nil {
		return nil, err
	}
	a.wg.Go(func() {
		_ = m.Run(a.ctx) // ends with the context
	})
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := m.WaitReady(ctx); err != nil {
		return nil, fmt.Errorf("certificate of %s/%s: %w", namespace, account, err)
	}
	return m, nil
}
