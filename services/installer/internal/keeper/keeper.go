// Package keeper is the process fairlead-keeper: it writes the trust bundle of the mesh into the webhook configurations
// that it is told of by name (injection, validation), gives config-watcher its rights in single namespaces (package
// binder), and in a cluster without a ca writes the bundle into all namespaces (publisher). It is the only process of
// an installation that may do so, because whoever may, decides about all objects of the cluster; so it listens on no
// port, and reads nothing but these objects, what the rights depend on, and a file with the roots. Open wires it.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	registrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/version"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/services/installer/internal/keeper/binder"
)

const (
	// manager is the field manager of what is written.
	manager = "fairlead-keeper"
	// callTimeout bounds a call of the API server that is no watch.
	callTimeout = 20 * time.Second
	// Limits of what is asked of the API server: it is watches, and a patch when roots change.
	apiQPS   = 20
	apiBurst = 40
)

// Options are the flags of fairlead-keeper.
type Options struct {
	service.Options

	Kubeconfig, RootCertFile string
	// FirstRoots is "<namespace>/<name>" of a ConfigMap with the roots to begin with, in place of RootCertFile, in a
	// cluster whose ca is elsewhere. XDS is then where an xds-server answers for the ca and passes its bundle on, as
	// XDSIdentity; CAIdentity signs the bundle, and TokenFile proves Identity.
	FirstRoots, XDS, XDSIdentity, CAIdentity, Identity, TokenFile string
	// PublishRoots is the name of the ConfigMap in every namespace that gets the roots of RootCertFile; empty if
	// another process keeps it.
	PublishRoots string
	// Injection is the revision's MutatingWebhookConfiguration, Tags are those of its tags, Validation is the
	// ValidatingWebhookConfiguration. Empty ones are not kept.
	Injection, Validation string
	Tags                  []string
	// BindCredentials and BindRegistration are ClusterRoles that BindTo gets where they are needed; empty ones are not
	// bound. BindTo is "<namespace>/<name>" of a service account. IngressSelector are the labels of the gateways that
	// serve Ingresses.
	// BindSuffix ends the names of the RoleBindings, which begin with the role's.
	BindCredentials, BindRegistration, BindTo, BindSuffix string
	IngressSelector                                       map[string]string
	// BindGrace is how long rights stay after what needed them.
	BindGrace time.Duration
}

// AddFlags registers the flags and sets their defaults. There are none of ports.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "",
		"file that names the API server and the credentials for it (default: the service account of the Pod that this process runs in)")
	flags.StringVar(&o.RootCertFile, "root-cert-file", "",
		"file with the roots that webhooks' certificates are verified with, PEM; followed (required with --injection, --validation and "+
			"--publish-roots)")
	flags.StringVar(&o.FirstRoots, "first-roots", "",
		"ConfigMap NAMESPACE/NAME with the roots to begin with, in a cluster whose ca is elsewhere, in place of --root-cert-file; the bundle of "+
			"the ca is kept there, too (default: none)")
	flags.StringVar(&o.XDS, "xds-address", "", "where an xds-server passes the ca's trust bundle on (required with --first-roots)")
	flags.StringVar(&o.XDSIdentity, "xds-identity", "", "the xds-server's identity, namespace/service-account (required with --first-roots)")
	flags.StringVar(&o.CAIdentity, "ca-identity", "", "the ca's identity, which signs the bundle, namespace/service-account (required with "+
		"--first-roots)")
	flags.StringVar(&o.Identity, "identity", "", "the own identity, namespace/service-account (required with --first-roots)")
	flags.StringVar(&o.TokenFile, "ca-token-file", "",
		"file with the token that proves the own identity to the ca (audience istio-ca; required with --first-roots)")
	flags.StringVar(&o.TrustDomain, "trust-domain", "cluster.local", "trust domain of all identities")
	flags.StringVar(&o.PublishRoots, "publish-roots", "",
		"ConfigMap that gets these roots, in every namespace, in a cluster whose ca is elsewhere (default: none)")
	flags.StringVar(&o.Injection, "injection", "", "MutatingWebhookConfiguration in which caBundle is kept (default: none)")
	flags.StringSliceVar(&o.Tags, "tags", nil,
		"MutatingWebhookConfigurations of tags; of their webhooks those are kept that call the same Service as a webhook of --injection")
	flags.StringVar(&o.Validation, "validation", "",
		"ValidatingWebhookConfiguration in which caBundle and, once the webhook answers, failurePolicy Fail are kept (default: none)")
	flags.StringVar(&o.BindCredentials, "bind-credentials", "",
		"ClusterRole that --bind-to gets in the namespaces of gateways whose Gateways, DestinationRules or Ingresses name a Secret (default: "+
			"none)")
	flags.StringVar(&o.BindRegistration, "bind-registration", "",
		"ClusterRole that --bind-to gets in the namespaces with a WorkloadGroup (default: none)")
	flags.StringVar(&o.BindTo, "bind-to", "",
		"service account of config-watcher, NAMESPACE/NAME; required with --bind-credentials and --bind-registration")
	flags.StringVar(&o.BindSuffix, "bind-suffix", "", "end of the names of the RoleBindings, which begin with the role's")
	flags.DurationVar(&o.BindGrace, "bind-grace", time.Minute, "how long rights stay after the last object that needs them")
	flags.StringToStringVar(&o.IngressSelector, "ingress-selector", map[string]string{"istio": "ingressgateway"},
		"labels of the gateways that serve Ingresses")
}

func (o *Options) check() error {
	var errs service.FlagErrors
	hooks, bound := o.Injection != "" || o.Validation != "" || o.PublishRoots != "", o.BindCredentials != "" || o.BindRegistration != ""
	switch {
	case hooks && o.FirstRoots == "":
		errs.Required("root-cert-file", o.RootCertFile)
	case o.FirstRoots != "":
		if o.RootCertFile != "" {
			errs.Add("first-roots", errors.New("is in place of --root-cert-file"))
		}
		if namespace, name, found := strings.Cut(o.FirstRoots, "/"); !found || namespace == "" || name == "" {
			errs.Add("first-roots", fmt.Errorf("%q is not NAMESPACE/NAME of a ConfigMap", o.FirstRoots))
		}
		errs.Required("xds-address", o.XDS)
		errs.Required("ca-token-file", o.TokenFile)
	}
	if !hooks && !bound {
		errs.Add("injection", errors.New("is required without --validation, --publish-roots, --bind-credentials and --bind-registration"))
	}
	if namespace, name, found := strings.Cut(o.BindTo, "/"); bound && (!found || namespace == "" || name == "") {
		errs.Add("bind-to", fmt.Errorf("%q is not NAMESPACE/NAME of a service account", o.BindTo))
	} else if !bound && o.BindTo != "" {
		errs.Add("bind-to", errors.New("has no effect without --bind-credentials and --bind-registration"))
	}
	if o.Injection == "" && len(o.Tags) > 0 {
		errs.Add("tags", errors.New("has no effect without --injection"))
	}
	return errs.Err()
}

// Open wires everything. Run must follow.
func Open(_ context.Context, o *Options, deps service.Deps) (*service.Process, error) {
	if err := o.check(); err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	api, err := connect(o.Kubeconfig)
	if err != nil {
		return nil, process.WithExitCode(fmt.Errorf("--kubeconfig: %w", err), process.ExitUsage)
	}
	client, err := registrationclient.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	p := service.New(o.Options, deps)
	klog.SetSlogLogger(p.Log.With("component", "client-go"))

	if o.BindTo != "" {
		namespace, name, _ := strings.Cut(o.BindTo, "/")
		b, err := binder.New(binder.Config{
			API: api, Credentials: o.BindCredentials, Registration: o.BindRegistration,
			Account: types.NamespacedName{Namespace: namespace, Name: name},
			Suffix:  o.BindSuffix, Ingress: o.IngressSelector, Grace: o.BindGrace, Log: p.Log, Clock: p.Clock,
		})
		if err != nil {
			return nil, err
		}
		p.Task("binder", b.Run)
	}
	core, err := corev1client.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	var roots tlsconf.Source
	var elsewhere *elsewhere
	switch {
	case o.FirstRoots != "":
		if elsewhere, err = newElsewhere(p, o, core); err != nil {
			return nil, process.WithExitCode(err, process.ExitUsage)
		}
		roots = elsewhere.own.Roots()
	case o.RootCertFile != "":
		files := tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: o.RootCertFile, Clock: p.Clock, Log: p.Log})
		p.Task("roots", files.Run)
		roots = files
	default:
		return p, nil
	}
	var written []*progress
	if o.PublishRoots != "" {
		published := &publisher{name: o.PublishRoots, client: core, roots: roots, clock: clock.Or(p.Clock), log: p.Log}
		p.Task("roots in namespaces", published.run)
		written = append(written, &published.progress)
	}
	if o.Injection != "" {
		k := &injection{name: o.Injection, tags: o.Tags, client: client, log: p.Log}
		p.Task("injection", k.run(webhook.KeeperConfig{Name: o.Injection, Identity: roots, Log: p.Log, Clock: p.Clock}))
		written = append(written, &k.progress)
	}
	if o.Validation != "" {
		k := &validation{name: o.Validation, client: client, log: p.Log}
		p.Task("validation", k.run(webhook.KeeperConfig{Name: o.Validation, Identity: roots, Log: p.Log, Clock: p.Clock}))
	}
	if elsewhere != nil {
		return p, elsewhere.follow(roots, written)
	}
	return p, nil
}

// connect reads the settings of the connection to the API server.
func connect(kubeconfig string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) || errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w; name a kubeconfig outside of a Pod", err)
		}
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.UserAgent = apiQPS, apiBurst, manager+"/"+version.Version
	return config, nil
}
