package injector

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/proto/fairlead/contract"
)

// Options are the flags of fairlead-injector.
type Options struct {
	service.Options

	WebhookAddress, WebhookConfiguration   string
	Kubeconfig, KubeContext                string
	Namespace, MeshConfigNamespace         string
	Revision                               string
	NativeSidecars                         bool
	SignerIdentity                         string
	APIServers                             *webhook.APIServers
	CAAddress, CAIdentity, Identity        string
	CATokenFile, RootCertFile, StateDir    string
	trustDomain                            spiffeid.TrustDomain
	own, ca, signer, admin                 spiffeid.ID
	configMap, meshConfigMap, revisionName string
}

// AddFlags registers the flags and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Options.AddFlags(flags, service.Help{"shutdown-grace": "has no effect: a review that runs has 3s after SIGTERM"})
	flags.StringVar(&o.WebhookAddress, "webhook-address", ":15017", "address of the webhook (TLS), which the API server calls at /inject")
	flags.StringVar(&o.WebhookConfiguration, "webhook-configuration", "",
		"MutatingWebhookConfiguration whose caBundle is compared with the trust bundle, which fairlead-keeper writes, and so are those of the "+
			"revision's tags (default: none)")
	o.APIServers = &webhook.APIServers{}
	o.APIServers.AddFlags(flags)
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "",
		"file that names the API server and the credentials for it (default: the service account of the Pod that this process runs in)")
	flags.StringVar(&o.KubeContext, "kube-context", "", "context of --kubeconfig (default: its current one)")
	flags.StringVar(&o.Namespace, "namespace", contract.SystemNamespace, "namespace of ConfigMap istio-sidecar-injector[-REVISION]")
	flags.StringVar(&o.MeshConfigNamespace, "mesh-config-namespace", "",
		"namespace of ConfigMap istio[-REVISION], the mesh's settings (default: the value of --namespace)")
	flags.StringVar(&o.Revision, "revision", "", "revision of the control plane (default: that without a name)")
	flags.BoolVar(&o.NativeSidecars, "native-sidecars", true,
		"whether sidecars are init containers that go on running, where a Pod's annotation does not say (default: the variable "+
			"ENABLE_NATIVE_SIDECARS, true)")
	flags.StringVar(&o.CAAddress, "ca-address", "", "address of the ca, or several divided by commas (required)")
	flags.StringVar(&o.CAIdentity, "ca-identity", "", "the ca's identity, namespace/service-account (default: ca in --namespace)")
	flags.StringVar(&o.Identity, "identity", "", "the own identity, namespace/service-account (default: injector in --namespace)")
	flags.StringVar(&o.CATokenFile, "ca-token-file", "",
		"file with the token that proves the own identity to the ca (audience istio-ca; required)")
	flags.StringVar(&o.RootCertFile, "root-cert-file", "", "file with the trusted roots, PEM; followed (required)")
	flags.StringVar(&o.SignerIdentity, "signer-identity", "",
		"the ca's identity, namespace/service-account, where an xds-server of another cluster answers for it at --ca-address as --ca-identity: "+
			"it signs the trust bundle that the xds-server passes on (default: none, the ca itself answers)")
	flags.StringVar(&o.StateDir, "state-dir", "",
		"directory (0700) that keeps the own certificate and the last good configuration across restarts; empty: none is kept")
}

// check reports everything that is wrong with the options at once, and completes them.
func (o *Options) check() error {
	var errs service.FlagErrors
	o.trustDomain = o.Check(&errs)
	errs.Required("webhook-address", o.WebhookAddress)
	if o.APIServers == nil {
		o.APIServers = &webhook.APIServers{}
	}
	errs = append(errs, o.APIServers.Check())
	errs.Required("namespace", o.Namespace)
	if o.KubeContext != "" && o.Kubeconfig == "" {
		errs.Add("kube-context", errors.New("needs --kubeconfig"))
	}
	errs.Required("ca-address", o.CAAddress)
	errs.Required("ca-token-file", o.CATokenFile)
	errs.Required("root-cert-file", o.RootCertFile)
	if o.MeshConfigNamespace == "" {
		o.MeshConfigNamespace = o.Namespace
	}
	if o.Revision == defaultRevision {
		errs.Add("revision", errors.New("the revision without a name is meant by leaving the flag out"))
	}
	if err := errs.Err(); err != nil {
		return err
	}
	o.revisionName = defaultRevision
	o.configMap, o.meshConfigMap = "istio-sidecar-injector", "istio"
	if o.Revision != "" {
		o.revisionName = o.Revision
		o.configMap += "-" + o.Revision
		o.meshConfigMap += "-" + o.Revision
	}
	for _, i := range []struct {
		id                  *spiffeid.ID
		flag, text, account string
	}{{&o.own, "identity", o.Identity, contract.InjectorAccount}, {&o.ca, "ca-identity", o.CAIdentity, contract.CAAccount},
		{&o.signer, "signer-identity", o.SignerIdentity, contract.CAAccount}, {&o.admin, "", "", contract.AdminAccount}} {
		namespace, account := o.Namespace, i.account
		if i.text != "" {
			var ok bool
			if namespace, account, ok = strings.Cut(i.text, "/"); !ok {
				return fmt.Errorf("--%s: %q is not namespace/service-account", i.flag, i.text)
			}
		}
		var err error
		if *i.id, err = auth.WorkloadID(o.trustDomain, namespace, account); err != nil {
			return fmt.Errorf("--%s: %w", i.flag, err)
		}
	}
	return nil
}

// defaultRevision is how labels call the revision without a name.
const defaultRevision = "default"
