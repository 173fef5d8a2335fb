package app

import (
	"context"
	"crypto/tls"
	"errors"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/admission"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/quota"
)

// checkWebhookOnly refuses flags that would have no effect.
func (o Options) checkWebhookOnly(errs *service.FlagErrors) {
	errs.Required("webhook-address", o.WebhookAddress)
	for flag, given := range map[string]bool{
		"config-dir": len(o.ConfigDirs) > 0, "mesh-config-file": o.MeshConfigFile != "", "store-dir": o.StoreDir != "",
		"audit-log": o.AuditLog != "", "roles-file": o.RolesFile != "", "kubernetes": o.Kubernetes,
	} {
		if given {
			errs.Add(flag, errors.New("has no effect with --webhook-only; leave one of them out"))
		}
	}
}

// serveWebhook binds the port of the validating webhook, if there is one, and adds its task. root is the mesh's root
// namespace; quotas may be nil.
func (s *Server) serveWebhook(ctx context.Context, identity tlsconf.Source, root func() string, quotas *quota.Table) error {
	if err := s.watchWebhookConfiguration(identity); err != nil || s.cfg.WebhookAddress == "" {
		return err
	}
	if s.cfg.APIServers == nil {
		s.cfg.APIServers = &webhook.APIServers{}
	}
	if err := s.cfg.APIServers.Check(); err != nil {
		return process.WithExitCode(err, process.ExitUsage)
	}
	lis, err := s.Listen(ctx, "webhook-address", s.cfg.WebhookAddress)
	if err != nil {
		return err
	}
	handler := admission.NewHandler(admission.Config{APIServers: s.cfg.APIServers, Tenancy: s.tenancy(),
		Root: root, Quota: quotas, Log: s.Log, Registerer: s.Registry, Clock: s.Clock})
	// The API server shows no certificate by default. What it asks is no secret, and the answer changes nothing.
	of := s.cfg.APIServers.TLS(tlsconf.Server(identity, tls.NoClientCert))
	s.Task("webhook", ops.HTTP{Listener: lis, TLS: of, Handler: handler, Log: s.Log}.Serve)
	return nil
}

// watchWebhookConfiguration adds the task that watches over --webhook-configuration.
func (s *Server) watchWebhookConfiguration(identity tlsconf.Source) error {
	if s.cfg.WebhookConfiguration == "" {
		return nil
	}
	api, err := s.connectKubernetes("webhook-configuration")
	if err != nil {
		return err
	}
	keeper, err := admission.NewConfiguration(admission.ConfigurationConfig{
		Name: s.cfg.WebhookConfiguration, API: api, Identity: identity, Log: s.Log, Registerer: s.Registry, Clock: s.Clock,
	})
	if err != nil {
		return err
	}
	s.Task("webhook configuration", keeper.Run)
	if s.cfg.WebhookAddress == "" {
		return nil
	}
	callers, err := s.cfg.APIServers.Follow(api)
	if err != nil {
		return err
	}
	s.Task("addresses of API servers", callers)
	return nil
}

// openWebhookOnly adds what --webhook-only runs besides the identity. It knows no mesh configuration but the default.
func (s *Server) openWebhookOnly(ctx context.Context, identity tlsconf.Source) error {
	if err := s.ServeOps(ctx, service.Admin{ID: s.cfg.admin, Audience: contract.AdminAudience}); err != nil {
		return err
	}
	s.Ops.Ready("own-certificate", certificateReady(identity))
	return s.serveWebhook(ctx, identity, meshdefaults.MeshConfig().GetRootNamespace, nil)
}

// tenancy is that of --multi-tenant.
func (s *Server) tenancy() normalise.Tenancy {
	return normalise.Tenancy{Enabled: s.cfg.MultiTenant, Domain: s.cfg.DomainSuffix}
}
