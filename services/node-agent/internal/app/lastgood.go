package app

import (
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/services/node-agent/internal/bootstrap"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/identity"
	"fairlead.dev/services/node-agent/internal/lastgood"
	"fairlead.dev/services/node-agent/internal/node"
	"fairlead.dev/services/node-agent/internal/relay"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// newLastGood makes what keeps Envoy's configuration for the next start, and adds the task that writes it. It is nil,
// and says why, where the next agent could not open the file.
func newLastGood(c *config.Config, dir *statedir.Dir, own *identity.Identity, p *service.Process) (*relay.LastGood, error) {
	switch {
	case c.NoEnvoy || c.LastGood.MaxAge == 0:
		return nil, nil //nolint:nilnil // none is no error
	case own.Kind != identity.Files && !c.KeySurvives():
		p.Log.Info("configuration is not kept for the next start, because the workload's key is in memory only; --cache keeps both")
		return nil, nil //nolint:nilnil // none is no error
	}
	id, err := c.Identity()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	keeper := lastgood.New(lastgood.Config{
		Path:       dir.Path(statedir.LastGood),
		Source:     own.Source,
		Identity:   id.String(),
		Node:       node.ID(c),
		MaxAge:     c.LastGood.MaxAge,
		Log:        p.Log,
		Registerer: p.Registry,
	})
	p.Task("last configuration", keeper.Run)
	return &relay.LastGood{Keeper: keeper, Authority: bootstrap.XDSCluster, After: c.LastGood.After}, nil
}
