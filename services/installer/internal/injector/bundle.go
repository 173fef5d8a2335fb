package injector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/proto/fairlead/contract"
)

const tagLabel = "istio.io/tag"

// bundleConfig says which webhooks are watched over. All but Clock are required.
type bundleConfig struct {
	API *rest.Config
	// Name of the revision's own MutatingWebhookConfiguration.
	Name string
	// Revision is the value of the label istio.io/rev of that and of its tags'.
	Revision string
	// Identity gives the trust bundle that the API server is to verify the webhook's certificate with.
	Identity   tlsconf.Source
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// bundle watches over caBundle in the MutatingWebhookConfigurations that lead API servers here: the revision's own, and
// those of the revision's tags whose clientConfig is the same. It changes nothing: who may write a webhook
// configuration decides about the whole cluster, and this process faces everybody's Pods. fairlead-keeper writes.
type bundle struct {
	cfg      bundleConfig
	keeper   *webhook.Keeper
	store    cache.Store
	informer cache.Controller
}

func newBundle(cfg bundleConfig) (*bundle, error) {
	client, err := registrationclient.NewForConfig(cfg.API)
	if err != nil {
		return nil, err
	}
	b := &bundle{cfg: cfg}
	b.keeper = webhook.NewKeeper(webhook.KeeperConfig{
		Metrics: metricsPrefix, Name: cfg.Name, Identity: cfg.Identity, Keep: b.keep, Log: cfg.Log, Registerer: cfg.Registerer, Clock: cfg.Clock,
	})
	b.store, b.informer = b.keeper.Follow(cache.NewFilteredListWatchFromClient(client.RESTClient(), "mutatingwebhookconfigurations",
		metav1.NamespaceAll, func(o *metav1.ListOptions) { o.LabelSelector = contract.RevisionLabel + "=" + cfg.Revision }),
		&registrationv1.MutatingWebhookConfiguration{})
	return b, nil
}

// Run watches over the objects until ctx ends.
func (b *bundle) Run(ctx context.Context) error {
	go b.informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), b.informer.HasSynced) {
		return nil
	}
	return b.keeper.Run(ctx)
}

// keep compares the objects with the bundle.
func (b *bundle) keep(_ context.Context, trust *tlsconf.Material) error {
	var own *registrationv1.MutatingWebhookConfiguration
	var tags []*registrationv1.MutatingWebhookConfiguration
	for _, o := range b.store.List() {
		switch hook := o.(*registrationv1.MutatingWebhookConfiguration); {
		case hook.Name == b.cfg.Name:
			own = hook
		case hook.Labels[tagLabel] != "":
			tags = append(tags, hook)
		}
	}
	if own == nil {
		return fmt.Errorf("no MutatingWebhookConfiguration %s with label %s=%s; install the injector again, or leave --webhook-configuration out",
			b.cfg.Name, contract.RevisionLabel, b.cfg.Revision)
	}
	var errs []error
	if lacks(own, trust.RootsPEM, func(registrationv1.WebhookClientConfig) bool { return true }) {
		errs = append(errs, fmt.Errorf("MutatingWebhookConfiguration %s lacks the trust bundle; fairlead-keeper writes it: see its log",
			own.Name))
	}
	for _, tag := range tags {
		if name := tag.Labels[tagLabel]; lacks(tag, trust.RootsPEM, func(c registrationv1.WebhookClientConfig) bool {
			return slices.ContainsFunc(own.Webhooks, func(w registrationv1.MutatingWebhook) bool { return webhook.SameServer(w.ClientConfig, c) })
		}) {
			errs = append(errs, fmt.Errorf(
				"MutatingWebhookConfiguration %s of tag %s lacks the trust bundle; list the tag in values.injector.tags, "+
					"by which fairlead-keeper keeps its bundle, or run `fairlead tag set %s --revision %s --overwrite`, which copies it", tag.Name, name,
				name, b.cfg.Revision))
		}
	}
	return errors.Join(errs...)
}

// lacks reports whether one of those webhooks of an object that lead here has another bundle.
func lacks(hook *registrationv1.MutatingWebhookConfiguration, roots []byte, ours func(registrationv1.WebhookClientConfig) bool) bool {
	return slices.ContainsFunc(hook.Webhooks, func(w registrationv1.MutatingWebhook) bool {
		return ours(w.ClientConfig) && !bytes.Equal(w.ClientConfig.CABundle, roots)
	})
}
