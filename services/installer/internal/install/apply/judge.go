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
)

// Fate is what happens to an object of an inventory that is not installed any more.
type Fate string

// The fates.
const (
	// Delete it.
	Delete Fate = "delete"
	// Keep it, and its line in the inventory: a later `uninstall --purge` judges it again, and --with-contents deletes
	// it.
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

// RemovalOptions say what an uninstall deletes.
type RemovalOptions struct {
	// Purge deletes what another uninstall keeps: data of PersistentVolumeClaims, webhooks of tags, and the definitions
	// and namespaces that nothing is in but what goes anyway.
	Purge bool
	// Contents deletes, with Purge, definitions and namespaces with what others have in them.
	Contents bool
}

// judge decides about entries of an inventory.
func judge(ctx context.Context, c *cluster.Client, entries []inventory.Entry, others inventory.Holders, o RemovalOptions) ([]Verdict,
	error) {
	j := &judgement{RemovalOptions: o, client: c, others: others, going: map[cluster.ID]bool{}}
	out, failed := make([]Verdict, len(entries)), make([]error, len(entries))
	// Definitions come after their objects, and namespaces last: what goes anyway does not keep them.
	for _, which := range []func(inventory.Entry) bool{
		func(e inventory.Entry) bool { return !e.IsCRD() && !e.IsNamespace() },
		func(e inventory.Entry) bool { return e.IsCRD() },
		func(e inventory.Entry) bool { return e.IsNamespace() },
	} {
		var g errgroup.Group
		g.SetLimit(parallel)
		for i, e := range entries {
			if which(e) {
				g.Go(func() error {
					out[i], failed[i] = j.one(ctx, e)
					return nil
				})
			}
		}
		_ = g.Wait() // the functions return nil
		for _, v := range out {
			if v.Fate == Delete {
				j.going[v.Key()] = true
			}
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return out, report(failed)
}

// judgement is what a verdict depends on.
type judgement struct {
	RemovalOptions
	client *cluster.Client
	others inventory.Holders
	// going are the objects that are deleted, by what is decided so far.
	going map[cluster.ID]bool
}

func (j *judgement) one(ctx context.Context, e inventory.Entry) (Verdict, error) {
	v := Verdict{Entry: e, Fate: Release}
	live, err := j.client.Get(ctx, e.ID)
	if err != nil || live == nil {
		return v, err
	}
	v.Live = live
	if holder, held := j.others[e.Key()]; held {
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
	l, err := j.content(ctx, live)
	if err != nil {
		return v, err
	}
	deletes := j.Purge && (j.Contents || !l.others)
	if v.Fate, v.Reason = Delete, l.text; l.text != "" && !deletes {
		v.Fate = Keep
		if j.Purge {
			v.Reason += "; --with-contents deletes it nevertheless"
		}
	}
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
