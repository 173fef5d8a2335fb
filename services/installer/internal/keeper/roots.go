package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/webhook"
)

// rootKey is the entry of the ConfigMap, as workloads mount it.
const rootKey = "root-cert.pem"

// publisher keeps a ConfigMap with the mesh's roots in every namespace, from which workloads verify the mesh: in a
// cluster whose control plane is elsewhere, so that this needs no right here.
type publisher struct {
	name   string
	client *corev1client.CoreV1Client
	roots  tlsconf.Source
	clock  clock.Clock
	log    *slog.Logger

	progress   progress
	wake       chan struct{}
	namespaces cache.Store
	maps       cache.Store
	// told is the last problem in the log; the same one is not repeated.
	told string
}

// run keeps the ConfigMaps until ctx ends: after each change of a namespace, of a ConfigMap and of the roots, and from
// time to time.
func (p *publisher) run(ctx context.Context) error {
	p.wake = make(chan struct{}, 1)
	wake := func() { notify.Wake(p.wake) }
	follow := func(from cache.ListerWatcher, kind runtime.Object) (cache.Store, cache.Controller) {
		return cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: from, ObjectType: kind, Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { wake() }, UpdateFunc: func(any, any) { wake() }, DeleteFunc: func(any) { wake() },
		}})
	}
	rest := p.client.RESTClient()
	var controllers [2]cache.Controller
	p.namespaces, controllers[0] = follow(cache.NewListWatchFromClient(rest, "namespaces", metav1.NamespaceAll, fields.Everything()),
		&corev1.Namespace{})
	p.maps, controllers[1] = follow(cache.NewListWatchFromClient(rest, "configmaps", metav1.NamespaceAll,
		fields.OneTermEqualSelector(metav1.ObjectNameField, p.name)), &corev1.ConfigMap{})
	for _, c := range controllers {
		go c.RunWithContext(ctx)
	}
	for _, c := range controllers {
		if !cache.WaitForCacheSync(ctx.Done(), c.HasSynced) {
			return nil
		}
	}
	for {
		changed, wait := p.roots.Changed(), webhook.CheckInterval
		if err := p.keep(ctx); ctx.Err() == nil && !p.report(err) {
			wait = webhook.RetryInterval
		}
		if !p.sleep(ctx, changed, wait) {
			return nil
		}
	}
}

func (p *publisher) sleep(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	timer := p.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-p.wake:
	case <-timer.C():
	}
	return true
}

// report tells of a problem once, and whether there is none.
func (p *publisher) report(err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == p.told:
	case err != nil:
		p.log.Warn("the roots of the mesh are not in every namespace; trying again", "error", err)
	default:
		p.log.Info("the roots of the mesh are in every namespace again")
	}
	p.told = text
	return err == nil
}

// keep writes what is missing or differs. Namespaces that end take no objects.
func (p *publisher) keep(ctx context.Context) error {
	trust, err := p.roots.Current()
	if err != nil {
		return err
	}
	want := string(trust.RootsPEM)
	var errs []error
	for _, o := range p.namespaces.List() {
		ns, ok := o.(*corev1.Namespace)
		if !ok || ns.Status.Phase == corev1.NamespaceTerminating || ctx.Err() != nil {
			continue
		}
		if err := p.write(ctx, ns.Name, want); err != nil && len(errs) < 3 {
			errs = append(errs, fmt.Errorf("ConfigMap %s/%s: %w", ns.Name, p.name, err))
		}
	}
	if err := errors.Join(errs...); err != nil || ctx.Err() != nil {
		return err
	}
	p.progress.done(trust.RootsPEM)
	return nil
}

func (p *publisher) write(ctx context.Context, namespace, want string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	options := metav1.ObjectMeta{Namespace: namespace, Name: p.name, Labels: map[string]string{"app.kubernetes.io/part-of": "fairlead"}}
	o, found, _ := p.maps.GetByKey(namespace + "/" + p.name) // a map's error: never
	if !found {
		_, err := p.client.ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: options, Data: map[string]string{rootKey: want}},
			metav1.CreateOptions{FieldManager: manager})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
			return nil // the watch says so soon
		}
		return err
	}
	current, ok := o.(*corev1.ConfigMap)
	if !ok || current.Data[rootKey] == want {
		return nil
	}
	changed := current.DeepCopy()
	if changed.Data == nil {
		changed.Data = map[string]string{}
	}
	changed.Data[rootKey] = want
	_, err := p.client.ConfigMaps(namespace).Update(ctx, changed, metav1.UpdateOptions{FieldManager: manager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // as above
	}
	return err
}
