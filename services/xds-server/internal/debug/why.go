package debug

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
)

// object is an object of the mesh that has an effect on a resource, or might have had one.
type object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Source delivered the object; "" for objects that the mesh has made itself.
	Source string `json:"source,omitempty"`
	// Generation counts the changes of the object's spec; 0 if the source keeps none.
	Generation int64  `json:"generation,omitempty"`
	Location   string `json:"location,omitempty"`
	// Detail tells which part of the object has an effect, or why it has none.
	Detail string `json:"detail,omitempty"`
}

// candidate is one of several resources that a name may mean.
type candidate struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

// explanation is the answer of the page why. If the name may mean several resources, only Proxy and Candidates are set.
type explanation struct {
	Proxy      string      `json:"proxy"`
	Candidates []candidate `json:"candidates,omitempty"`

	Type string `json:"type,omitempty"`
	Name string `json:"name,omitempty"`
	// RouteConfiguration contains the virtual host, if that is no resource of its own.
	RouteConfiguration string `json:"routeConfiguration,omitempty"`
	// Version is the hash of the bytes that proxies of the class are served; "" if there are none.
	Version string `json:"version,omitempty"`
	// Revision that the explanation is about. Sent and Acked are those of the newest response of the type to this
	// proxy.
	Revision uint64 `json:"revision,omitempty"`
	Sent     uint64 `json:"sent,omitempty"`
	Acked    uint64 `json:"acked,omitempty"`
	// Class of the proxy, and the Workload and the Sidecar that have put it there.
	Class    string  `json:"class,omitempty"`
	Workload *object `json:"workload,omitempty"`
	Sidecar  string  `json:"sidecar,omitempty"`
	// Problem is why the resource could not be built or was rejected, or that the proxy does not have it.
	Problem string `json:"problem,omitempty"`
	// MadeFrom are the objects that the resource was made from.
	MadeFrom []object `json:"madeFrom"`
	// PassedOver are objects that are about the same hosts and have no effect on the resource.
	PassedOver []object `json:"passedOver,omitempty"`
	// NotFound lists the lookups that found nothing.
	NotFound []string `json:"notFound,omitempty"`
	// LookedUp lists everything that the resource depends on: a change of any of it builds the resource again.
	LookedUp []string `json:"lookedUp,omitempty"`
}

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
		return nil, fmt.Errorf("proxy %s.%s has no resource %q, and none for a host or port of that name", p.GetWorkload(), p.GetNamespace(), name)
	case len(found) > 1:
		e := &explanation{Proxy: p.GetNodeId(), MadeFrom: []object{}}
		for _, m := range found[:min(len(found), maxCandidates)] {
			e.Candidates = append(e.Candidates, candidate{typeName(m.url), m.name})
		}
		return e, nil
	}
	return d.explain(p, c, found[0])
}

// explain explains one resource.
func (d *pages) explain(p *configv1.ProxyStatus, c *plan.Class, m match) (*explanation, error) {
	url, name := m.url, m.name
	if m.routeConfig != "" {
		url, name = resource.RouteType, m.routeConfig
	}
	state := d.engine.State()
	origins, topics, err := c.Explain(url, name)
	item, _ := c.Snapshot().Type(url).Get(name)
	e := &explanation{
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
func describeOrigin(o input.Origin) object {
	s := o.Source
	if s.GetName() == "" {
		return object{Kind: o.Key.Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, Source: s.GetSource()}
	}
	out := object{
		Kind: s.GetKind(), Namespace: s.GetNamespace(), Name: s.GetName(), Source: s.GetSource(), Generation: s.GetGeneration(),
		Location: s.GetLocation(),
	}
	if o.Key.Kind == mesh.KindService {
		out.Detail = o.Key.Name
	}
	return out
}
