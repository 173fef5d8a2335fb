package webhook

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
)

// A Keeper compares its configuration every CheckInterval without an event, and RetryInterval after a failure.
const (
	CheckInterval = time.Minute
	RetryInterval = 2 * time.Second
)

// KeeperConfig says what a Keeper keeps or watches over. All but Clock and Registerer are required.
type KeeperConfig struct {
	// Metrics is how the names of the metrics begin: "fairlead_config_watcher". They are registered with Registerer, if
	// that is set.
	Metrics string
	// Name of the webhook configuration, for the log.
	Name string
	// Identity gives the trust bundle that API servers are to verify the webhook's certificate with.
	Identity tlsconf.Source
	// Keep compares the objects with what they should be, and writes those that differ, or says that they do. Run alone
	// calls it, one call at a time. Its error says what is wrong and what to do about it.
	Keep       func(ctx context.Context, bundle *tlsconf.Material) error
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// Keeper keeps the objects by which API servers find a webhook and trust its certificate: it calls Keep whenever the
// identity has changed, after Wake, every CheckInterval, and RetryInterval after a failure.
type Keeper struct {
	cfg      KeeperConfig
	wake     chan struct{}
	current  prometheus.Gauge
	failures prometheus.Counter
	// told is the last problem in the log; the same one is not repeated.
	told string
}

// NewKeeper registers the metrics.
func NewKeeper(cfg KeeperConfig) *Keeper {
	cfg.Clock = clock.Or(cfg.Clock)
	f := promauto.With(cfg.Registerer)
	return &Keeper{
		cfg: cfg, wake: make(chan struct{}, 1),
		current: f.NewGauge(prometheus.GaugeOpts{
			Name: cfg.Metrics + "_webhook_configuration_current",
			Help: "1 while the webhook configuration has the trust bundle, and whatever else API servers need to call this webhook.",
		}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: cfg.Metrics + "_webhook_configuration_failures_total", Help: "Attempts to keep the webhook configuration that have failed.",
		}),
	}
}

// Wake makes Run call Keep, after the call that runs now if there is one. Who follows the objects calls it when one has
// changed. It never blocks.
func (k *Keeper) Wake() { notify.Wake(k.wake) }

// Follow returns a store of webhook configurations, and the informer that fills it and wakes the Keeper when one has
// changed. The caller runs the informer. kind is an empty object.
func (k *Keeper) Follow(from cache.ListerWatcher, kind runtime.Object) (cache.Store, cache.Controller) {
	return cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: from, ObjectType: kind, Handler: cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { k.Wake() }, UpdateFunc: func(any, any) { k.Wake() }, DeleteFunc: func(any) { k.Wake() },
	}})
}

// SameServer compares what two webhooks call, but not how API servers verify it.
func SameServer(a, b registrationv1.WebhookClientConfig) bool {
	a.CABundle, b.CABundle = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

// Run keeps the objects until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		changed := k.cfg.Identity.Changed()
		wait := CheckInterval
		if err := k.keep(ctx); ctx.Err() == nil {
			k.report(err)
			if err != nil {
				wait = RetryInterval
			}
		}
		if !k.sleep(ctx, changed, wait) {
			return nil
		}
	}
}

// sleep waits for an event, or until d has passed; false if ctx ends.
func (k *Keeper) sleep(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	timer := k.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-k.wake:
	case <-timer.C():
	}
	return true
}

func (k *Keeper) keep(ctx context.Context) error {
	bundle, err := k.cfg.Identity.Current()
	if err != nil {
		return err
	}
	return k.cfg.Keep(ctx, bundle)
}

// report tells of a problem once, and of its end.
func (k *Keeper) report(err error) {
	if err == nil {
		if k.told != "" {
			k.cfg.Log.Info("the webhook configuration is kept again", "name", k.cfg.Name)
		}
		k.told = ""
		k.current.Set(1)
		return
	}
	k.current.Set(0)
	k.failures.Inc()
	if text := err.Error(); text != k.told {
		k.cfg.Log.Warn("the webhook configuration cannot be kept", "name", k.cfg.Name, "error", err)
		k.told = text
	}
}
