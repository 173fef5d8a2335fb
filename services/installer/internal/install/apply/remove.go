package apply

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/wait"
)

// stageRemoval names the deletion of an uninstall in Progress.
const stageRemoval = "uninstall"

// deletion deletes objects.
type deletion struct {
	client *cluster.Client
	Options
	until context.Context
	stage string
	done  int
	total int
}

// run deletes in the reverse order of applying, and waits: objects, then definitions, then namespaces.
func (d *deletion) run(ctx context.Context, all []Verdict) error {
	d.total = len(all)
	for _, tier := range tiers(all) {
		if err := d.tier(ctx, tier); err != nil {
			return err
		}
	}
	return nil
}

// tiers divides what is deleted: each tier waits for the one before. Objects of a definition go before it, what is in a
// namespace before that. What the ca has made goes when the ca has lost the right to make it again.
func tiers(all []Verdict) [3][]Verdict {
	var out [3][]Verdict
	for _, v := range slices.Backward(all) {
		switch {
		case v.IsNamespace():
			out[2] = append(out[2], v)
		case v.IsCRD(), v.made:
			out[1] = append(out[1], v)
		default:
			out[0] = append(out[0], v)
		}
	}
	return out
}

// tier deletes objects, and waits until they are gone.
func (d *deletion) tier(ctx context.Context, tier []Verdict) error {
	var ids []cluster.ID
	for _, v := range tier {
		d.Progress.Step(d.stage, d.done, d.total, v.String())
		if err := d.client.Delete(ctx, v.ID, v.Live.GetUID()); err != nil {
			return err
		}
		d.done++
		ids = append(ids, v.ID)
	}
	if !d.Wait || len(ids) == 0 {
		return nil
	}
	return wait.Gone(d.until, d.client, ids, func(text string) { d.Progress.Step(d.stage, d.done, d.total, text) })
}

// Removal is what an uninstall would do.
type Removal struct {
	// Verdicts of all objects, in the order in which they were applied.
	Verdicts []Verdict
	// Records are the inventories of what is uninstalled.
	Records []*inventory.Record
	// rest are the objects of the only record that stay, of a partial removal.
	rest []inventory.Entry
}

// NewRemoval judges the objects of records, which are among all. It changes nothing. judgement.one (judge.go) decides
// about what the records name; tagsOf and madeByCA find what else goes.
func NewRemoval(ctx context.Context, c *cluster.Client, records, all []*inventory.Record, o RemovalOptions) (*Removal, error) {
	r := &Removal{Records: records}
	var rest []*inventory.Record
	for _, other := range all {
		if !slices.Contains(records, other) {
			rest = append(rest, other)
		}
	}
	var entries []inventory.Entry
	for _, rec := range records {
		entries = append(entries, inventory.Difference(rec.Objects, entries)...)
	}
	var err error
	if r.Verdicts, err = judge(ctx, c, entries, inventory.Others(rest, nil), o); err != nil {
		return r, err
	}
	tags, err := tagsOf(ctx, c, r.Verdicts, records, o.Purge)
	if err != nil {
		return r, err
	}
	if o.Purge && len(rest) == 0 {
		made, err := madeByCA(ctx, c)
		if err != nil {
			return r, err
		}
		tags = append(made, tags...)
	}
	r.Verdicts = append(r.Verdicts, tags...)
	return r, nil
}

// Labels of the webhooks of tags and revisions.
const (
	tagLabel = "istio.io/tag"
)

// tagsOf judges the webhooks of tags that lead to what is deleted, which no inventory has, and with purge the tags'
// Services.
func tagsOf(ctx context.Context, c *cluster.Client, verdicts []Verdict, records []*inventory.Record, purge bool) (out []Verdict,
	err error) {
	for _, kind := range []string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"} {
		list, err := c.List(ctx, cluster.ID{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind},
			metav1.ListOptions{LabelSelector: tagLabel})
		if err != nil {
			return nil, err
		}
		for i := range list {
			revision := list[i].GetLabels()[contract.RevisionLabel]
			if slices.ContainsFunc(records, func(r *inventory.Record) bool { return r.Revision == revision }) && leadsToGone(&list[i], verdicts) {
				out = append(out, tagVerdict(&list[i], purge))
			}
		}
	}
	if !purge {
		return out, nil
	}
	services, err := c.List(ctx, cluster.ID{Version: "v1", Kind: "Service"}, metav1.ListOptions{LabelSelector: tagLabel})
	for i := range services {
		if slices.ContainsFunc(out, func(v Verdict) bool {
			return v.Live.GetLabels()[tagLabel] == services[i].GetLabels()[tagLabel]
		}) {
			out = append(out, tagVerdict(&services[i], purge))
		}
	}
	return out, err
}

// tagVerdict is the fate of an object of a tag whose revision goes: nobody answers its webhooks any more, so that no
// Pod is made that asks for the tag. A purge deletes them; otherwise who uses the tag is to say where it leads from now
// on.
func tagVerdict(hook *unstructured.Unstructured, purge bool) Verdict {
	v := Verdict{Entry: inventory.Entry{ID: cluster.Of(hook), Component: "tag"}, Fate: Delete, Live: hook}
	if name := hook.GetLabels()[tagLabel]; !purge {
		v.Fate = Keep
		v.Reason = fmt.Sprintf("the tag %s leads to the revision, and nobody answers it afterwards: no Pod that asks for it can be made until "+
			"`fairlead tag set %s --revision REVISION --overwrite` or `fairlead tag remove %s`",
			name, name, name)
	}
	return v
}

// leadsToGone reports whether a webhook calls a Service that is deleted, or is gone already, or a URL that a webhook
// calls which is deleted. Another mesh may have a revision of the same name, with tags of its own.
func leadsToGone(hook *unstructured.Unstructured, verdicts []Verdict) bool {
	return slices.ContainsFunc(servers(hook), func(s server) bool {
		return slices.ContainsFunc(verdicts, func(v Verdict) bool {
			switch {
			case v.Fate != Delete && v.Live != nil:
				return false // it stays
			case v.Kind == "Service":
				return s.url == "" && v.Group == "" && v.Namespace == s.namespace && v.Name == s.name
			}
			return s.url != "" && v.Kind == hook.GetKind() && v.Live != nil && slices.Contains(servers(v.Live), s)
		})
	})
}

// server is what a webhook calls.
type server struct{ namespace, name, url string }

func servers(hook *unstructured.Unstructured) (list []server) {
	webhooks, _, _ := unstructured.NestedSlice(hook.Object, "webhooks")
	for _, w := range webhooks {
		tree, _ := w.(map[string]any)
		text := func(fields ...string) string {
			value, _, _ := unstructured.NestedString(tree, append([]string{"clientConfig"}, fields...)...)
			return value
		}
		list = append(list, server{text("service", "namespace"), text("service", "name"), text("url")})
	}
	return list
}

// madeByCA lists the ConfigMaps that the ca has made in all namespaces, which no inventory has.
func madeByCA(ctx context.Context, c *cluster.Client) (out []Verdict, err error) {
	kind := cluster.ID{Version: "v1", Kind: "ConfigMap"}
	list, err := c.List(ctx, kind, metav1.ListOptions{LabelSelector: contract.ManagedByLabel + "=" + contract.ManagedByCA})
	for i := range list {
		out = append(out, Verdict{Entry: inventory.Entry{ID: cluster.Of(&list[i]), Component: "ca"}, Fate: Delete, Live: &list[i], made: true})
	}
	return out, err
}

// Run uninstalls. When it fails, what is left is in the inventories, and the next uninstall goes on.
func (r *Removal) Run(ctx context.Context, c *cluster.Client, o Options) error {
	until, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	for _, rec := range r.Records {
		rec.State = inventory.Removing
		if err := rec.Save(ctx, c); err != nil {
			return err
		}
	}
	var gone []Verdict
	dying := map[string]bool{}
	for _, v := range r.Verdicts {
		if v.Fate != Delete {
			continue
		}
		gone = append(gone, v)
		if v.IsNamespace() {
			dying[v.Name] = true
		}
	}
	d := deletion{client: c, Options: o, until: until, stage: stageRemoval, total: len(gone)}
	all := tiers(gone)
	for _, tier := range all[:2] {
		if err := d.tier(ctx, tier); err != nil {
			return err
		}
	}
	// An inventory goes with its namespace.
	for _, rec := range r.Records {
		if dying[rec.Namespace] {
			continue
		}
		if err := r.narrow(ctx, c, rec); err != nil {
			return err
		}
	}
	if err := d.tier(ctx, all[2]); err != nil {
		return err
	}
	o.Progress.Done(stageRemoval, fmt.Sprintf("%d deleted", len(gone)))
	return nil
}

// narrow leaves in an inventory what Keep keeps, and removes one of which nothing is left.
func (r *Removal) narrow(ctx context.Context, c *cluster.Client, rec *inventory.Record) error {
	stays := map[cluster.ID]bool{}
	for _, e := range r.rest {
		stays[e.Key()] = true
	}
	for _, v := range r.Verdicts {
		if v.Fate == Keep {
			stays[v.Key()] = true
		}
	}
	rec.Objects = slices.DeleteFunc(slices.Clone(rec.Objects), func(e inventory.Entry) bool { return !stays[e.Key()] })
	if len(rec.Objects) == 0 {
		return rec.Remove(ctx, c)
	}
	if rec.State = inventory.Removed; len(r.rest) > 0 {
		rec.State = inventory.Installed
		return rec.Save(ctx, c)
	}
	rec.Installation, rec.Attempt, rec.Past, rec.Holder = inventory.Installation{}, nil, nil, nil
	return rec.Save(ctx, c)
}

// AwaitNamespaces waits for the end of namespaces that an installation has made and whose deletion has begun: their
// inventories went with them. It returns how many there were.
func AwaitNamespaces(ctx context.Context, c *cluster.Client, o Options) (int, error) {
	list, err := c.List(ctx, cluster.Namespace(""), metav1.ListOptions{LabelSelector: ComponentLabel + "=" + stageNamespaces})
	if err != nil {
		return 0, err
	}
	var ids []cluster.ID
	for i := range list {
		if list[i].GetDeletionTimestamp() != nil {
			ids = append(ids, cluster.Of(&list[i]))
		}
	}
	if !o.Wait || len(ids) == 0 {
		return len(ids), nil
	}
	until, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	return len(ids), wait.Gone(until, c, ids, func(text string) { o.Progress.Step(stageRemoval, 0, len(ids), text) })
}
