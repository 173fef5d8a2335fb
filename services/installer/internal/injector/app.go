// Package injector is the process fairlead-injector: a mutating webhook by which Kubernetes' API server has a Pod
// completed before it stores it. Settings follows what decides (ConfigMaps, namespaces, ProxyConfigs), reviewer answers
// with package inject, and bundle watches over the caBundle by which API servers verify the webhook. Open wires them.
package injector

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"fairlead.dev/pkg/meshidentity"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/version"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/proto/fairlead/contract"
)

// Limits of what is asked of the API server: it is watches.
const (
	apiQPS   = 20
	apiBurst = 40
)

// nativeVariable is Istio's name of --native-sidecars.
const nativeVariable = "ENABLE_NATIVE_SIDECARS"

// Open wires everything and binds the ports. Run must follow.
func Open(ctx context.Context, o *Options, deps service.Deps) (*service.Process, error) {
	return open(ctx, o, deps, nil)
}

// open is Open with a certificate of a test in place of the ca's.
func open(ctx context.Context, o *Options, deps service.Deps, identity tlsconf.Source) (_ *service.Process, err error) {
	if err := o.check(); err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	if text := os.Getenv(nativeVariable); text != "" && o.NativeSidecars {
		if o.NativeSidecars, err = strconv.ParseBool(text); err != nil {
			return nil, process.WithExitCode(fmt.Errorf("variable %s: %q is neither true nor false", nativeVariable, text), process.ExitUsage)
		}
	}
	p := service.New(o.Options, deps)
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	api, err := connect(o.Kubeconfig, o.KubeContext)
	if err != nil {
		return nil, process.WithExitCode(fmt.Errorf("--kubeconfig: %w", err), process.ExitUsage)
	}
	klog.SetSlogLogger(p.Log.With("component", "client-go"))

	// The own certificate.
	if identity == nil {
		cache := ""
		if o.StateDir != "" {
			cache = filepath.Join(o.StateDir, "svid")
		}
		cfg := svid.Config{
			CAAddress: o.CAAddress, CAIDs: []spiffeid.ID{o.ca}, TokenFile: o.CATokenFile, RootFile: o.RootCertFile, Identity: o.own,
			TTL: contract.CertificateTTL, CacheDir: cache,
		}
		own, err := certified(p, cfg, o)
		if err != nil {
			return nil, err
		}
		identity = own
	}
	// What decides about Pods.
	settings, err := newSettings(settingsConfig{
		API: api, Namespace: o.Namespace, ConfigMap: o.configMap, MeshNamespace: o.MeshConfigNamespace, MeshConfigMap: o.meshConfigMap,
		Revision: o.Revision, StateDir: o.StateDir, Log: p.Log, Registerer: p.Registry,
	})
	if err != nil {
		return nil, err
	}
	p.Task("settings", settings.Run)
	// The webhook. The API server shows no certificate by default. Whoever asks learns what a Pod would become.
	reviews := newReviewer(reviewerConfig{Settings: settings, NativeSidecars: o.NativeSidecars, LocalCA: o.CAAddress, Log: p.Log,
		Registerer: p.Registry})
	lis, err := p.Listen(ctx, "webhook-address", o.WebhookAddress)
	if err != nil {
		return nil, err
	}
	handler := webhook.NewHandler(webhook.Config{
		APIServers: o.APIServers, Memory: reviewMemory, ValueBytes: valueBytes, MaxValues: maxValues,
		Metrics: metricsPrefix, Serves: serves, Path: Path, Review: reviews.review, Reasons: []string{reasonConfiguration}, Log: p.Log,
		Registerer: p.Registry, Clock: p.Clock,
	})
	p.Task("webhook", ops.HTTP{Listener: lis, TLS: o.APIServers.TLS(tlsconf.Server(identity, tls.NoClientCert)), Handler: handler,
		Log: p.Log}.Serve)
	callers, err := o.APIServers.Follow(api)
	if err != nil {
		return nil, err
	}
	p.Task("addresses of API servers", callers)
	if o.WebhookConfiguration != "" {
		bundle, err := newBundle(bundleConfig{
			API: api, Name: o.WebhookConfiguration, Revision: o.revisionName, Identity: identity, Log: p.Log, Registerer: p.Registry, Clock: p.Clock,
		})
		if err != nil {
			return nil, err
		}
		p.Task("webhook configuration", bundle.Run)
	}
	if err := p.ServeOps(ctx, service.Admin{ID: o.admin, Audience: contract.AdminAudience}); err != nil {
		return nil, err
	}
	p.Ops.Ready("own-certificate", func() error {
		m, err := identity.Current()
		if err == nil && m.Certificate == nil {
			err = tlsconf.ErrNoCertificate
		}
		return err
	})
	p.Ops.Ready("configuration", settings.Ready)
	p.Ops.Debug("/debug/injection", "state of the configuration: which ConfigMaps it is from, and why one that is newer is not in force",
		ops.JSON(settings.page))
	return p, nil
}

// certified makes the own certificate, and follows the ca's trust bundle: of the ca, or by way of an xds-server.
func certified(p *service.Process, cfg svid.Config, o *Options) (*meshidentity.Identity, error) {
	var e meshidentity.Elsewhere
	if o.SignerIdentity != "" {
		e.Signers = []spiffeid.ID{o.signer}
	}
	own, err := meshidentity.NewElsewhere(p, cfg, metricsPrefix, e)
	if err != nil {
		return nil, err
	}
	conn, err := own.DialCA("ca-address")
	if err != nil {
		return nil, err
	}
	if o.SignerIdentity != "" {
		return own, own.Follow(conn, nil)
	}
	return own, own.Watch(conn, meshidentity.Watch{})
}

// connect reads the settings of the connection to the API server.
func connect(kubeconfig, context string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
			&clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	}
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.UserAgent = apiQPS, apiBurst, "fairlead-injector/"+version.Version
	return config, nil
}
