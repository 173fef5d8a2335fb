package keeper

import (
	"context"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/meshidentity"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
)

// metrics begins the names of the metrics, which nobody reads: the keeper has no port.
const metrics = "fairlead_keeper"

// elsewhere is what a keeper has in a cluster whose ca is elsewhere: a certificate, and the ca's bundle by way of an
// xds-server. The certificate makes it one of those for whom a rotation of the root waits, so that no workload here
// starts with roots that verify nobody. The bundle is signed by the ca: the xds-server can hold it back, and nothing
// else.
type elsewhere struct {
	own   *meshidentity.Identity
	first *first
}

func newElsewhere(p *service.Process, o *Options, core *corev1client.CoreV1Client) (*elsewhere, error) {
	domain, err := spiffeid.TrustDomainFromString(o.TrustDomain)
	if err != nil {
		return nil, fmt.Errorf("--trust-domain: %w", err)
	}
	var ids [3]spiffeid.ID
	for i, flag := range []struct{ name, text string }{
		{"xds-identity", o.XDSIdentity}, {"ca-identity", o.CAIdentity}, {"identity", o.Identity},
	} {
		namespace, account, found := strings.Cut(flag.text, "/")
		if !found {
			return nil, fmt.Errorf("--%s: %q is not namespace/service-account", flag.name, flag.text)
		}
		if ids[i], err = auth.WorkloadID(domain, namespace, account); err != nil {
			return nil, fmt.Errorf("--%s: %w", flag.name, err)
		}
	}
	namespace, name, _ := strings.Cut(o.FirstRoots, "/")
	e := &elsewhere{first: newFirst(namespace, name, core, p.Clock, p.Log)}
	e.own, err = meshidentity.NewElsewhere(p, svid.Config{
		CAAddress: o.XDS, CAIDs: ids[:1], TokenFile: o.TokenFile, Identity: ids[2], TTL: contract.CertificateTTL,
	}, metrics, meshidentity.Elsewhere{Signers: ids[1:2], First: e.first, Store: e.first})
	return e, err
}

// follow adds the task that follows the bundle. It is acknowledged once it is kept, and written everywhere.
func (e *elsewhere) follow(roots tlsconf.Source, written []*progress) error {
	xds, err := e.own.DialCA("xds-address")
	if err != nil {
		return err
	}
	return e.own.Follow(xds, func(ctx context.Context) error {
		for _, p := range written {
			if err := p.wait(ctx, roots); err != nil {
				return err
			}
		}
		return e.first.saved(ctx)
	})
}
