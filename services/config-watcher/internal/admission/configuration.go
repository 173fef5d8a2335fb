package admission

import (
	"bytes"
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

	"github.com/prometheus/client_golang/prometheus"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	registrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/webhook"
)

// probeTimeout bounds one call of a webhook to itself.
const probeTimeout = 5 * time.Second

// ConfigurationConfig says which ValidatingWebhookConfiguration is kept, and how. All but Clock are required.
type ConfigurationConfig struct {
	// Name of the object, the only one that is read or written: a role with resourceNames is enough.
	Name string
	API  *rest.Config
	// Identity gives the trust bundle that the API server is to verify the webhook's certificate with.
	Identity   tlsconf.Source
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// Configuration keeps a ValidatingWebhookConfiguration that somebody else has made: in each of its webhooks the
// caBundle follows the mesh's trust bundle, and failurePolicy becomes Fail as soon as the webhook has answered at the
// address that the API server calls. Until then an API server would refuse every change for a webhook that does not run
// yet. Several replicas may keep one object.
type Configuration struct {
	cfg    ConfigurationConfig
	client registrationclient.ValidatingWebhookConfigurationInterface
	keeper *webhook.Keeper
}

// NewConfiguration makes the client and registers the metrics. It does not dial.
func NewConfiguration(cfg ConfigurationConfig) (*Configuration, error) {
	client, err := registrationclient.NewForConfig(cfg.API)
	if err != nil {
		return nil, err
	}
	c := &Configuration{cfg: cfg, client: client.ValidatingWebhookConfigurations()}
	c.keeper = webhook.NewKeeper(webhook.KeeperConfig{
		Metrics: "fairlead_config_watcher", Name: cfg.Name, Identity: cfg.Identity, Keep: c.keep, Log: cfg.Log, Registerer: cfg.Registerer, Clock: cfg.Clock,
	})
	return c, nil
}

// Run keeps the object until ctx ends.
func (c *Configuration) Run(ctx context.Context) error {
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, c.cfg.Name).String()
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = one
				return c.client.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = one
				return c.client.Watch(ctx, o)
			},
		},
		ObjectType: &registrationv1.ValidatingWebhookConfiguration{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { c.keeper.Wake() }, UpdateFunc: func(any, any) { c.keeper.Wake() }, DeleteFunc: func(any) { c.keeper.Wake() },
		},
	})
	go informer.RunWithContext(ctx)
	return c.keeper.Run(ctx)
}

// keep compares the object with what it should be, and writes it if they differ. A failurePolicy Fail stays: it was set
// by an earlier call, or by the user.
func (c *Configuration) keep(ctx context.Context, trust *tlsconf.Material) error {
	found, err := c.client.Get(ctx, c.cfg.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("no ValidatingWebhookConfiguration %s; apply it, or leave --webhook-configuration out", c.cfg.Name)
	}
	if err != nil {
		return err
	}
	want, changed := found.DeepCopy(), false
	var silent []error
	for i := range want.Webhooks {
		w := &want.Webhooks[i]
		if !bytes.Equal(w.ClientConfig.CABundle, trust.RootsPEM) {
			w.ClientConfig.CABundle, changed = trust.RootsPEM, true
		}
		if w.FailurePolicy != nil && *w.FailurePolicy == registrationv1.Fail {
			continue
		}
		if err := probe(ctx, w.ClientConfig, trust.Roots); err != nil {
			silent = append(silent, fmt.Errorf("webhook %s does not answer, so its failurePolicy stays as it is: %w", w.Name, err))
			continue
		}
		fail := registrationv1.Fail
		w.FailurePolicy, changed = &fail, true
	}
	if changed {
		if _, err := c.client.Update(ctx, want, metav1.UpdateOptions{FieldManager: "fairlead-config-watcher"}); err != nil && !apierrors.IsConflict(err) {
			return err
		} else if err != nil {
			c.keeper.Wake() // somebody else was faster: read again
			return errors.Join(silent...)
		}
		c.cfg.Log.Info("webhook configuration written", "name", c.cfg.Name)
	}
	return errors.Join(silent...)
}

// probe asks a webhook whether it serves, at the address and with the roots that the API server uses.
func probe(ctx context.Context, at registrationv1.WebhookClientConfig, roots *x509.CertPool) error {
	target, err := address(at)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: probeTimeout, Transport: &http.Transport{
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
