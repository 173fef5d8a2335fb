package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	registrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/proto/fairlead/contract"
)

// ConfigurationConfig says which ValidatingWebhookConfiguration is watched over. All but Clock are required.
type ConfigurationConfig struct {
	// Name of the object, the only one that is read: a role with resourceNames is enough.
	Name string
	API  *rest.Config
	// Identity gives the trust bundle that the API server is to verify the webhook's certificate with.
	Identity   tlsconf.Source
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// Configuration watches over the ValidatingWebhookConfiguration that leads API servers here: each of its webhooks has
// the mesh's trust bundle and, unless it only advises, failurePolicy Fail. It changes nothing: who may write a webhook
// configuration decides about the whole cluster, and this process faces everybody. fairlead-keeper writes.
type Configuration struct {
	cfg    ConfigurationConfig
	client *registrationclient.AdmissionregistrationV1Client
	keeper *webhook.Keeper
}

// NewConfiguration makes the client and registers the metrics. It does not dial.
func NewConfiguration(cfg ConfigurationConfig) (*Configuration, error) {
	client, err := registrationclient.NewForConfig(cfg.API)
	if err != nil {
		return nil, err
	}
	c := &Configuration{cfg: cfg, client: client}
	c.keeper = webhook.NewKeeper(webhook.KeeperConfig{
		Metrics: "fairlead_config_watcher", Name: cfg.Name, Identity: cfg.Identity, Keep: c.keep, Log: cfg.Log, Registerer: cfg.Registerer,
		Clock: cfg.Clock,
	})
	return c, nil
}

// Run watches over the object until ctx ends.
func (c *Configuration) Run(ctx context.Context) error {
	_, informer := c.keeper.Follow(cache.NewListWatchFromClient(c.client.RESTClient(), "validatingwebhookconfigurations", metav1.NamespaceAll,
		fields.OneTermEqualSelector(metav1.ObjectNameField, c.cfg.Name)), &registrationv1.ValidatingWebhookConfiguration{})
	go informer.RunWithContext(ctx)
	return c.keeper.Run(ctx)
}

// keep compares the object with what it should be.
func (c *Configuration) keep(ctx context.Context, trust *tlsconf.Material) error {
	found, err := c.client.ValidatingWebhookConfigurations().Get(ctx, c.cfg.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("no ValidatingWebhookConfiguration %s; apply it, or leave --webhook-configuration out", c.cfg.Name)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range found.Webhooks {
		if !bytes.Equal(w.ClientConfig.CABundle, trust.RootsPEM) {
			errs = append(errs, fmt.Errorf(
				"webhook %s of ValidatingWebhookConfiguration %s lacks the trust bundle; fairlead-keeper writes it: see its log", w.Name, c.cfg.Name))
		}
		if w.Name == contract.AdviceWebhook {
			continue
		}
		if w.FailurePolicy == nil || *w.FailurePolicy != registrationv1.Fail {
			errs = append(errs, fmt.Errorf(
				"webhook %s of ValidatingWebhookConfiguration %s has not failurePolicy Fail; fairlead-keeper writes it when the webhook answers: see "+
					"its log",
				w.Name, c.cfg.Name))
		}
	}
	return errors.Join(errs...)
}
