package kubernetes

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// requests are the two calls of one resource to the API server.
type requests struct {
	list  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// listWatch is the cache.ListerWatcher of one watcher. It makes an entry of each object before client-go collects them,
// so that no more than a page of whole objects is in memory, and waits while the API server is away.
type listWatch struct {
	source   *Source
	watcher  *watcher
	requests requests
}

// List implements cache.ListerWatcher.
func (l *listWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), o)
}

// Watch implements cache.ListerWatcher.
func (l *listWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), o)
}

// ListWithContext implements cache.ListerWatcherWithContext. A reflector asks for version "0" first, which the API
// server answers from its cache with all objects at once; "" gives pages.
func (l *listWatch) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.ResourceVersion == "0" || l.watcher.mustList() {
		o.ResourceVersion = ""
	}
	if err := l.prepare(ctx, &o); err != nil {
		return nil, err
	}
	page, err := l.requests.list(ctx, o)
	if l.source.asked(ctx, l.watcher, false, err); err != nil {
		return nil, err
	}
	from, err := meta.ListAccessor(page)
	if err != nil {
		return nil, err
	}
	out := &internalversion.List{ListMeta: metav1.ListMeta{
		ResourceVersion: from.GetResourceVersion(), Continue: from.GetContinue(), RemainingItemCount: from.GetRemainingItemCount(),
	}}
	err = meta.EachListItem(page, func(o runtime.Object) error {
		e, err := l.watcher.kind.convert(o)
		if err == nil {
			out.Items = append(out.Items, e)
		}
		return err
	})
	return out, err
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (l *listWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if err := l.prepare(ctx, &o); err != nil {
		return nil, err
	}
	o.Watch = true
	streamsList := o.SendInitialEvents != nil && *o.SendInitialEvents
	switch mustList := l.watcher.mustList(); {
	case mustList && streamsList:
		o.ResourceVersion = ""
	case mustList:
		return nil, errAgain
	}
	w, err := l.requests.watch(ctx, o)
	if o.SendInitialEvents != nil && apierrors.IsInvalid(err) {
		return nil, err // the API server does not stream lists: the reflector asks for pages
	}
	if l.source.asked(ctx, l.watcher, true, err); err != nil {
		return nil, err
	}
	c := &converted{from: w, source: l.source, kind: l.watcher.kind, out: make(chan watch.Event), stop: make(chan struct{}),
		expired: make(chan struct{})}
	l.source.watching(l.watcher, c)
	if !streamsList && l.watcher.mustList() {
		c.expire() // it was asked for meanwhile
	}
	go func() {
		defer l.source.watched(l.watcher, c)
		c.run()
	}()
	return c, nil
}

func (l *listWatch) prepare(ctx context.Context, o *metav1.ListOptions) error {
	if name := l.watcher.name.Name; name != "" {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
	return l.source.gate.wait(ctx)
}

// converted is a watch whose objects are entries.
type converted struct {
	from   watch.Interface
	source *Source
	kind   *kind
	out    chan watch.Event
	stop   chan struct{}
	once   sync.Once
	// expired is closed to make the reflector list again.
	expired chan struct{}
	expires sync.Once
}

// expire ends the watch as an API server does that has forgotten its resource version.
func (c *converted) expire() { c.expires.Do(func() { close(c.expired) }) }

// ResultChan implements watch.Interface.
func (c *converted) ResultChan() <-chan watch.Event { return c.out }

// Stop implements watch.Interface.
func (c *converted) Stop() {
	c.once.Do(func() {
		close(c.stop)
		c.from.Stop()
	})
}

// run converts events until the watch ends.
func (c *converted) run() {
	defer close(c.out)
	defer c.from.Stop()
	for {
		e, open := watch.Event{}, true
		select {
		case e, open = <-c.from.ResultChan():
		case <-c.expired:
			e = watch.Event{Type: watch.Error, Object: new(errAgain.Status())}
		}
		switch {
		case !open:
			return
		case e.Type != watch.Error:
			e.Object = c.convert(e)
		}
		select {
		case c.out <- e:
		case <-c.stop:
			return
		}
	}
}

func (c *converted) convert(e watch.Event) runtime.Object {
	m, ok := e.Object.(metav1.Object)
	if !ok {
		return &metav1.Status{Status: metav1.StatusFailure, Code: 500, Message: fmt.Sprintf("event with %T", e.Object)}
	}
	if e.Type == watch.Bookmark {
		return bookmark(m)
	}
	if u, generic := e.Object.(*unstructured.Unstructured); generic && e.Type == watch.Modified {
		if same := c.source.unchanged(c.kind, u); same != nil {
			return same
		}
	}
	out, err := c.kind.convert(e.Object)
	if err != nil {
		return &metav1.Status{Status: metav1.StatusFailure, Code: 500, Message: err.Error()}
	}
	return out
}
