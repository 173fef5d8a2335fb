package debug

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
)

// maxCandidates bounds the resources that are listed if a name may mean several.
const maxCandidates = 50

func (d *pages) why(r *http.Request) (any, error) {
	q := r.URL.Query()
	p, c, err := d.proxy(q.Get("proxy"))
	if err != nil {
		return nil, err
	}
	wanted, err := typeURL(q.Get("type"), c.Snapshot().URLs())
	if err != nil {
		return nil, err
	}
	name := q.Get("name")
	if name == "" {
		return nil, fmt.Errorf("name the resource: ?name=<resource, or host[:port]>")
	}
	found := newFinder(c, wanted).find(name)
	switch {
	case len(found) == 0 && wanted != "":
		// A resource that no proxy has requested yet may exist all the same.
		found = []match{{url: wanted, name: name}}
	case len(found) == 0:
		return nil, fmt.Errorf("proxy %s.%s has no resource %q, and none for a host or port of that name", p.GetWorkload(), p.GetNamespace(),
			name)
	case len(found) > 1:
		e := &contract.Explanation{Proxy: p.GetNodeId(), MadeFrom: []contract.ExplainedObject{}}
		for _, m := range found[:min(len(found), maxCandidates)] {
			e.Candidates = append(e.Candidates, contract.ResourceName{Type: typeName(m.url), Name: m.name})
		}
		return e, nil
	}
	return d.explain(p, c, found[0])
}

// explain explains one resource.
func (d *pages) explain(p *configv1.ProxyStatus, c *plan.Class, m match) (*contract.Explanation, error) {
	url, name := m.url, m.name
	if m.routeConfig != "" {
		url, name = resource.RouteType, m.routeConfig
	}
	state := d.engine.State()
	origins, topics, err := c.Explain(url, name)
	item, _ := c.Snapshot().Type(url).Get(name)
	e := &contract.Explanation{
		Proxy: p.GetNodeId(), Type: typeName(m.url), Name: m.name, RouteConfiguration: m.routeConfig, Revision: state.Revision().GetSequence(),
		Class: c.ID(), Sidecar: c.Key().Sidecar,
	}
	if item.Blob != nil {
		e.Version = item.Blob.Version()
	}
	switch {
	case err != nil:
		e.Problem = err.Error()
	case item.Blob == nil:
		e.Problem = "the proxy does not have it: neither it nor another one like it has asked for it"
	}
	for _, t := range p.GetTypes() {
		if t.GetTypeUrl() != url {
			continue
		}
		e.Sent, e.Acked = t.GetSent().GetSequence(), t.GetAcked().GetSequence()
		if e.Problem == "" && slices.Contains(t.GetRejection().GetResourceNames(), name) {
			e.Problem = "the proxy has rejected it: " + t.GetRejection().GetMessage()
		}
	}
	if w := state.Workload(p.GetNamespace(), p.GetWorkload()); w != nil {
		o := describeOrigin(input.Origin{
			Key: mesh.Key{Kind: mesh.KindWorkload, Namespace: w.GetNamespace(), Name: w.GetName()}, Source: w.GetSource(),
		})
		e.Workload = &o
	}
	look := newLookup(state, c.Key(), origins)
	if m.routeConfig != "" {
		origins, topics = look.narrow(origins, topics, virtualHostIn(item, strings.TrimPrefix(m.name, m.routeConfig+"/")))
	}
	e.MadeFrom = look.describe(origins)
	for _, t := range topics {
		e.LookedUp = append(e.LookedUp, t.String())
	}
	e.NotFound, e.PassedOver = look.absent(topics), look.passedOver(topics)
	return e, nil
}

// describeOrigin shows the user's object if it is known, else the mesh's own.
func describeOrigin(o input.Origin) contract.ExplainedObject {
	s := o.Source
	if s.GetName() == "" {
		return contract.ExplainedObject{Kind: o.Key.Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, Source: s.GetSource()}
	}
	out := contract.ExplainedObject{
		Kind: s.GetKind(), Namespace: s.GetNamespace(), Name: s.GetName(), Source: s.GetSource(), Generation: s.GetGeneration(),
		Location: s.GetLocation(),
	}
	if o.Key.Kind == mesh.KindService {
		out.Detail = o.Key.Name
	}
	if apiGateway := "Gateway." + contract.GroupGatewayAPI; o.Key.Kind == apiGateway {
		out.Kind = apiGateway // Istio's is Gateway
	}
	return out
}
