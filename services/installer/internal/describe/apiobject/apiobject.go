// Package apiobject says what the mesh makes of one object of the Gateway API: what `fairlead describe httproute` and
// its like print. All of it comes from config-watcher: the object in force, and the status that it has computed.
package apiobject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/nearest"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/describe"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/objectfile"
)

// Description is what is known of an object.
type Description struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Source and Location are where the object in force comes from.
	Source   string `json:"source,omitempty"`
	Location string `json:"location,omitempty"`
	// Class is that of a Gateway, Controller that of a GatewayClass.
	Class      string      `json:"class,omitempty"`
	Controller string      `json:"controller,omitempty"`
	Addresses  []string    `json:"addresses,omitempty"`
	Hostnames  []string    `json:"hostnames,omitempty"`
	Targets    []string    `json:"targets,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
	Parents    []Parent    `json:"parents,omitempty"`
	Listeners  []Listener  `json:"listeners,omitempty"`
	Rules      []Rule      `json:"rules,omitempty"`
	// Attached are the routes and ListenerSets that name the Gateway or ListenerSet as a parent, Gateways those of the
	// class.
	Attached []Attached `json:"attached,omitempty"`
	Gateways []string   `json:"gateways,omitempty"`
	// Notes are what is to be said besides: an object that nothing of this mesh serves.
	Notes []string `json:"notes,omitempty"`
}

// Condition of an object, listener or parent.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Parent of a route, ListenerSet or policy.
type Parent struct {
	Parent string `json:"parent"`
	// Conditions are empty if the parent is not this mesh's; Note says why.
	Conditions []Condition `json:"conditions,omitempty"`
	Note       string      `json:"note,omitempty"`
}

// Listener of a Gateway or ListenerSet.
type Listener struct {
	Name       string      `json:"name"`
	Port       int32       `json:"port"`
	Protocol   string      `json:"protocol"`
	Hostname   string      `json:"hostname,omitempty"`
	Routes     int32       `json:"attachedRoutes"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// Rule of a route.
type Rule struct {
	Name     string    `json:"name,omitempty"`
	Matches  []string  `json:"matches,omitempty"`
	Filters  []string  `json:"filters,omitempty"`
	Backends []Backend `json:"backends"`
}

// Backend of a rule; Problem is why it cannot be resolved.
type Backend struct {
	Backend string `json:"backend"`
	Problem string `json:"problem,omitempty"`
}

// Attached is a route or ListenerSet of a Gateway or ListenerSet.
type Attached struct {
	Object string `json:"object"`
	// Section is what of the parent it names, "section web, port 80"; empty for all listeners.
	Section  string `json:"section,omitempty"`
	Accepted bool   `json:"accepted"`
	// Because says why it is not accepted.
	Because string `json:"because,omitempty"`
}

// Kinds are the kinds that Ask describes, as kinds.Parse returns them.
var Kinds = append(slices.Clone(describe.RouteKinds), describe.APIGateway, "ListenerSet", "BackendTLSPolicy", "GatewayClass")

// Ask describes an object: NAME[.NAMESPACE], with the namespace of -n.
func Ask(ctx context.Context, mesh *meshclient.Mesh, kind, name, namespace string) (*Description, error) {
	ns, short := meshclient.WholeName(name, namespace)
	if short == "" || kinds.ClusterScoped[kind] {
		ns, short = objectfile.DefaultNamespace, name
	}
	if kinds.ClusterScoped[kind] {
		ns = ""
	}
	d := &Description{Kind: kind, Namespace: ns, Name: short}
	return d, mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) error { return d.read(ctx, client) })
}

func (d *Description) read(ctx context.Context, client *configapi.Client) error {
	key := kinds.Key(d.Kind, d.Namespace, d.Name)
	res, err := client.Get(ctx, &configv1.GetRequest{Key: key, InForce: true})
	if err = client.Explain(err); err != nil {
		if missing := new(configapi.NotFoundError); errors.As(err, &missing) {
			return d.missing(ctx, client)
		}
		return err
	}
	o := res.GetObject()
	d.Source, d.Location = o.GetSource(), o.GetLocation()
	status, err := client.Status(ctx, &configv1.StatusRequest{Kind: d.Kind, Namespace: d.Namespace, Name: d.Name})
	if err = client.Explain(err); err != nil {
		return err
	}
	judged := &configv1.ObjectStatus{}
	for _, one := range status.GetObjects() {
		if one.GetInForce() {
			judged = one
		}
	}
	d.Addresses, d.Conditions = judged.GetAddresses(), conditions(judged.GetConditions())
	var tree struct{ Spec spec }
	if err := json.Unmarshal(o.GetManifest(), &tree); err != nil {
		return fmt.Errorf("%s: %w", kinds.Text(key), err)
	}
	d.spec(&tree.Spec, judged)
	if len(d.Conditions) == 0 {
		d.Notes = append(d.Notes, "nothing of this mesh serves it: its class or its parents are not there, or another controller's")
	}
	switch d.Kind {
	case describe.APIGateway, "ListenerSet":
		return d.attached(ctx, client)
	case "GatewayClass":
		return d.gateways(ctx, client)
	}
	return d.foreign(ctx, client)
}

// missing is the error about an object that is not there: where one of this name is, or the nearest name.
func (d *Description) missing(ctx context.Context, client *configapi.Client) error {
	var elsewhere, near []string
	res, err := client.List(ctx, &configv1.ListRequest{Kind: d.Kind, InForce: true, WithoutManifests: true})
	for _, o := range res.GetObjects() {
		switch k := o.GetKey(); {
		case k.GetName() == d.Name:
			elsewhere = append(elsewhere, k.GetNamespace())
		case k.GetNamespace() == d.Namespace:
			near = append(near, k.GetName())
		}
	}
	kind, _, _ := strings.Cut(d.Kind, ".")
	text := fmt.Sprintf("there is no %s %s in the mesh", kind, kinds.FullName(d.Namespace, d.Name))
	if d.Kind == describe.APIGateway {
		text = fmt.Sprintf("there is no Gateway %s of the Gateway API in the mesh", kinds.FullName(d.Namespace, d.Name))
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s; see what there is with `fairlead config get %s -A`", text, strings.ToLower(d.Kind))
	case len(elsewhere) > 0:
		slices.Sort(elsewhere)
		return fmt.Errorf("%s; there is one in namespace %s: name it with -n", text, strings.Join(elsewhere, ", "))
	}
	if d.Kind == describe.APIGateway {
		if _, err := client.Get(ctx, &configv1.GetRequest{Key: kinds.Key("Gateway", d.Namespace, d.Name), InForce: true}); err == nil {
			return fmt.Errorf("%s; that of networking.istio.io with this name has VirtualServices: see `fairlead config status gateway/%s -n %s`",
				text, d.Name, d.Namespace)
		}
	}
	return fmt.Errorf("%s%s; `fairlead config get %s -A` lists what there is", text, nearest.Hint(d.Name, near), strings.ToLower(d.Kind))
}

// attached finds the routes and ListenerSets of a Gateway or ListenerSet.
func (d *Description) attached(ctx context.Context, client *configapi.Client) error {
	kind, _, _ := strings.Cut(d.Kind, ".")
	self := kind + " " + d.Namespace + "/" + d.Name
	for _, k := range describe.RouteKinds {
		res, err := client.Status(ctx, &configv1.StatusRequest{Kind: k})
		if err = client.Explain(err); err != nil {
			return err
		}
		for _, o := range res.GetObjects() {
			for _, p := range o.GetParents() {
				parent, section, _ := strings.Cut(p.GetParent(), ", ")
				if parent != self || !o.GetInForce() {
					continue
				}
				a := Attached{Object: kinds.Text(o.GetKey()), Section: section, Accepted: true}
				for _, c := range p.GetConditions() {
					if c.GetType() == "Accepted" && c.GetStatus() != "True" {
						a.Accepted, a.Because = false, c.GetReason()+": "+c.GetMessage()
					}
				}
				d.Attached = append(d.Attached, a)
			}
		}
	}
	if d.Kind != describe.APIGateway {
		return nil
	}
	list, err := client.List(ctx, &configv1.ListRequest{Kind: "ListenerSet", InForce: true})
	if err = client.Explain(err); err != nil {
		return err
	}
	status, err := client.Status(ctx, &configv1.StatusRequest{Kind: "ListenerSet"})
	if err = client.Explain(err); err != nil {
		return err
	}
	for _, o := range list.GetObjects() {
		var tree struct{ Spec struct{ ParentRef reference } }
		if json.Unmarshal(o.GetManifest(), &tree) != nil || tree.Spec.ParentRef.parent(o.GetKey().GetNamespace()) != self {
			continue
		}
		a := Attached{Object: kinds.Text(o.GetKey()), Accepted: true}
		for _, s := range status.GetObjects() {
			for _, c := range s.GetConditions() {
				if kinds.Text(s.GetKey()) == a.Object && c.GetType() == "Accepted" && c.GetStatus() != "True" {
					a.Accepted, a.Because = false, c.GetReason()+": "+c.GetMessage()
				}
			}
		}
		d.Attached = append(d.Attached, a)
	}
	return nil
}

// gateways finds the Gateways of a class.
func (d *Description) gateways(ctx context.Context, client *configapi.Client) error {
	list, err := client.List(ctx, &configv1.ListRequest{Kind: describe.APIGateway, InForce: true})
	if err = client.Explain(err); err != nil {
		return err
	}
	for _, o := range list.GetObjects() {
		var tree struct{ Spec spec }
		if json.Unmarshal(o.GetManifest(), &tree) == nil && tree.Spec.GatewayClassName == d.Name {
			d.Gateways = append(d.Gateways, kinds.FullName(o.GetKey().GetNamespace(), o.GetKey().GetName()))
		}
	}
	return nil
}

// foreign says of each parent that has no conditions why: it is not there, or another controller's.
func (d *Description) foreign(ctx context.Context, client *configapi.Client) error {
	for i := range d.Parents {
		p := &d.Parents[i]
		if len(p.Conditions) > 0 {
			continue
		}
		whole, _, _ := strings.Cut(p.Parent, ", ")
		kind, name, _ := strings.Cut(whole, " ")
		ns, name, _ := strings.Cut(name, "/")
		if kind == "Gateway" {
			kind = describe.APIGateway
		}
		if !slices.Contains(kinds.Names, kind) {
			p.Note = "of no kind that this mesh serves"
			continue
		}
		_, err := client.Get(ctx, &configv1.GetRequest{Key: kinds.Key(kind, ns, name), InForce: true})
		p.Note = "not of this mesh: its class is another controller's"
		if missing := new(configapi.NotFoundError); errors.As(client.Explain(err), &missing) {
			p.Note = "it is not there"
		}
	}
	return nil
}

func conditions(list []*configv1.Condition) []Condition {
	return lists.Map(list, func(c *configv1.Condition) Condition {
		return Condition{c.GetType(), c.GetStatus(), c.GetReason(), c.GetMessage()}
	})
}
