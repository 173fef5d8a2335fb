package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/bootstrap"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/identity"
	"fairlead.dev/services/node-agent/internal/relay"
	"fairlead.dev/services/node-agent/internal/trustbundle"
)

// pushedRoots is what the xDS proxy subscribes to for the trust bundle, if the configuration asks for it.
func pushedRoots(c *config.Config, own *identity.Identity) []*relay.AgentResource {
	if !c.Secrets.PushedRoots {
		return nil
	}
	return []*relay.AgentResource{{TypeURL: contract.ProxyConfigType, Authority: bootstrap.XDSCluster, Take: own.Workload.TakeProxyConfig}}
}

// trustBundle is what the xDS proxy subscribes to for the ca's signed trust bundle.
type trustBundle struct {
	asks      bool
	authority string
	kind      identity.Kind
	roots     *trustbundle.Roots
	// users return when they use the roots of now.
	users []func(context.Context) error
	log   *slog.Logger
	once  sync.Once
}

func newTrustBundle(c *config.Config, own *identity.Identity, log *slog.Logger) *trustBundle {
	t := &trustBundle{asks: c.Secrets.TrustByXDS, authority: bootstrap.XDSCluster, kind: own.Kind, roots: own.Mesh, log: log}
	if c.NoEnvoy {
		t.authority = "" // the streams of gRPC programs
	}
	return t
}

// usedBy adds one who must use an adopted bundle before it is acknowledged. It must not be called once streams are
// served.
func (t *trustBundle) usedBy(inUse func(context.Context) error) { t.users = append(t.users, inUse) }

func (t *trustBundle) resource() []*relay.AgentResource {
	if !t.asks {
		return nil
	}
	return []*relay.AgentResource{{TypeURL: contract.SignedBundleType, Authority: t.authority, Adopt: t.adopt}}
}

// adopt takes a bundle, and returns when all who verify peers use it.
func (t *trustBundle) adopt(ctx context.Context, a *anypb.Any) error {
	if t.roots == nil {
		t.once.Do(func() {
			t.log.Info("the ca's trust bundle changes nothing here, because roots come with the workload's certificate", "source", string(t.kind))
		})
		return nil
	}
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
