package apply

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/install/wait"
)

// Has says whether a request has an object of an inventory. The namespaces of its objects count, too. It asks no API
// server: an object without a namespace may be of the whole cluster, or of the control plane's namespace.
func (req *Request) Has(e inventory.Entry) bool {
	if e.IsNamespace() && e.Name == req.Namespace {
		return true
	}
	for _, o := range req.Objects {
		if e.IsNamespace() && o.Namespace() == e.Name {
			return true
		}
		if e.Kind == o.Kind() && e.Name == o.Name() && e.Group == o.Group() &&
			(e.Namespace == o.Namespace() || o.Namespace() == "" && e.Namespace == req.Namespace || e.Namespace == "") {
			return true
		}
	}
	return false
}

// NewPartialRemoval is NewRemoval of those objects of a record that a request has. The rest stays in its inventory.
func NewPartialRemoval(ctx context.Context, c *cluster.Client, rec *inventory.Record, all []*inventory.Record, req *Request) (*Removal,
	error) {
	r := &Removal{Records: []*inventory.Record{rec}}
	var entries []inventory.Entry
	for _, e := range rec.Objects {
		if req.Has(e) {
			entries = append(entries, e)
		} else {
			r.rest = append(r.rest, e)
		}
	}
	var err error
	r.Verdicts, err = judge(ctx, c, entries, inventory.Others(all, rec), RemovalOptions{})
	return r, err
}

// VerifyPlan compares the objects of a plan with the cluster: whether each is there, as the plan has it, and ready.
func VerifyPlan(ctx context.Context, c *cluster.Client, p *Plan) []Finding {
	problems := make([]string, len(p.Changes))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, ch := range p.Changes {
		g.Go(func() error {
			problems[i] = differing(ctx, c, ch)
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
	var out []Finding
	for i, text := range problems {
		if text != "" {
			out = append(out, Finding{p.Changes[i].Entry, text})
		}
	}
	for _, v := range p.Prunes {
		if v.Fate == Delete {
			out = append(out, Finding{v.Entry, "it is of the installation, and not of what the files make"})
		}
	}
	return out
}

func differing(ctx context.Context, c *cluster.Client, ch *Change) string {
	switch {
	case ch.Live == nil:
		return "it is not there"
	case ch.Live.GetDeletionTimestamp() != nil:
		return "it is being deleted"
	}
	if ch.Action == Recreate {
		return "it differs: " + ch.Why()
	}
	if ch.Action == Configure {
		if fields := tree.Changes(Shown(ch.Live, ch.After)); len(fields) > 0 {
			more := ""
			if len(fields) > 1 {
				more = fmt.Sprintf(", and %d more fields", len(fields)-1)
			}
			if by := ch.WhoManages(); by != "" {
				more += " (" + by + ")"
			}
			return fmt.Sprintf("it differs in %s%s; fairlead diff shows each", fields[0].Path, more)
		}
	}
	if wait.Waits(ch.ID) && !wait.Of(ch.Live).Ready {
		return wait.Explain(ctx, c, ch.ID)
	}
	return ""
}
