package gatewaystatus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/clock"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source/memory"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// minInterval is the least time between two updates.
const minInterval = 500 * time.Millisecond

// Config of an Updater. All fields are required.
type Config struct {
	Revisions   *revision.Log
	Fleet       *fleet.Table
	Credentials *credential.Table
	Store       *memory.Store
	Log         *slog.Logger
	Clock       clock.Clock
}

// Updater keeps the status of the Gateways in the store. It leaves those of other sources alone.
type Updater struct {
	cfg Config
	// seen are the Gateways of the last update.
	seen map[resource.Key]*known
	// written are the statuses of the last update, by "<namespace>/<name>".
	written map[string]written
}

// written is the status of one generation of a Gateway.
type written struct {
	age        string
	generation int64
	status     Status
}

// known is a Gateway's newest version and the revision that brought it.
type known struct {
	hash  string
	since *configv1.Revision
	spec  *networking.Gateway
}

// NewUpdater returns an updater; Run does the work.
func NewUpdater(cfg Config) *Updater { return &Updater{cfg: cfg, seen: map[resource.Key]*known{}} }

// Run writes statuses until ctx ends. Each new revision, proxy report or credential starts an update.
func (u *Updater) Run(ctx context.Context) error {
	for {
		snapshot, revised := u.cfg.Revisions.Current()
		reported := u.cfg.Fleet.Changed()
		credentials := u.cfg.Credentials.Changed()
		if snapshot != nil {
			u.update(ctx, snapshot)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-u.cfg.Clock.After(minInterval):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-revised:
		case <-reported:
		case <-credentials:
		}
	}
}

// update writes the statuses that have changed.
func (u *Updater) update(ctx context.Context, snapshot *revision.Snapshot) {
	all, own := u.gateways(snapshot)
	if len(own) == 0 {
		u.written = nil
		return
	}
	u.assign(snapshot, all)
	hasCredential := func(ref credential.Ref) bool { return u.cfg.Credentials.Get(ref) != nil }
	now := map[string]written{}
	for _, g := range own {
		name := g.Namespace + "/" + g.Name
		w := written{g.Age, g.Generation, Evaluate(g, all, hasCredential)}
		if reflect.DeepEqual(w, u.written[name]) {
			now[name] = w
			continue
		}
		switch err := u.write(ctx, g, w.status); {
		case err == nil:
			now[name] = w
		case !errors.Is(err, memory.ErrNotFound):
			u.cfg.Log.Warn("status of a Gateway cannot be written", "gateway", name, "error", err)
		}
	}
	u.written = now
}

// gateways lists the Gateways of the snapshot, and those of them that the store delivers.
func (u *Updater) gateways(snapshot *revision.Snapshot) (all, own []*Gateway) {
	seen := map[resource.Key]*known{}
	snapshot.EachOf("Gateway", func(k resource.Key, r *configv1.Resource) bool {
		config := r.GetIstioConfig()
		state := u.seen[k]
		if hash := string(r.GetHash()); state == nil || state.hash != hash {
			spec := &networking.Gateway{}
			if err := config.GetSpec().UnmarshalTo(spec); err != nil {
				return true // a Gateway of Kubernetes' Gateway API
			}
			state = &known{hash: hash, since: snapshot.Revision(), spec: spec}
		}
		seen[k] = state
		g := &Gateway{
			Namespace: k.Namespace, Name: k.Name, Generation: config.GetSource().GetGeneration(), Spec: state.spec,
			Age: fmt.Sprintf("%020d %s/%s", max(config.GetCreationTime().AsTime().UnixNano(), 0), k.Namespace, k.Name),
		}
		all = append(all, g)
		if config.GetSource().GetSource() == memory.Name {
			own = append(own, g)
		}
		return true
	})
	u.seen = seen
	return all, own
}

// assign finds the proxies of each Gateway.
func (u *Updater) assign(snapshot *revision.Snapshot, all []*Gateway) {
	u.cfg.Fleet.Each(fleet.GatewayPrefix, func(p *configv1.ProxyStatus) {
		w := snapshot.Get(resource.Key{Kind: resource.KindWorkload, Namespace: p.GetNamespace(), Name: p.GetWorkload()}).GetWorkload()
		if w == nil || p.GetUnverified() {
			return
		}
		for _, g := range all {
			if !object.HasLabels(w.GetLabels(), g.Spec.GetSelector()) {
				continue
			}
			since := u.seen[resource.Key{Kind: "Gateway", Namespace: g.Namespace, Name: g.Name}].since
			g.Proxies = append(g.Proxies, Proxy{
				NodeID: p.GetNodeId(), Namespace: p.GetNamespace(), Workload: p.GetWorkload(),
				Acked: fleet.Reached(p.GetAcked(), since), Rejection: rejection(p, since),
			})
		}
	})
}

// rejection is the error of a listener or route configuration that a proxy has rejected since a revision.
func rejection(p *configv1.ProxyStatus, since *configv1.Revision) string {
	for _, t := range p.GetTypes() {
		r := t.GetRejection()
		kind := t.GetTypeUrl()[strings.LastIndexByte(t.GetTypeUrl(), '.')+1:]
		if r == nil || kind != "Listener" && kind != "RouteConfiguration" || !fleet.Reached(r.GetRevision(), since) {
			continue
		}
		return fmt.Sprintf("%s %s: %s", kind, strings.Join(r.GetResourceNames(), ", "), object.Cut(r.GetMessage(), 500))
	}
	return ""
}

// write replaces the status of the stored object if it has changed. Fields of the status that others have written stay.
func (u *Updater) write(ctx context.Context, g *Gateway, s Status) error {
	k := object.Key{Group: validate.GroupNetworking, Kind: "Gateway", Namespace: g.Namespace, Name: g.Name}
	_, err := u.cfg.Store.Edit(ctx, k, "", func(tree map[string]any) (map[string]any, error) {
		before, _ := tree["status"].(map[string]any)
		after := maps.Clone(before)
		if after == nil {
			after = map[string]any{}
		}
		after["observedGeneration"] = g.Generation
		after["conditions"] = conditions(before, s.Conditions, u.cfg.Clock.Now())
		after["servers"] = servers(s.Servers)
		if !reflect.DeepEqual(before, after) {
			tree["status"] = after
		}
		return tree, nil
	})
	return err
}

// conditions keeps the transition time of conditions that have not changed, and conditions of other types.
func conditions(before map[string]any, now []Condition, at time.Time) []any {
	old, _ := before["conditions"].([]any)
	var out []any
	for _, c := range now {
		status := "False"
		if c.Holds {
			status = "True"
		}
		entry := map[string]any{
			"type": c.Type, "status": status, "reason": c.Reason, "message": c.Message, "lastTransitionTime": at.UTC().Format(time.RFC3339),
		}
		for _, o := range old {
			if was, _ := o.(map[string]any); was["type"] == c.Type && was["status"] == status {
				entry["lastTransitionTime"] = was["lastTransitionTime"]
			}
		}
		out = append(out, entry)
	}
	for _, o := range old {
		was, _ := o.(map[string]any)
		if !slices.ContainsFunc(now, func(c Condition) bool { return was["type"] == c.Type }) {
			out = append(out, o)
		}
	}
	return out
}

func servers(list []Server) []any {
	out := []any{}
	for _, s := range list {
		out = append(out, map[string]any{"name": s.Name, "port": s.Port, "hosts": s.Hosts, "reason": s.Reason, "message": s.Message})
	}
	return out
}
