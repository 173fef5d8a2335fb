package apply

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/wait"
)

// Fate is what happens to an object of an inventory that is not installed any more.
type Fate string

// The fates.
const (
	// Delete it.
	Delete Fate = "delete"
	// Keep it, and in the inventory: `uninstall --purge` deletes it.
	Keep Fate = "keep"
	// Release it: it is somebody else's, or is not there.
	Release Fate = "release"
)

// Verdict is the fate of one object.
type Verdict struct {
	inventory.Entry
	Fate Fate
	// Reason of Keep and Release; empty for an object that is not there.
	Reason string
	// Live is the object; nil if it is not there.
	Live *unstructured.Unstructured
	// made is true for what the ca has made.
	made bool
}

// judge decides about entries of an inventory. With purge, what Keep would keep is deleted too.
func judge(ctx context.Context, c *cluster.Client, entries []inventory.Entry, others inventory.Holders, purge bool) ([]Verdict, error) {
	out, failed := make([]Verdict, len(entries)), make([]error, len(entries))
	going := map[cluster.ID]bool{}
	// Definitions come last: objects of theirs that are deleted as well do not keep them.
	for _, definitions := range []bool{false, true} {
		var g errgroup.Group
		g.SetLimit(parallel)
		for i, e := range entries {
			if e.IsCRD() == definitions {
				g.Go(func() error {
					out[i], failed[i] = judgeOne(ctx, c, e, others, purge, going)
					return nil
				})
			}
		}
		_ = g.Wait() // the functions return nil
		for _, v := range out {
			if v.Fate == Delete {
				going[v.Key()] = true
			}
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return out, report(failed)
}

func judgeOne(ctx context.Context, c *cluster.Client, e inventory.Entry, others inventory.Holders, purge bool, going map[cluster.ID]bool) (Verdict, error) {
	v := Verdict{Entry: e, Fate: Release}
	live, err := c.Get(ctx, e.ID)
	if err != nil || live == nil {
		return v, err
	}
	v.Live = live
	if holder, held := others[e.Key()]; held {
		v.Reason = holder + " has it too"
		return v, nil
	}
	if e.Adopted {
		v.Reason = "it was there before the installation"
		return v, nil
	}
	if v.Reason = owner(live); v.Reason != "" {
		return v, nil
	}
	if !purge {
		if v.Reason, err = content(ctx, c, live, going); err != nil || v.Reason != "" {
			v.Fate = Keep
			return v, err
		}
	}
	v.Fate = Delete
	return v, nil
}

// owner says who has taken an object over since it was installed; empty if nobody has.
func owner(u *unstructured.Unstructured) string {
	if ref := metav1.GetControllerOf(u); ref != nil {
		return fmt.Sprintf("%s %s controls it", ref.Kind, ref.Name)
	}
	if release := u.GetAnnotations()["meta.helm.sh/release-name"]; release != "" {
		return "it is of the Helm release " + release
	}
	var managers []string
	for _, m := range u.GetManagedFields() {
		if !slices.Contains(managers, m.Manager) {
			managers = append(managers, m.Manager)
		}
		if m.Operation == metav1.ManagedFieldsOperationApply && m.Subresource == "" && m.Manager != cluster.Manager {
			return m.Manager + " applies it"
		}
	}
	if cluster.OwnedFields(u) == "" {
		return "it was made again by " + cmp.Or(strings.Join(managers, ", "), "another")
	}
	return ""
}

// content says what would be lost with an object: empty if nothing is but what is going anyway.
func content(ctx context.Context, c *cluster.Client, live *unstructured.Unstructured, going map[cluster.ID]bool) (string, error) {
	switch id := cluster.Of(live); {
	case id.IsNamespace():
		return "what else is in it would be lost", nil
	case id.Kind == "PersistentVolumeClaim" && id.Group == "":
		return "its data would be lost", nil
	case id.IsCRD():
		list, err := c.List(ctx, wait.Defines(live), metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		left := slices.DeleteFunc(list, func(u unstructured.Unstructured) bool { return going[cluster.Of(&u).Key()] })
		if len(left) > 0 {
			return fmt.Sprintf("objects of its kind would be lost, such as %s; there are %d", cluster.Of(&left[0]), len(left)), nil
		}
	}
	return "", nil
}
