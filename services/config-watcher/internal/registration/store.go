package registration

import (
	"context"
	"errors"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/memory"
)

// StoreWriter writes into the store of the configuration API. Each replica of config-watcher has its own store, so that
// each writes for itself.
type StoreWriter struct{ Store *memory.Store }

// Create implements Writer.
func (w StoreWriter) Create(ctx context.Context, e Entry) error {
	tree, o, err := e.document()
	if err != nil {
		return err
	}
	_, err = w.Store.Write(ctx, []memory.Write{{Doc: &manifest.Document{Tree: tree}, Object: o, Verb: memory.Create}}, false)
	if errors.Is(err, memory.ErrExists) {
		return ErrOutdated
	}
	return err
}

// Annotate implements Writer.
func (w StoreWriter) Annotate(ctx context.Context, of *object.Object, set map[string]string, check func(map[string]string) bool) error {
	_, err := w.Store.Edit(ctx, of.Key, "", func(tree map[string]any) (map[string]any, error) {
		if !check(annotationsOf(tree)) {
			return nil, ErrOutdated
		}
		annotate(tree, set)
		return tree, nil
	})
	return outdated(err)
}

// Delete implements Writer.
func (w StoreWriter) Delete(ctx context.Context, of *object.Object, check func(map[string]string) bool) error {
	it, err := w.Store.Get(of.Key)
	if err != nil {
		return outdated(err)
	}
	if !check(it.Object().Annotations) {
		return ErrOutdated
	}
	return outdated(w.Store.Delete(ctx, of.Key, it.Version))
}

func outdated(err error) error {
	if errors.Is(err, memory.ErrNotFound) || errors.Is(err, memory.ErrStale) {
		return ErrOutdated
	}
	return err
}

func annotationsOf(tree map[string]any) map[string]string {
	meta, _ := tree["metadata"].(map[string]any)
	texts, _ := meta["annotations"].(map[string]any)
	out := map[string]string{}
	for k, v := range texts {
		out[k], _ = v.(string)
	}
	return out
}

// annotate sets the annotations of an object, and removes those whose new value is empty.
func annotate(tree map[string]any, set map[string]string) {
	meta, _ := tree["metadata"].(map[string]any)
	texts, _ := meta["annotations"].(map[string]any)
	if texts == nil {
		texts = map[string]any{}
		meta["annotations"] = texts
	}
	for k, v := range set {
		if v == "" {
			delete(texts, k)
		} else {
			texts[k] = v
		}
	}
}
