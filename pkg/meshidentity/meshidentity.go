// Package meshidentity gives a service its certificate and the roots that it verifies with, and follows the ca's signed
// trust bundle: a service verifies with new roots within a second, acknowledges them, and renews a certificate whose
// authority is tainted. Services call New and then Watch, in their Open.
package meshidentity

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/trustbundle"
	"fairlead.dev/pkg/trustwatch"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

// Identity is the own certificate, and the roots that the process verifies with: those of the root file, until the ca's
// signed bundle takes their place. It is a tlsconf.Source.
type Identity struct {
	*svid.Manager
	process *service.Process
	metrics string
	cfg     svid.Config
	roots   *trustbundle.Roots
}

// New makes what keeps the own certificate of a process, and adds the tasks that renew it: in time, and when the ca
// taints the authority that issued it. cfg needs no TrustDomain, Clock, Log, Registerer and Roots. metrics begins the
// names of the metrics, such as fairlead_xds_server. Watch must follow.
func New(p *service.Process, cfg svid.Config, metrics string) (*Identity, error) {
	return NewElsewhere(p, cfg, metrics, Elsewhere{})
}

// Elsewhere is what a process says besides where it does not reach the ca itself, but an xds-server that passes
// requests on to it: that is then at CAAddress, and has an identity of CAIDs.
type Elsewhere struct {
	// Signers are the SPIFFE IDs that the ca may have, which signs bundles; nil are CAIDs.
	Signers []spiffeid.ID
	// First has the roots to begin with, in place of RootFile, and Store the adopted bundle; both are optional.
	First trustbundle.First
	Store trustbundle.Store
}

// NewElsewhere is New for such a process. Follow must follow in place of Watch.
func NewElsewhere(p *service.Process, cfg svid.Config, metrics string, e Elsewhere) (*Identity, error) {
	cfg.TrustDomain = cfg.Identity.TrustDomain()
	if e.Signers == nil {
		e.Signers = cfg.CAIDs
	}
	id := &Identity{process: p, metrics: metrics, cfg: cfg, roots: trustbundle.New(trustbundle.Config{
		RootFile: cfg.RootFile, First: e.First, Store: e.Store, CAs: lists.Map(e.Signers, spiffeid.ID.String),
		TrustDomain: cfg.TrustDomain.Name(), Metrics: metrics, Clock: p.Clock, Log: p.Log, Registerer: p.Registry,
	})}
	cfg.Roots = id.roots
	var err error
	if id.Manager, err = p.Identity(cfg); err != nil {
		return nil, err
	}
	p.Task("roots", id.roots.Run)
	p.Task("tainted authorities", id.roots.RenewTainted(id, id.Renew))
	return id, nil
}

// DialCA prepares the connection to the ca that flag names.
func (id *Identity) DialCA(flag string) (*grpc.ClientConn, error) {
	return id.process.Dial(flag, rpc.ClientConfig{Target: id.cfg.CAAddress, TLS: tlsconf.Client(id, id.cfg.CAIDs...)})
}

// Roots are those that the process verifies with, also while it has no certificate.
func (id *Identity) Roots() tlsconf.Source { return id.roots }

// Follow adds the task that follows the bundle which the xds-server at xds passes on. inUse returns once the process
// uses the roots of now for all that it does, and nil stands for at once; before that the ca's rotation waits.
func (id *Identity) Follow(xds *grpc.ClientConn, inUse func(context.Context) error) error {
	p := id.process
	host, err := os.Hostname()
	if err != nil {
		host = id.metrics
	}
	if inUse == nil {
		inUse = func(context.Context) error { return nil }
	}
	namespace := strings.Split(id.cfg.Identity.Path(), "/")[2] // /ns/NAMESPACE/sa/NAME
	passed, err := trustwatch.NewPassed(trustwatch.PassedConfig{
		XDS:  discovery.NewAggregatedDiscoveryServiceClient(xds),
		Node: fmt.Sprintf("sidecar~~%s.%s~%[2]s.svc", host, namespace), Take: id.roots.Take, InUse: inUse,
		Metrics: id.metrics, Log: p.Log, Registerer: p.Registry, Clock: p.Clock,
	})
	if err != nil {
		return err
	}
	p.Task("trust bundle", tlsconf.Identified(id, passed.Run))
	return nil
}

// Watch is what a process does with the bundles that it watches, besides verifying with them. All fields are
// optional.
type Watch struct {
	// Agents are reported to the ca.
	Agents trustwatch.Agents
	// Apply gets each bundle.
	Apply func(*trust.Verified, *cav1.SignedBundle)
}

// Watch adds the task that watches the ca's bundle.
func (id *Identity) Watch(ca *grpc.ClientConn, w Watch) error {
	p := id.process
	host, err := os.Hostname()
	if err != nil {
		host = id.metrics
	}
	client, err := trustwatch.NewClient(trustwatch.Config{
		CA: cav1.NewTrustServiceClient(ca), Subscriber: host + "/" + id.cfg.Identity.Path() + "/" + rand.Text()[:8], Identity: id,
		CAs: lists.Map(id.cfg.CAIDs, spiffeid.ID.String), TrustDomain: id.cfg.TrustDomain.Name(), Agents: w.Agents,
		Metrics: id.metrics, Log: p.Log, Registerer: p.Registry, Clock: p.Clock,
	})
	if err != nil {
		return err
	}
	p.Task("trust bundle", tlsconf.Identified(id, func(ctx context.Context) error {
		return client.Run(ctx, func(b *trust.Verified, signed *cav1.SignedBundle) {
			if w.Apply != nil {
				w.Apply(b, signed)
			}
			if packed, err := anypb.New(signed); err == nil {
				_ = id.roots.Take(ctx, packed) // it has logged and counted what it refuses
			}
		})
	}))
	return nil
}
