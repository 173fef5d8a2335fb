package patch

import (
	"slices"

	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/lists"
)

// list describes how patches apply to a list of filters, routes or the like.
type list[T proto.Message] struct {
	// matches reports whether a patch's match admits an item.
	matches func(u *use, item T) bool
	// selects reports whether a patch's match names an item.
	selects func(u *use) bool
	// all is true if REPLACE replaces every matching item, not only the first.
	all bool
	// end returns the index at which ADD inserts; nil means after the last item.
	end func(items []T) int
}

func (l list[T]) edit(items []T, patches []*use) ([]T, error) {
	for _, u := range patches {
		at := -1
		switch u.Operation {
		case networking.EnvoyFilter_Patch_ADD:
			at = l.last(items)
		case networking.EnvoyFilter_Patch_INSERT_FIRST:
			if !l.selects(u) || l.find(items, u) >= 0 {
				at = 0
			}
		case networking.EnvoyFilter_Patch_INSERT_BEFORE:
			if at = 0; l.selects(u) {
				at = l.find(items, u)
			}
		case networking.EnvoyFilter_Patch_INSERT_AFTER:
			if !l.selects(u) {
				at = l.last(items)
			} else if i := l.find(items, u); i >= 0 {
				at = i + 1
			}
		case networking.EnvoyFilter_Patch_REPLACE:
			l.replace(items, u)
		case networking.EnvoyFilter_Patch_REMOVE:
			before := len(items)
			items = slices.DeleteFunc(items, func(item T) bool { return l.matches(u, item) })
			u.done = u.done || len(items) < before
		case networking.EnvoyFilter_Patch_MERGE, networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST:
			for _, item := range items {
				if !l.matches(u, item) {
					continue
				}
				if err := merge(u, item); err != nil {
					return nil, err
				}
			}
		}
		if at >= 0 {
			items = slices.Insert(items, at, proto.CloneOf(u.Value.(T)))
			u.done = true
		}
	}
	return items, nil
}

func (l list[T]) replace(items []T, u *use) {
	for i, item := range items {
		if !l.matches(u, item) {
			continue
		}
		items[i], u.done = proto.CloneOf(u.Value.(T)), true
		if !l.all {
			return
		}
	}
}

func (l list[T]) find(items []T, u *use) int {
	return slices.IndexFunc(items, func(item T) bool { return l.matches(u, item) })
}

func (l list[T]) last(items []T) int {
	if l.end == nil {
		return len(items)
	}
	return l.end(items)
}

// of returns the patches with this applyTo that keep accepts.
func of(patches []*use, applyTo networking.EnvoyFilter_ApplyTo, keep func(*use) bool) []*use {
	return lists.Filter(patches, func(u *use) bool { return u.Spec.GetApplyTo() == applyTo && keep(u) })
}
