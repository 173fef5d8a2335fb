package authn

import (
	"context"
	"slices"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
)

// InDomain authenticates like next, and takes a caller of one of the aliases for the workload of the same path in the
// own trust domain: the mesh has had the names before. So bans, accounts and every rule about callers mean both.
func InDomain(next auth.Authenticator, own spiffeid.TrustDomain, aliases []spiffeid.TrustDomain) auth.Authenticator {
	if len(aliases) == 0 {
		return next
	}
	return inDomain{next: next, own: own, aliases: slices.Clone(aliases)}
}

type inDomain struct {
	next    auth.Authenticator
	own     spiffeid.TrustDomain
	aliases []spiffeid.TrustDomain
}

func (d inDomain) Authenticate(ctx context.Context) (auth.Peer, error) {
	who, err := d.next.Authenticate(ctx)
	if err != nil || !slices.Contains(d.aliases, who.ID.TrustDomain()) {
		return who, err
	}
	who.ID, err = spiffeid.FromPath(d.own, who.ID.Path())
	if err != nil {
		return auth.Peer{}, err
	}
	return who, nil
}
