package kinds

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/cacerts"
	"fairlead.dev/services/ca/internal/signer/certmanager"
	"fairlead.dev/services/ca/internal/signer/guard"
	"fairlead.dev/services/ca/internal/signer/istio"
	"fairlead.dev/services/ca/internal/signer/kubecsr"
	"fairlead.dev/services/ca/internal/signer/service"
	"fairlead.dev/services/ca/internal/signer/stepca"
	"fairlead.dev/services/ca/internal/signer/vault"
)

// Env is what signers need of the ca.
type Env struct {
	signer.Deps
	// Identity is the ca's own, DNSNames are those of its certificate.
	Identity spiffeid.ID
	DNSNames []string
	// LeafTTL is the longest lifetime of a leaf.
	LeafTTL time.Duration
	// Own is the ca's own certificate, which some signers verify.
	Own tlsconf.Source
	// OpenRoot opens roots in --ca-dir.
	OpenRoot OpenRoot
	// Trusted reports whether all of the mesh verifies with a root; nil as cacerts.Mesh has it.
	Trusted func(root *x509.Certificate) bool
	// FS is the file system of keys in directories; the zero value is the operating system's.
	FS fileio.FS
	// API and Cluster are nil outside of Kubernetes.
	API     kubernetes.Interface
	Cluster *rest.Config
}

// Opened is a signer that can be used.
type Opened struct {
	Spec  *Spec
	Guard *guard.Guard
	// keeper is nil for a signer that keeps nothing.
	keeper keeper
}

// keeper is a signer that makes something which must be found again, and by other replicas: intermediates.
type keeper interface {
	signer.Issuer
	// prepare makes what is missing and returns what is to be kept; kept is what was, or nil.
	prepare(ctx context.Context, kept json.RawMessage) (json.RawMessage, error)
	// adopt uses what was kept.
	adopt(ctx context.Context, kept json.RawMessage) error
	// due is when prepare should be called again.
	due() time.Time
}

// Open makes a signer. id is the one of package rotation, by which its keys are named. It asks nobody and makes nothing
// but a Root: Prepare does.
func Open(s *Spec, id uint64, env Env) (*Opened, error) {
	var issuer signer.Issuer
	var kept keeper
	var err error
	switch {
	case s.Root != nil:
		issuer, err = s.Root.open(id, env.OpenRoot)
	case s.CACerts != nil:
		issuer, err = cacerts.New(*s.CACerts, env.Deps, cacerts.Mesh{DNS: env.DNSNames, Trusted: env.Trusted})
	case s.Service != nil:
		issuer, err = service.New(*s.Service, env.Deps, env.Own)
	case s.Istio != nil:
		issuer, err = istio.New(*s.Istio, env.Deps)
	case s.StepCA != nil:
		issuer, err = stepca.New(*s.StepCA, env.Deps)
	case s.Vault != nil:
		issuer, err = vault.NewIssuer(*s.Vault, env.Deps)
	case s.KubernetesCSR != nil:
		issuer, err = kubecsr.New(*s.KubernetesCSR, env.Deps, env.Cluster)
	case s.CertManager != nil:
		issuer, err = certmanager.New(*s.CertManager, env.Deps, env.Cluster)
	case s.Intermediate != nil:
		kept, err = newIntermediate(s.Intermediate, id, env)
		issuer = kept
	default:
		err = errors.New("no signer is chosen")
	}
	if err != nil {
		return nil, err
	}
	limits := s.Limits.config()
	limits.Clock = env.Clock
	return &Opened{Spec: s, Guard: guard.New(issuer, limits), keeper: kept}, nil
}

// Prepare makes what the signer needs, unless kept has it, and returns what is to be written down before anything is
// issued; nil if there is nothing. One replica at a time calls it.
func (o *Opened) Prepare(ctx context.Context, kept json.RawMessage) (json.RawMessage, error) {
	if o.keeper == nil {
		return nil, nil
	}
	return o.keeper.prepare(ctx, kept)
}

// Keeps reports whether Prepare returns something.
func (o *Opened) Keeps() bool { return o.keeper != nil }

// Adopt uses what was written down.
func (o *Opened) Adopt(ctx context.Context, kept json.RawMessage) error {
	if o.keeper == nil {
		return nil
	}
	return o.keeper.adopt(ctx, kept)
}

// Due is when Prepare should be called again, to renew what ends; zero if never.
func (o *Opened) Due() time.Time {
	if o.keeper == nil {
		return time.Time{}
	}
	return o.keeper.due()
}

// Problem is what is wrong with the signer while it goes on issuing, such as files that are refused; nil if nothing is.
func (o *Opened) Problem() error {
	if p, ok := o.Guard.Signer().(interface{ Problem() error }); ok {
		return p.Problem()
	}
	return nil
}

// Run follows the signer until ctx ends.
func (o *Opened) Run(ctx context.Context) error { return o.Guard.Run(ctx) }
