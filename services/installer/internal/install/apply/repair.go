package apply

import (
	"context"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
)

// NewRepair is NewPlan for who holds an installation to its specification all the time, as an operator does. Fields of
// the installation's own objects that somebody has edited get their values back; they are no conflicts. An object stays
// in conflict if the installation did not have it before, or if another has taken it over for good: a controller, a
// Helm release, or a manager that applies it. The replicas that a HorizontalPodAutoscaler has set are its own.
//
// Of an object that several revisions have, the revision that was changed last decides: the plan of another one that is
// Settled makes it if it is gone, and does not change it otherwise.
func NewRepair(ctx context.Context, c *cluster.Client, req *Request) (*Plan, error) {
	return newPlan(ctx, c, req, comparison{repair: true})
}

// Settled says whether the last installation of the revision was completed, and is what the request asks for. What a
// settled plan changes was changed by others.
func (p *Plan) Settled() bool { return settled(p.Record, p.Request) }

func settled(r *inventory.Record, req *Request) bool {
	return r.Stored() && r.State == inventory.Installed && r.Hash == req.Hash
}

// prepare finds what other revisions decide.
func (l *comparison) prepare(req *Request) {
	if !l.repair || !settled(l.record, req) {
		return
	}
	var newer []*inventory.Record
	for _, r := range l.others {
		if r != l.record && (r.At > l.record.At || r.At == l.record.At && r.Revision > l.record.Revision) {
			newer = append(newer, r)
		}
	}
	l.newer = inventory.Others(newer, nil)
}

// mayRepair says whether an object is the installation's, so that edited fields are taken back.
func (l *comparison) mayRepair(ch *Change) bool {
	return l.repair && ch.Live != nil && !ch.IsNamespace() && l.record.Has(ch.ID) && owner(ch.Live) == ""
}
