package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	registrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/webhook"
)

// injection keeps caBundle in the MutatingWebhookConfigurations that lead API servers to the injector: the revision's
// own, and those webhooks of its tags' that call the same server. Nothing else of them is changed. Several replicas may
// keep the same objects.
type injection struct {
	name   string
	tags   []string
	client *registrationclient.AdmissionregistrationV1Client
	log    *slog.Logger

	stores   []cache.Store
	progress progress
}

// run returns the task.
func (k *injection) run(cfg webhook.KeeperConfig) func(context.Context) error {
	cfg.Keep = k.keep
	keeper := webhook.NewKeeper(cfg)
	return func(ctx context.Context) error {
		for i, name := range append([]string{k.name}, k.tags...) {
			store, informer := keeper.Follow(cache.NewListWatchFromClient(k.client.RESTClient(), "mutatingwebhookconfigurations",
				metav1.NamespaceAll, fields.OneTermEqualSelector(metav1.ObjectNameField, name)), &registrationv1.MutatingWebhookConfiguration{})
			k.stores = append(k.stores, store)
			go informer.RunWithContext(ctx)
			if i == 0 {
				cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
			}
		}
		return keeper.Run(ctx)
	}
}

func (k *injection) find(i int, name string) *registrationv1.MutatingWebhookConfiguration {
	o, found, _ := k.stores[i].GetByKey(name) // a map's error: never
	if !found {
		return nil
	}
	return o.(*registrationv1.MutatingWebhookConfiguration)
}

func (k *injection) keep(ctx context.Context, trust *tlsconf.Material) error {
	own := k.find(0, k.name)
	if own == nil {
		return fmt.Errorf("no MutatingWebhookConfiguration %s: it comes with the injector; if that is installed, install again", k.name)
	}
	errs := []error{k.write(ctx, own, trust.RootsPEM, func(registrationv1.WebhookClientConfig) bool { return true })}
	for i, name := range k.tags {
		if tag := k.find(i+1, name); tag != nil {
			errs = append(errs, k.write(ctx, tag, trust.RootsPEM, func(c registrationv1.WebhookClientConfig) bool {
				return slices.ContainsFunc(own.Webhooks, func(w registrationv1.MutatingWebhook) bool { return webhook.SameServer(w.ClientConfig, c) })
			}))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	k.progress.done(trust.RootsPEM)
	return nil
}

// write patches those webhooks of an object that lead to the injector.
func (k *injection) write(ctx context.Context, hook *registrationv1.MutatingWebhookConfiguration, roots []byte,
	ours func(registrationv1.WebhookClientConfig) bool) error {
	var p patch
	for i, w := range hook.Webhooks {
		if ours(w.ClientConfig) {
			p.bundle(i, w.Name, w.ClientConfig, roots)
		}
	}
	written, err := p.send(ctx, func(ctx context.Context, text []byte) error {
		_, err := k.client.MutatingWebhookConfigurations().Patch(ctx, hook.Name, types.JSONPatchType, text,
			metav1.PatchOptions{FieldManager: manager})
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("MutatingWebhookConfiguration %s: %w", hook.Name, err)
	case written:
		k.log.Info("webhooks have the trust bundle", "name", hook.Name)
	}
	return nil
}
