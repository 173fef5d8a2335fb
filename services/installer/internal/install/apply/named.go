package apply

import (
	"context"
	"slices"
	"strings"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/tree"
)

// recordOf is the inventory of a request. Gateways that were once installed as the revision's own stay that.
func recordOf(req *Request, records []*inventory.Record) *inventory.Record {
	own := inventory.Find(records, req.Revision, req.Namespace, "")
	if req.Name == "" || own.Stored() && own.State != inventory.Removed && !slices.ContainsFunc(own.Objects, req.ofControlPlane) {
		return own
	}
	return inventory.Find(records, req.Revision, req.Namespace, req.Name)
}

// ofControlPlane says whether an object of an inventory belongs to a component that is no gateway.
func (req *Request) ofControlPlane(e inventory.Entry) bool {
	name, _, _ := strings.Cut(e.Component, "[")
	return name != "" && !slices.Contains(req.Lists, name)
}

// InCommon is an IstioOperator of what the control plane of a request's revision has in common with gateways: images,
// the cluster's id, its network, and so on; nil if the cluster has no inventory of one.
func InCommon(ctx context.Context, c *cluster.Client, req *Request) ([]byte, error) {
	records, err := inventory.List(ctx, c, req.Namespace)
	if err != nil {
		return nil, err
	}
	all, spec := inventory.Find(records, req.Revision, req.Namespace, "").Now().Spec, tree.Map{}
	for _, field := range []string{"hub", "tag", "meshConfig"} {
		if v := all[field]; v != nil {
			spec[field] = v
		}
	}
	if global := tree.GetMap(all, "values", "global"); len(global) > 0 {
		spec["values"] = tree.Map{"global": global}
	}
	if len(spec) == 0 {
		return nil, nil
	}
	return tree.Text(merge.Operator(spec))
}
