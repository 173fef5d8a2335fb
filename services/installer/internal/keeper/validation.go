package keeper

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	registrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/proto/fairlead/contract"
)

// probeTimeout bounds one call of a webhook.
const probeTimeout = 5 * time.Second

// validation keeps a ValidatingWebhookConfiguration that somebody else has made: in each of its webhooks the caBundle
// follows the mesh's roots, and failurePolicy becomes Fail as soon as the webhook has answered at the address that API
// servers call. Until then an API server would refuse every change for a webhook that does not run yet. A failurePolicy
// Fail stays. The webhook that only advises has Ignore. Several replicas may keep one object.
type validation struct {
	name   string
	client *registrationclient.AdmissionregistrationV1Client
	log    *slog.Logger

	store cache.Store
}

// run returns the task.
func (k *validation) run(cfg webhook.KeeperConfig) func(context.Context) error {
	cfg.Keep = k.keep
	keeper := webhook.NewKeeper(cfg)
	return func(ctx context.Context) error {
		var informer cache.Controller
		k.store, informer = keeper.Follow(cache.NewListWatchFromClient(k.client.RESTClient(), "validatingwebhookconfigurations",
			metav1.NamespaceAll, fields.OneTermEqualSelector(metav1.ObjectNameField, k.name)), &registrationv1.ValidatingWebhookConfiguration{})
		go informer.RunWithContext(ctx)
		cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
		return keeper.Run(ctx)
	}
}

func (k *validation) keep(ctx context.Context, trust *tlsconf.Material) error {
	found, ok, _ := k.store.GetByKey(k.name) // a map's error: never
	if !ok {
		return fmt.Errorf("no ValidatingWebhookConfiguration %s; install config-watcher again", k.name)
	}
	var p patch
	var silent []error
	for i, w := range found.(*registrationv1.ValidatingWebhookConfiguration).Webhooks {
		p.bundle(i, w.Name, w.ClientConfig, trust.RootsPEM)
		if w.Name == contract.AdviceWebhook {
			if w.FailurePolicy == nil || *w.FailurePolicy != registrationv1.Ignore {
				p.add(i, w.Name, "failurePolicy", registrationv1.Ignore)
			}
			continue
		}
		if w.FailurePolicy != nil && *w.FailurePolicy == registrationv1.Fail {
			continue
		}
		if err := probe(ctx, w.ClientConfig, trust.Roots); err != nil {
			silent = append(silent, fmt.Errorf("webhook %s does not answer, so its failurePolicy stays as it is: %w", w.Name, err))
			continue
		}
		p.add(i, w.Name, "failurePolicy", registrationv1.Fail)
	}
	written, err := p.send(ctx, func(ctx context.Context, text []byte) error {
		_, err := k.client.ValidatingWebhookConfigurations().Patch(ctx, k.name, types.JSONPatchType, text,
			metav1.PatchOptions{FieldManager: manager})
		return err
	})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("ValidatingWebhookConfiguration %s: %w", k.name, err)
	case written && err == nil:
		k.log.Info("webhook configuration written", "name", k.name)
	}
	return errors.Join(silent...)
}

// probe asks a webhook whether it serves, at the address and with the roots that the API server uses.
func probe(ctx context.Context, at registrationv1.WebhookClientConfig, roots *x509.CertPool) error {
	target, err := address(at)
	if err != nil {
		return err
	}
	// A webhook that sends its caller elsewhere does not serve.
	elsewhere := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client := http.Client{Timeout: probeTimeout, CheckRedirect: elsewhere, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only the status counts
	_, _ = io.CopyN(io.Discard, response.Body, 1<<10)
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", target, response.Status)
	}
	return nil
}

// address is the URL of a webhook's ReadyPath.
func address(at registrationv1.WebhookClientConfig) (*url.URL, error) {
	switch {
	case at.URL != nil:
		target, err := url.Parse(*at.URL)
		if err != nil {
			return nil, fmt.Errorf("clientConfig.url: %w", err)
		}
		target.Path, target.RawQuery = webhook.ReadyPath, ""
		return target, nil
	case at.Service != nil:
		port := int32(443)
		if at.Service.Port != nil {
			port = *at.Service.Port
		}
		host := at.Service.Name + "." + at.Service.Namespace + ".svc"
		return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port))), Path: webhook.ReadyPath}, nil
	default:
		return nil, errors.New("clientConfig names neither a service nor a url")
	}
}
