package app

import (
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/service"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/credential"
	"fairlead.dev/services/node-agent/internal/statedir"
	"fairlead.dev/services/node-agent/internal/sts"
)

// withToken returns c, or a copy with the file of the token that a metadata server gives, and adds the task that keeps
// that file.
func withToken(c *config.Config, dir *statedir.Dir, p *service.Process) *config.Config {
	if c.CredentialFetcher != config.GoogleComputeEngine {
		return c
	}
	own := *c
	own.TokenFile = dir.Path(statedir.Token)
	p.Task("token of the metadata server", credential.Keeper{From: credential.NewGoogle(c.TrustDomain.Name()), Path: own.TokenFile, Log: p.Log,
		Clock: p.Clock}.Run)
	return &own
}

// tokenExchange opens the port of the token exchange, if the configuration asks for one, and adds its task.
func tokenExchange(c *config.Config, p *service.Process) error {
	if c.STS.Port == 0 {
		return nil
	}
	server, err := sts.New(sts.Config{
		Port: c.STS.Port, Log: p.Log, Clock: p.Clock, Registerer: p.Registry,
		Plugin: sts.NewGoogle(sts.GoogleConfig{
			TrustDomain: c.TrustDomain.Name(), Provider: c.STS.Provider, ProjectNumber: c.STS.ProjectNumber,
			Client: fetch.New(fetch.Config{}), Clock: p.Clock,
		}),
	})
	if err != nil {
		return err
	}
	p.Task("token exchange", server.Run)
	return nil
}
