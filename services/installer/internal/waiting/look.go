package waiting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"fairlead.dev/pkg/nearest"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
)

// progress is what one look at the mesh has found. final is set if waiting is of no use any more, absent if there is no
// such object.
type progress struct {
	done, final, absent bool
	text                string
}

// forget closes the clients, so that the next look finds the replicas of then.
func (w *wait) forget() {
	meshclient.CloseAll(w.watchers)
	w.watchers = nil
	w.mesh = w.mesh.Renew()
}

// look asks every config-watcher how far the object is.
func (w *wait) look(ctx context.Context) (progress, error) {
	ctx, cancel := context.WithTimeout(ctx, meshclient.CallTimeout)
	defer cancel()
	if w.watchers == nil {
		first := w.targets == nil
		var err error
		if w.watchers, err = w.mesh.Watchers(ctx); err != nil {
			return progress{final: first}, err
		}
		if first {
			w.targets = map[string]*configv1.Revision{}
		}
	}
	proxies, reached := 0, 0
	var missing []string
	for _, watcher := range w.watchers {
		p, err := w.at(ctx, watcher)
		if err != nil || !p.done {
			return p, err
		}
		if w.For == Programmed {
			continue
		}
		res, err := watcher.ListProxies(ctx, &configv1.ListProxiesRequest{})
		if err != nil {
			return progress{}, fmt.Errorf("%s: %w", watcher.Name, watcher.Explain(err))
		}
		goal := w.targets[watcher.Name]
		if goal == nil || goal.GetEpoch() != res.GetRevision().GetEpoch() {
			goal = res.GetRevision()
			w.targets[watcher.Name] = goal
		}
		for _, p := range res.GetProxies() {
			if p.GetUnverified() {
				continue
			}
			if proxies++; hasAcked(p, goal) {
				reached++
			} else {
				missing = append(missing, meshclient.ProxyName(p.GetNodeId()))
			}
		}
	}
	if w.For == Programmed {
		return progress{done: true, text: "programmed"}, nil
	}
	enough := int(math.Ceil(w.Threshold*float64(proxies) - 1e-9))
	text := fmt.Sprintf("%d of %d proxies have acknowledged it", reached, proxies)
	if w.For == Deleted {
		text = fmt.Sprintf("deleted, %d of %d proxies have acknowledged that", reached, proxies)
	}
	if reached < enough {
		const shown = 5
		more := ""
		if len(missing) > shown {
			more = fmt.Sprintf(" and %d more", len(missing)-shown)
			missing = missing[:shown]
		}
		return progress{text: text + ", not " + strings.Join(missing, ", ") + more}, nil
	}
	return progress{done: true, text: text}, nil
}

// hasAcked reports whether a proxy has acknowledged a revision: by number within one run of config-watcher, else by the
// hash of the state.
func hasAcked(p *configv1.ProxyStatus, goal *configv1.Revision) bool {
	acked := p.GetAcked()
	if acked.GetEpoch() == goal.GetEpoch() && acked.GetSequence() >= goal.GetSequence() && acked != nil {
		return true
	}
	return len(goal.GetStateHash()) > 0 && bytes.Equal(acked.GetStateHash(), goal.GetStateHash())
}

// at asks one config-watcher about the object. Its statuses are those of committed revisions, so that what it says done
// is part of the revision that it tells next.
func (w *wait) at(ctx context.Context, watcher meshclient.Watcher) (progress, error) {
	res, err := watcher.Status(ctx,
		&configv1.StatusRequest{Kind: kinds.NameOf(w.Key), Namespace: w.Key.GetNamespace(), Name: w.Key.GetName()})
	if err = watcher.Explain(err); err != nil {
		if gone := new(configapi.NotFoundError); errors.As(err, &gone) {
			return w.absent(), nil
		}
		if away := new(configapi.UnreachableError); errors.As(err, &away) {
			return progress{}, err
		}
		return progress{final: true}, err
	}
	objects := res.GetObjects()
	var newest *configv1.ObjectStatus
	for _, o := range objects {
		if o.GetInForce() && (newest == nil || o.GetObservedGeneration() > newest.GetObservedGeneration()) {
			newest = o
		}
	}
	if newest == nil && len(objects) > 0 {
		newest = objects[0] // none is in force: its conditions say why
	}
	switch {
	case newest == nil:
		return w.absent(), nil
	case w.For == Deleted:
		return progress{text: fmt.Sprintf("it is still there, from %s", newest.GetSource())}, nil
	case newest.GetObservedGeneration() < w.Generation:
		return progress{text: fmt.Sprintf("%s has read generation %d, not yet %d", watcher.Name, newest.GetObservedGeneration(), w.Generation)},
			nil
	}
	if GroupOf(kinds.NameOf(w.Key)) == groupGatewayAPI {
		return w.served(newest)
	}
	exactly := newest.GetObservedGeneration() == w.Generation || w.Generation == 0
	for _, c := range newest.GetConditions() {
		if c.GetStatus() == "True" {
			continue
		}
		ends := c.GetReason() == "Invalid" || c.GetReason() == "Overridden" || c.GetReason() == "Rejected" && w.For == Programmed
		switch {
		case c.GetType() != "Accepted" && c.GetType() != "Programmed":
		case ends && exactly:
			return progress{final: true}, fmt.Errorf("%s: %s: %s", w, c.GetReason(), c.GetMessage())
		case c.GetType() == "Programmed" && w.For == Programmed:
			return progress{text: c.GetReason() + ": " + c.GetMessage()}, nil
		}
	}
	return progress{done: true}, nil
}

// served is the progress of an object of the Gateway API. What its parents lack may come later, so only a refusal ends
// the wait: of the object, or by a proxy.
func (w *wait) served(o *configv1.ObjectStatus) (progress, error) {
	if len(o.GetConditions()) == 0 {
		return progress{text: "nothing of this mesh serves it: its class or its parents are not there, or another controller's"}, nil
	}
	var pending *configv1.Condition
	for _, c := range o.GetConditions() {
		switch {
		case c.GetStatus() == "True", c.GetType() != "Accepted" && c.GetType() != "Programmed":
		case c.GetReason() == "Overridden", c.GetReason() == "Invalid" && c.GetType() == "Accepted",
			c.GetReason() == "Rejected" && w.For == Programmed:
			return progress{final: true}, fmt.Errorf("%s: %s: %s", w, c.GetReason(), c.GetMessage())
		case pending == nil && (c.GetType() == "Accepted" || w.For == Programmed):
			pending = c
		}
	}
	if pending != nil {
		return progress{text: pending.GetReason() + ": " + pending.GetMessage()}, nil
	}
	return progress{done: true}, nil
}

// absent is the progress if a config-watcher does not have the object.
func (w *wait) absent() progress {
	if w.For == Deleted {
		return progress{done: true}
	}
	return progress{absent: true, text: "there is no such object in the mesh (yet)"}
}

// unknown says that the mesh has no such object, and which one may be meant. It is empty if the mesh has the object
// after all.
func (w *wait) unknown(ctx context.Context) string {
	key := w.Key
	var names, having []string
	inNamespace := map[string]string{}
	// If the objects cannot be listed, there is nothing to suggest.
	_ = w.mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) error {
		res, err := client.List(ctx, &configv1.ListRequest{Kind: kinds.NameOf(key), InForce: true, WithoutManifests: true})
		for _, o := range res.GetObjects() {
			name, namespace := o.GetKey().GetName(), o.GetKey().GetNamespace()
			names = append(names, name)
			if _, ok := inNamespace[name]; !ok || namespace == key.GetNamespace() {
				inNamespace[name] = namespace
			}
			if name == key.GetName() {
				having = append(having, namespace)
			}
		}
		return err
	})
	if len(having) == 0 && kinds.NameOf(key) == "Gateway" {
		apiGateway := kinds.Key(kinds.APIGateway, key.GetNamespace(), key.GetName())
		_ = w.mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) error {
			_, err := client.Get(ctx, &configv1.GetRequest{Key: apiGateway, InForce: true})
			if err == nil {
				names = []string{"gtw/" + key.GetName()}
			}
			return err
		})
		if len(names) == 1 && names[0] == "gtw/"+key.GetName() {
			return fmt.Sprintf("no Gateway of networking.istio.io has this name; that of the Gateway API is %s", names[0])
		}
	}
	slices.Sort(having)
	hint := ""
	switch near := nearest.Name(key.GetName(), names); {
	case slices.Contains(having, key.GetNamespace()):
		return ""
	case len(having) > 0:
		hint = fmt.Sprintf("; there is one in namespace %s: add -n %s", strings.Join(having, ", "), having[0])
	case near != "":
		hint = fmt.Sprintf("; did you mean %q in namespace %s?", near, inNamespace[near])
	}
	return fmt.Sprintf("no such object is known%s; `fairlead config get %s -A` lists what there is", hint, kinds.NameOf(key))
}
