package gather

import (
	"context"
	"errors"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/describe"
	"fairlead.dev/services/installer/internal/kinds"
)

// readStatuses adds what config-watcher has computed of routes and Gateways of the Gateway API.
func (g *gatherer) readStatuses(ctx context.Context) error {
	return g.cfg.Mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) error {
		for _, kind := range append([]string{describe.APIGateway}, describe.RouteKinds...) {
			if len(g.model.Objects) == 0 || !g.has(kind) {
				continue
			}
			res, err := client.Status(ctx, &configv1.StatusRequest{Kind: kind})
			if err = client.Explain(err); err != nil {
				if away := new(configapi.UnreachableError); errors.As(err, &away) {
					return err
				}
				g.unknown("statuses of "+kinds.Plural(kind), err)
				continue
			}
			byName := map[string]*configv1.ObjectStatus{}
			for _, o := range res.GetObjects() {
				if o.GetInForce() {
					byName[kinds.FullName(o.GetKey().GetNamespace(), o.GetKey().GetName())] = o
				}
			}
			for i := range g.model.Objects {
				o := &g.model.Objects[i]
				if o.Kind != kind {
					continue
				}
				judged := byName[o.ID()]
				o.Conditions, o.Parents = conditionsOf(judged.GetConditions()), map[string][]describe.Condition{}
				for _, p := range judged.GetParents() {
					o.Parents[p.GetParent()] = conditionsOf(p.GetConditions())
				}
			}
		}
		return nil
	})
}

// has reports whether the mesh has an object of a kind.
func (g *gatherer) has(kind string) bool {
	for i := range g.model.Objects {
		if g.model.Objects[i].Kind == kind {
			return true
		}
	}
	return false
}

func conditionsOf(list []*configv1.Condition) (out []describe.Condition) {
	for _, c := range list {
		out = append(out, describe.Condition{Type: c.GetType(), Status: c.GetStatus(), Reason: c.GetReason(), Message: c.GetMessage()})
	}
	return out
}
