// Package secret keeps the ca's record in a Secret of Kubernetes, by which the replicas of a ca agree: each write names
// the version of the Secret that it has read, so that of two replicas that write at once the second is told.
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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/record"
)

// Key is the entry of the Secret that has the record.
const Key = "state.json"

const (
	// requestTimeout bounds one request.
	requestTimeout = 10 * time.Second
	// period is the time between two readings of Follow without an event; a watch may be silent, or not allowed.
	period = 5 * time.Second
	// watchAgain is the time before another watch, after one that ended.
	watchAgain = time.Second
	// watchTimeout is how long the API server keeps one watch.
	watchTimeout = 5 * time.Minute
	// maxConflicts bounds the attempts of one Save while others change the Secret's metadata or other entries.
	maxConflicts = 10
	// maxAnswer bounds an error of the API server that is repeated, in bytes.
	maxAnswer = 512
)

// Config of a Store. API, Namespace and Name are required.
type Config struct {
	API             kubernetes.Interface
	Namespace, Name string
	Clock           clock.Clock
}

// Store is a record.Store.
type Store struct {
	cfg Config
	// turn holds a token while nobody asks the API server: its answers are then in the order of the questions, which
	// Record.Order needs.
	turn  chan struct{}
	order uint64
}

var _ record.Store = (*Store)(nil)

// New makes the Store of a Secret, which Save makes if it is missing. It asks the API server nothing yet.
func New(cfg Config) *Store {
	cfg.Clock = clock.Or(cfg.Clock)
	s := &Store{cfg: cfg, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// begin waits for the turn, and bounds the time of what follows.
func (s *Store) begin(ctx context.Context) (_ context.Context, end func(), _ error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	select {
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	case <-s.turn:
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	return ctx, func() { cancel(); s.turn <- struct{}{} }, nil
}

// Load implements record.Store.
func (s *Store) Load(ctx context.Context) (record.Record, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return record.Record{}, err
	}
	defer end()
	found, err := s.get(ctx)
	if apierrors.IsNotFound(err) {
		return record.Record{}, record.ErrNone
	}
	if err != nil {
		return record.Record{}, s.explain("read", err)
	}
	return s.of(found)
}

func (s *Store) get(ctx context.Context) (*corev1.Secret, error) {
	// Without a resource version the answer is the newest that was written, and not a cached one.
	return s.cfg.API.CoreV1().Secrets(s.cfg.Namespace).Get(ctx, s.cfg.Name, metav1.GetOptions{})
}

// of returns the record of a Secret. A Secret that has lost it is not taken for a ca that starts for the first time.
func (s *Store) of(found *corev1.Secret) (record.Record, error) {
	data := found.Data[Key]
	if len(data) == 0 {
		return record.Record{}, fmt.Errorf("%s has no entry %s, in which the ca keeps its state; restore it from a backup, or delete the "+
			"Secret if it was never the ca's", s.where(), Key)
	}
	s.order++
	return record.Record{Data: data, Version: record.Version(data), Order: s.order}, nil
}

func (s *Store) where() string { return fmt.Sprintf("Secret %s/%s", s.cfg.Namespace, s.cfg.Name) }

// Save implements record.Store. Other entries of the Secret stay.
func (s *Store) Save(ctx context.Context, data []byte, version string) (record.Record, error) {
	if err := record.CheckSize(data); err != nil {
		return record.Record{}, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return record.Record{}, err
	}
	defer end()
	for attempt := 1; ; attempt++ {
		saved, err := s.save(ctx, data, version)
		switch {
		case err == nil:
			return s.of(saved)
		case errors.Is(err, errAgain) && attempt < maxConflicts:
		case errors.Is(err, errAgain):
			return record.Record{}, fmt.Errorf("write %s, which has the ca's record: somebody has changed it %d times meanwhile", s.where(),
				attempt)
		default:
			return record.Record{}, err
		}
	}
}

// errAgain says that somebody has changed the Secret between reading and writing, which may not concern the record.
var errAgain = errors.New("read the Secret again")

func (s *Store) save(ctx context.Context, data []byte, version string) (*corev1.Secret, error) {
	client := s.cfg.API.CoreV1().Secrets(s.cfg.Namespace)
	found, err := s.get(ctx)
	switch {
	case apierrors.IsNotFound(err) && version != "":
		return nil, record.ErrChanged
	case apierrors.IsNotFound(err):
		made, err := client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: s.cfg.Name, Namespace: s.cfg.Namespace,
				Labels: map[string]string{"istio.io/config": "true", contract.ManagedByLabel: contract.ManagedByCA}},
			Type: corev1.SecretTypeOpaque, Data: map[string][]byte{Key: data},
		}, metav1.CreateOptions{FieldManager: contract.ManagedByCA})
		if apierrors.IsAlreadyExists(err) {
			return nil, errAgain
		}
		return made, s.explain("make", err)
	case err != nil:
		return nil, s.explain("read", err)
	}
	if now, err := s.of(found); err != nil {
		return nil, err
	} else if now.Version != version {
		return nil, record.ErrChanged
	}
	found = found.DeepCopy()
	found.Data[Key] = data
	updated, err := client.Update(ctx, found, metav1.UpdateOptions{FieldManager: contract.ManagedByCA})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil, errAgain
	}
	return updated, s.explain("write", err)
}

// explain names object and remedy of an error of the API server.
func (s *Store) explain(verb string, err error) error {
	if err == nil {
		return nil
	}
	remedy := ""
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		remedy = "; let the ca's service account get, create, update and watch this Secret"
	case apierrors.IsNotFound(err):
		remedy = "; make the namespace, or correct it"
	case apierrors.IsInvalid(err):
		remedy = "; if the Secret is immutable, make it again with the same entries"
	}
	return &apiError{text: fmt.Sprintf("%s %s, which has the ca's record: %.*s%s", verb, s.where(), maxAnswer, err.Error(), remedy), err: err}
}

// apiError is an error of the API server whose text is bounded.
type apiError struct {
	text string
	err  error
}

func (e *apiError) Error() string { return e.text }
func (e *apiError) Unwrap() error { return e.err }

// Follow implements record.Store. The events of a watch only say when to read: what a watch shows may be older than
// what Save has written.
func (s *Store) Follow(ctx context.Context, f func(record.Record), problem func(error)) error {
	reader := &record.Reader{Store: s, Where: s.where(), F: f}
	for ctx.Err() == nil {
		// The watch is opened before the first reading, so that no change falls between them.
		events, stop, refused := s.watch(ctx)
		reader.Problem = func(err error) {
			if err == nil {
				err = refused
			}
			problem(err)
		}
		s.readOn(ctx, reader, events)
		stop()
		select {
		case <-ctx.Done():
		case <-s.cfg.Clock.After(watchAgain):
		}
	}
	return nil
}

// watch opens a watch. Without one, err says why, and events is a channel that nothing comes from.
func (s *Store) watch(ctx context.Context) (events <-chan watch.Event, stop func(), err error) {
	seconds := int64(watchTimeout.Seconds())
	w, err := s.cfg.API.CoreV1().Secrets(s.cfg.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, s.cfg.Name).String(), TimeoutSeconds: &seconds,
	})
	if err != nil {
		return nil, func() {}, s.explain("watch", err)
	}
	return w.ResultChan(), w.Stop, nil
}

// readOn reads at once, after events, and every period, until the watch ends. Without a watch it reads once a period.
func (s *Store) readOn(ctx context.Context, reader *record.Reader, events <-chan watch.Event) {
	for {
		reader.Read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-s.cfg.Clock.After(period):
			if events == nil {
				return
			}
		case _, open := <-events:
			for waiting := open; waiting; { // several events are one reading
				select {
				case _, open = <-events:
					waiting = open
				default:
					waiting = false
				}
			}
			if !open {
				return
			}
		}
	}
}
