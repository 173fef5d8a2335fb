package store

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/document"
)

// configAPI writes objects to config-watcher's own store.
type configAPI struct {
	objects configv1.ConfigStoreServiceClient
}

// write implements writer.
func (c configAPI) write(ctx context.Context, docs []document.Document, _ set) (
	revision uint64, read func(document.Document) bool, err error) {
	var texts []string
	for _, d := range docs {
		texts = append(texts, d.Text)
	}
	resp, err := c.objects.Apply(ctx,
		&configv1.ApplyRequest{Documents: []*configv1.Document{{Name: "apply", Content: []byte(strings.Join(texts, "\n---\n"))}}},
		grpc.WaitForReady(true))
	if err != nil {
		return 0, nil, explain(err)
	}
	known := map[string]bool{}
	for _, r := range resp.Results {
		known[document.Ref(document.KindName(r.Key.GetApiVersion(), r.Key.GetKind()), r.Key.GetNamespace(), r.Key.GetName())] = true
	}
	return resp.Revision, func(d document.Document) bool { return known[d.Ref()] }, nil
}

// remove implements writer.
func (c configAPI) remove(ctx context.Context, refs []string, _ set) error {
	return wait.Each(refs, func(name string) error {
		kind, namespace, object, err := document.ParseRef(name)
		if err != nil {
			return err
		}
		key := &configv1.ObjectKey{Kind: kind, Namespace: namespace, Name: object}
		if _, err = c.objects.Delete(ctx, &configv1.DeleteRequest{Key: key}, grpc.WaitForReady(true)); err != nil {
			return fmt.Errorf("delete %s: %w", name, explain(err))
		}
		return nil
	})
}
