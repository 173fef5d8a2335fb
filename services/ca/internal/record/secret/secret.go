// Package secret keeps the ca's record in a Secret of Kubernetes, by which the replicas of a ca agree: the Secret's
// resource version decides who was first.
package secret

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/services/ca/internal/record"
)

// key of the Secret's data that has the record.
const key = "state.json"

// requestTimeout bounds one request.
const requestTimeout = 10 * time.Second

// Store is a record.Store.
type Store struct {
	api             kubernetes.Interface
	namespace, name string
	labels          map[string]string
}

var _ record.Store = (*Store)(nil)

// New makes the Store of a Secret, which Save makes, with these labels, if it is missing.
func New(api kubernetes.Interface, namespace, name string, labels map[string]string) *Store {
	return &Store{api: api, namespace: namespace, name: name, labels: labels}
}

// Load reads the Secret.
func (s *Store) Load(ctx context.Context) (record.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := s.api.CoreV1().Secrets(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return record.Record{}, record.ErrNone
	}
	if err != nil {
		return record.Record{}, s.wrap("read", err)
	}
	return s.of(found)
}

func (s *Store) of(found *corev1.Secret) (record.Record, error) {
	data := found.Data[key]
	if len(data) == 0 {
		return record.Record{}, fmt.Errorf("Secret %s/%s has no %s, in which the ca keeps its state; restore it with `fairlead ca restore`, "+
			"or delete the Secret if it was never the ca's", s.namespace, s.name, key)
	}
	return record.Record{Data: data, Version: found.ResourceVersion}, nil
}

func (s *Store) wrap(what string, err error) error {
	return fmt.Errorf("%s the ca's record in Secret %s/%s: %w", what, s.namespace, s.name, err)
}

// Save creates or updates the Secret. Other entries of its data stay.
func (s *Store) Save(ctx context.Context, data []byte, version string) (record.Record, error) {
	if len(data) > record.MaxBytes {
		return record.Record{}, fmt.Errorf("the ca's record has %d bytes, more than %d", len(data), record.MaxBytes)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	secrets := s.api.CoreV1().Secrets(s.namespace)
	var saved *corev1.Secret
	var err error
	if version == "" {
		saved, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: s.namespace, Labels: s.labels}, Data: map[string][]byte{key: data},
		}, metav1.CreateOptions{})
	} else {
		var found *corev1.Secret
		if found, err = secrets.Get(ctx, s.name, metav1.GetOptions{}); err == nil {
			if found.ResourceVersion != version {
				return record.Record{}, record.ErrChanged
			}
			found = found.DeepCopy()
			found.Data[key] = data
			saved, err = secrets.Update(ctx, found, metav1.UpdateOptions{})
		}
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return record.Record{}, record.ErrChanged
	case err != nil:
		return record.Record{}, s.wrap("write", err)
	}
	return s.of(saved)
}

// Follow watches the Secret.
func (s *Store) Follow(ctx context.Context, f func(record.Record), problem func(error)) error {
	informer := coreinformers.NewFilteredSecretInformer(s.api, s.namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", s.name).String()
	})
	last := ""
	changed := func(v any) {
		found, ok := v.(*corev1.Secret)
		if !ok {
			return
		}
		r, err := s.of(found)
		problem(err)
		if err == nil && string(r.Data) != last {
			last = string(r.Data)
			f(r)
		}
	}
	gone := func(any) {
		problem(fmt.Errorf("Secret %s/%s, in which the ca keeps its state, was deleted; the ca writes it again at its next step",
			s.namespace, s.name))
	}
	err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { problem(s.wrap("watch", err)) })
	_, added := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, v any) { changed(v) },
		DeleteFunc: gone})
	if err := errors.Join(err, added); err != nil {
		return err
	}
	informer.RunWithContext(ctx)
	return nil
}

// Shared is true.
func (s *Store) Shared() bool { return true }
