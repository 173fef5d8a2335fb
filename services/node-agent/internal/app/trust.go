package app

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/trustbundle"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/bootstrap"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/identity"
	"fairlead.dev/services/node-agent/internal/relay"
)

// pushedRoots is what the xDS proxy subscribes to for the trust bundle, if the configuration asks for it.
func pushedRoots(c *config.Config, own *identity.Identity) []*relay.AgentResource {
	if !c.Secrets.PushedRoots {
		return nil
	}
	return []*relay.AgentResource{{TypeURL: contract.ProxyConfigType, Authority: bootstrap.XDSCluster, Take: own.Workload.TakeProxyConfig}}
}

// trustBundle is what the xDS proxy subscribes to for the ca's signed trust bundle: nothing where roots come with the
// workload's certificate, by files or another SDS server. An acknowledgement would say that the workload verifies with
// the bundle, and a rotation would go on without it.
type trustBundle struct {
	authority string
	roots     *trustbundle.Roots // nil if nothing uses a bundle
	// users return when they use the roots of now.
	users []func(context.Context) error
}

func newTrustBundle(c *config.Config, own *identity.Identity) *trustBundle {
	t := &trustBundle{authority: bootstrap.XDSCluster, roots: own.Mesh}
	if c.NoEnvoy {
		t.authority = "" // the streams of gRPC programs
	}
	return t
}

// usedBy adds one who must use an adopted bundle before it is acknowledged. It must not be called once streams are
// served.
func (t *trustBundle) usedBy(inUse func(context.Context) error) { t.users = append(t.users, inUse) }

func (t *trustBundle) resource() []*relay.AgentResource {
	if t.roots == nil {
		return nil
	}
	return []*relay.AgentResource{{TypeURL: contract.SignedBundleType, Authority: t.authority, Adopt: t.adopt}}
}

// adopt takes a bundle, and returns when all who verify peers use it.
func (t *trustBundle) adopt(ctx context.Context, a *anypb.Any) error {
	if err := t.roots.Take(ctx, a); err != nil {
		return err
	}
	for _, inUse := range t.users {
		if err := inUse(ctx); err != nil {
			return fmt.Errorf("trust bundle: %w", err)
		}
	}
	return nil
}
