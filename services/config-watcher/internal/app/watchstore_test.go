package app

import (
	"context"
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

func TestStoreWatch(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.apply(shop)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	watch, err := r.store().Watch(ctx, &configv1.ConfigStoreServiceWatchRequest{Kind: "VirtualService"})
	if err != nil {
		t.Fatal(err)
	}
	next := func() string {
		t.Helper()
		e, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimPrefix(e.Type.String(), "EVENT_TYPE_") + " " + e.GetObject().GetKey().GetName()
	}
	if a, b := next(), next(); a != "ADDED server" || b != "SYNCED " {
		t.Errorf("%s, %s", a, b)
	}
	r.apply(route(5))
	if got := next(); got != "MODIFIED server" {
		t.Error(got)
	}
	list, err := r.store().List(ctx, &configv1.ListRequest{Namespace: "apps"})
	if err != nil || len(list.Objects) != 3 || list.Objects[0].Key.Kind != "Pod" {
		t.Errorf("%v %v", list, err)
	}
	if _, err := r.store().Delete(ctx, &configv1.DeleteRequest{Key: list.Objects[2].Key}); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "DELETED server" {
		t.Error(got)
	}
}
