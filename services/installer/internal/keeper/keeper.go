// Package keeper is the process fairlead-keeper: it writes the trust bundle of the mesh into the webhook configurations
// that it is told of by name (injection, validation). It is the only process of an installation that may change them,
// because whoever may, decides about all objects of the cluster; so it listens on no port, and reads nothing but these
// objects and a file with the roots. Open wires it.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	registrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/version"
	"fairlead.dev/pkg/webhook"
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
	// Injection is the revision's MutatingWebhookConfiguration, Tags are those of its tags, Validation is the
	// ValidatingWebhookConfiguration. Empty ones are not kept.
	Injection, Validation string
	Tags                  []string
}

// AddFlags registers the flags and sets their defaults. There are none of ports.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "file that names the API server and the credentials for it (default: the service account of the Pod that this process runs in)")
	flags.StringVar(&o.RootCertFile, "root-cert-file", "", "file with the roots that webhooks' certificates are verified with, PEM; followed (required)")
	flags.StringVar(&o.Injection, "injection", "", "MutatingWebhookConfiguration in which caBundle is kept (default: none)")
	flags.StringSliceVar(&o.Tags, "tags", nil, "MutatingWebhookConfigurations of tags; caBundle is kept in those of their webhooks that call what one of --injection calls")
	flags.StringVar(&o.Validation, "validation", "", "ValidatingWebhookConfiguration in which caBundle and, once the webhook answers, failurePolicy Fail are kept (default: none)")
}

func (o *Options) check() error {
	var errs service.FlagErrors
	errs.Required("root-cert-file", o.RootCertFile)
	if o.Injection == "" && o.Validation == "" {
		errs.Add("injection", errors.New("is required without --validation"))
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

	roots := tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: o.RootCertFile, Clock: p.Clock, Log: p.Log})
	p.Task("roots", roots.Run)
	if o.Injection != "" {
		k := &injection{name: o.Injection, tags: o.Tags, client: client.MutatingWebhookConfigurations(), log: p.Log}
		p.Task("injection", k.run(webhook.KeeperConfig{Name: o.Injection, Identity: roots, Log: p.Log, Clock: p.Clock}))
	}
	if o.Validation != "" {
		k := &validation{name: o.Validation, client: client.ValidatingWebhookConfigurations(), log: p.Log}
		p.Task("validation", k.run(webhook.KeeperConfig{Name: o.Validation, Identity: roots, Log: p.Log, Clock: p.Clock}))
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
