package status

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// gatewaySpecs caches decoded Gateways by the hash of their resource.
type gatewaySpecs map[string]*networking.Gateway

func isGateway(o *object.Object) bool {
	return o.Key.Group == kinds.GroupNetworking && o.Key.Kind == "Gateway"
}

// evaluateGateways brings the rows of the Gateways in force up to date. Their conditions depend on each other, and on
// the proxies that each selects.
func (t *Tracker) evaluateGateways(snapshot *revision.Snapshot, f *fleetState) {
	var all []*Gateway
	entries := map[*Gateway]*entry{}
	specs := gatewaySpecs{}
	for k, e := range t.due.watched {
		if !isGateway(e.object) {
			continue
		}
		r := snapshot.Get(resource.Of(k))
		hash := string(r.GetHash())
		spec := t.gateways[hash]
		if spec == nil {
			spec = &networking.Gateway{}
			if r.GetIstioConfig().GetSpec().UnmarshalTo(spec) != nil {
				continue // the revision does not have the object yet, or has it no more
			}
		}
		specs[hash] = spec
		g := &Gateway{Namespace: k.Namespace, Name: k.Name, Spec: spec, Created: max(e.object.Created.UnixNano(), 0), Unreported: f.unreported}
		all, entries[g] = append(all, g), e
	}
	t.gateways = specs
	if len(all) == 0 {
		return
	}
	selectProxies(snapshot, f, all, entries)
	hasCredential := func(ref credential.Ref) bool { return t.cfg.Credentials.Get(ref) != nil }
	for g, e := range entries {
		if e.refused != nil {
			continue // evaluate has made the row
		}
		s := EvaluateGateway(g, all, hasCredential)
		s.Generation, s.Findings = e.object.Generation, codes(e.findings)
		for i, c := range s.Conditions {
			switch {
			case c.Type == Accepted && c.Holds:
				s.Conditions[i] = withFindings(c, e.object.Warnings, e.findings)
			case c.Type == Programmed && !c.Holds && c.Reason != reasonRejected && f.incomplete:
				s.Conditions[i].KeepTrue = true
			}
		}
		row := &Row{ID: ID{e.object.Source, e.object.Key}, APIVersion: e.object.APIVersion, UID: e.object.UID, Location: e.object.Location,
			InForce: true, Status: &s}
		if !e.row.equal(row) {
			e.row = row
		}
	}
}

// selectProxies finds the proxies of each Gateway.
func selectProxies(snapshot *revision.Snapshot, f *fleetState, all []*Gateway, entries map[*Gateway]*entry) {
	for i := range f.proxies {
		p := &f.proxies[i]
		if !strings.HasPrefix(p.Status.GetNodeId(), fleet.GatewayPrefix) {
			continue
		}
		w := snapshot.Get(resource.Key{Kind: resource.KindWorkload, Namespace: p.Status.GetNamespace(),
			Name: p.Status.GetWorkload()}).GetWorkload()
		if w == nil {
			continue
		}
		for _, g := range all {
			if !object.HasLabels(w.GetLabels(), g.Spec.GetSelector()) {
				continue
			}
			since := entries[g].since
			g.Proxies = append(g.Proxies, Proxy{
				NodeID: p.Status.GetNodeId(), Namespace: p.Status.GetNamespace(), Workload: p.Status.GetWorkload(),
				Acked: f.reached(p.Acked, since), Rejection: f.gatewayRejection(p, since),
			})
		}
	}
}

// gatewayRejection is the listener or route configuration that a gateway has rejected since a revision, with its words;
// empty if there is none.
func (f *fleetState) gatewayRejection(p *proxy, since uint64) string {
	for _, r := range p.rejections {
		if (r.kind == typeListener || r.kind == typeRoutes) && f.reached(r.GetRevision(), since) {
			return r.text()
		}
	}
	return ""
}
