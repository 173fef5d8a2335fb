package local

import (
	"context"
	"fmt"
	"sync"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/local/plan"
)

// writtenObjects is what one look at the store has found of the objects that publish writes.
type writtenObjects struct {
	// pods are the Pods' IDs, sidecars the generations of Sidecars by the ID of their Pod.
	pods     map[string]bool
	sidecars map[string]int64
}

// watchObjects writes again what somebody deletes of the objects that publish has written, and a Sidecar that somebody
// changes. The processes of a deleted Pod end and start again, as a kubelet's do.
func (n *Node) watchObjects(ctx context.Context) error {
	waitFor(ctx, n.published)
	var restarts sync.WaitGroup
	defer restarts.Wait()
	busy := &sync.Map{}               // Pods that restart or are scaled, by ID
	generations := map[string]int64{} // of Sidecars, by Pod ID
	for n.wait(ctx, sourcesPeriod) {
		n.scale(ctx, busy, &restarts)
		// Those that are busy now are written while the objects are listed.
		idle := lists.Filter(n.runs(), func(p *plan.Pod) bool { _, taken := busy.Load(p.ID()); return !taken })
		there, err := n.writtenObjects(ctx)
		if err != nil {
			n.cfg.Log.Debug("objects cannot be listed", "error", err)
			continue
		}
		for _, p := range idle {
			if !there.pods[p.ID()] {
				n.cfg.Console.Line(fmt.Sprintf("Pod %s was deleted: its processes end and start again", p.ID()))
				delete(generations, p.ID())
				busy.Store(p.ID(), true)
				restarts.Go(func() {
					defer busy.Delete(p.ID())
					n.restartPod(ctx, p)
				})
				continue
			}
			if p.Sidecar != nil {
				n.restoreSidecar(ctx, p, there.sidecars[p.ID()], generations)
			}
		}
	}
	return nil
}

// writtenObjects looks for the objects that publish writes.
func (n *Node) writtenObjects(ctx context.Context) (writtenObjects, error) {
	found := writtenObjects{pods: map[string]bool{}, sidecars: map[string]int64{}}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, kind := range []string{"Pod", "Sidecar"} {
		res, err := n.configAPI.List(ctx, &configv1.ListRequest{Kind: kind, WithoutManifests: true})
		if err != nil {
			return found, err
		}
		there := map[string]int64{}
		for _, o := range res.GetObjects() {
			there[o.GetKey().GetNamespace()+"/"+o.GetKey().GetName()] = o.GetGeneration()
		}
		for _, p := range n.cfg.Plan.Pods {
			if kind == "Pod" {
				_, found.pods[p.ID()] = there[p.Namespace+"/"+p.Name]
			} else if generation, ok := there[p.Namespace+"/"+p.SidecarName()]; ok {
				found.sidecars[p.ID()] = generation
			}
		}
	}
	return found, nil
}

// restoreSidecar writes a Pod's Sidecar again if it is gone (generation 0) or another than the last look has seen.
func (n *Node) restoreSidecar(ctx context.Context, p *plan.Pod, generation int64, seen map[string]int64) {
	if last, ok := seen[p.ID()]; generation > 0 && (!ok || last == generation) {
		seen[p.ID()] = generation
		return
	}
	did := "changed"
	if generation == 0 {
		did = "deleted"
	}
	if err := n.apply(ctx, p.Sidecar); err != nil {
		n.cfg.Log.Warn("a Sidecar was not restored and is tried again", "pod", p.ID(), "error", err)
		return
	}
	delete(seen, p.ID())
	n.cfg.Console.Line(fmt.Sprintf(
		"Sidecar %s/%s was %s: it is written again, because %s needs it; a Sidecar in the mesh files that selects the Pod replaces it",
		p.Namespace, p.SidecarName(), did, p.ID()))
}

// restartPod ends a Pod's processes, its proxy before its applications, writes the Pod's objects again and starts the
// processes. It repeats a write that fails until ctx ends.
func (n *Node) restartPod(ctx context.Context, p *plan.Pod) {
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.cfg.StopTimeout)
	defer cancel()
	for _, group := range p.StopOrder() {
		n.stopProcesses(stop, group)
	}
	for n.recreate(ctx, p) != nil {
		if !n.wait(ctx, sourcesPeriod) {
			return
		}
	}
	if ctx.Err() != nil {
		return
	}
	for _, process := range p.Processes() {
		n.startProcess(process)
	}
}

// recreate writes a Pod and its Sidecar, the Pod as not ready.
func (n *Node) recreate(ctx context.Context, p *plan.Pod) error {
	manifests, err := n.manifests(p)
	if err != nil {
		return err
	}
	n.statusMu.Lock()
	defer n.statusMu.Unlock()
	if err := n.apply(ctx, manifests); err != nil {
		n.cfg.Log.Warn("a Pod was not written again and is tried again", "pod", p.ID(), "error", err)
		return err
	}
	n.mu.Lock()
	delete(n.pods, p.ID())
	n.mu.Unlock()
	n.statuses.Notify()
	return nil
}
