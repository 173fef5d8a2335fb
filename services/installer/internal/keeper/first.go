package keeper

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/trustbundle"
	"fairlead.dev/pkg/webhook"
)

// bundleKey is the entry in which the keeper keeps the ca's bundle. Whoever may write it may write the roots beside it.
const bundleKey = "bundle.json"

// first are the roots that the owner of a cluster has written into a ConfigMap, and beside them the bundle of the ca
// that was adopted last: the roots to begin with may be retired when the keeper starts again. It is the
// trustbundle.First and trustbundle.Store of a keeper whose ca is elsewhere.
type first struct {
	notify.Notifier
	namespace, name string
	client          *corev1client.CoreV1Client
	clock           clock.Clock
	log             *slog.Logger
	wake            chan struct{}

	mu sync.Mutex
	// read is true once the API server has answered; object is nil if there is no ConfigMap.
	read   bool
	object *corev1.ConfigMap
	// current are the last good roots, err is why those of now are not.
	current *tlsconf.Material
	err     error
	// want is the bundle to keep, "" if there is none; kept is true once it has been written. Another keeper, of
	// another revision, may write its own then.
	want string
	kept bool
	// told is the last problem in the log; the same one is not repeated.
	told string
}

var (
	_ trustbundle.First = (*first)(nil)
	_ trustbundle.Store = (*first)(nil)
)

func newFirst(namespace, name string, client *corev1client.CoreV1Client, c clock.Clock, log *slog.Logger) *first {
	return &first{namespace: namespace, name: name, client: client, clock: clock.Or(c), log: log, wake: make(chan struct{}, 1),
		err: fmt.Errorf("ConfigMap %s/%s: %w", namespace, name, trustbundle.ErrNotReady)}
}

// Current implements tlsconf.Source.
func (f *first) Current() (*tlsconf.Material, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current == nil {
		return nil, f.err
	}
	return f.current, nil
}

// Load implements trustbundle.Store.
func (f *first) Load() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.read:
		return nil, f.err
	case f.object.Data[bundleKey] == "":
		return nil, fs.ErrNotExist
	}
	return []byte(f.object.Data[bundleKey]), nil
}

// Save implements trustbundle.Store: Run writes.
func (f *first) Save(text []byte) error {
	f.mu.Lock()
	f.want, f.kept = string(text), false
	f.mu.Unlock()
	notify.Wake(f.wake)
	return nil
}

// Run implements trustbundle.First.
func (f *first) Run(ctx context.Context) error {
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(f.client.RESTClient(), "configmaps", f.namespace,
			fields.OneTermEqualSelector(metav1.ObjectNameField, f.name)),
		ObjectType: &corev1.ConfigMap{}, Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { notify.Wake(f.wake) }, UpdateFunc: func(any, any) { notify.Wake(f.wake) },
			DeleteFunc: func(any) { notify.Wake(f.wake) },
		}})
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	clock.Rounds(ctx, f.clock, f.wake, func() time.Time {
		var object *corev1.ConfigMap
		if o, found, _ := store.GetByKey(f.namespace + "/" + f.name); found { // a map's error: never
			object, _ = o.(*corev1.ConfigMap)
		}
		f.take(object)
		wait := webhook.CheckInterval
		if err := f.keep(ctx); ctx.Err() == nil && !f.report(err) {
			wait = webhook.RetryInterval
		}
		return f.clock.Now().Add(wait)
	})
	return nil
}

// take reads the ConfigMap; nil if there is none.
func (f *first) take(o *corev1.ConfigMap) {
	var m *tlsconf.Material
	err := fmt.Errorf("there is no ConfigMap %s/%s with the roots of the mesh in entry %s; copy them from the cluster of the control plane",
		f.namespace, f.name, rootKey)
	if o != nil {
		if m, err = tlsconf.NewMaterial(nil, nil, []byte(o.Data[rootKey])); err != nil {
			err = fmt.Errorf("ConfigMap %s/%s, entry %s: %w", f.namespace, f.name, rootKey, err)
		}
	} else {
		o = &corev1.ConfigMap{}
	}
	f.mu.Lock()
	same := f.read && (m == nil || f.current != nil && string(f.current.RootsPEM) == string(m.RootsPEM))
	f.read, f.object, f.err = true, o, err
	if m != nil && !same {
		f.current = m
	}
	f.mu.Unlock()
	if !same {
		f.Notify()
	}
}

// keep writes the bundle that was adopted last, once, and again if there is none, but not without the ConfigMap.
func (f *first) keep(ctx context.Context) error {
	f.mu.Lock()
	want, err := f.want, f.err
	idle := f.object.Name == "" || want == "" || f.kept && f.object.Data[bundleKey] != ""
	f.mu.Unlock()
	if idle {
		return err
	}
	text, err := json.Marshal(map[string]any{"data": map[string]string{bundleKey: want}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := f.client.ConfigMaps(f.namespace).Patch(ctx, f.name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: manager})
	if err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w", f.namespace, f.name, err)
	}
	f.take(o)
	f.mu.Lock()
	f.kept = f.want == want
	f.mu.Unlock()
	f.Notify() // who waits for saved
	return nil
}

// report tells of a problem once, and whether there is none.
func (f *first) report(err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != f.told && err != nil {
		f.log.Warn("the roots of the mesh cannot be read or kept; trying again", "error", err)
	}
	f.told = text
	return err == nil
}

// saved returns once the bundle that was adopted last is in the ConfigMap.
func (f *first) saved(ctx context.Context) error {
	for {
		changed := f.Changed()
		f.mu.Lock()
		ok := f.want == "" || f.kept
		f.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
