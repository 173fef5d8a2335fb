package local

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// runs are the Pods of the plan that are meant to run: all but those that rest.
func (n *Node) runs() []*plan.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return lists.Filter(n.cfg.Plan.Pods, func(p *plan.Pod) bool { return !n.resting[p.ID()] })
}

// rests reports whether a Pod is scaled below.
func (n *Node) rests(p *plan.Pod) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.resting[p.ID()]
}

// scale has the Pods rest that `fairlead scale` asks for, and those run again that it asks for no more. busy are Pods,
// by ID, that are being restarted or scaled; all is done when work is.
func (n *Node) scale(ctx context.Context, busy *sync.Map, work *sync.WaitGroup) {
	scales, err := rundir.ReadScales(n.cfg.Layout.Scale())
	if err != nil {
		n.cfg.Log.Debug("what is scaled cannot be read", "error", err)
		return
	}
	for _, p := range n.cfg.Plan.Pods {
		wanted, scaled := scales[p.Namespace+"/"+p.Workload]
		rest := scaled && p.Ordinal >= wanted
		if rest == n.rests(p) {
			continue
		}
		if _, taken := busy.LoadOrStore(p.ID(), true); taken {
			continue
		}
		n.mu.Lock()
		n.resting[p.ID()] = rest
		n.mu.Unlock()
		work.Go(func() {
			defer busy.Delete(p.ID())
			if rest {
				n.endPod(ctx, p)
			} else {
				n.cfg.Console.Line(fmt.Sprintf("Pod %s starts: its Deployment is scaled up", p.ID()))
				n.restartPod(ctx, p)
			}
		})
	}
}

// endPod takes a Pod out of the mesh and ends its processes, its proxy before its applications.
func (n *Node) endPod(ctx context.Context, p *plan.Pod) {
	n.cfg.Console.Line(fmt.Sprintf("Pod %s ends: its Deployment is scaled down", p.ID()))
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := n.configAPI.Delete(call, &configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: "Pod", Namespace: p.Namespace, Name: p.Name}})
		cancel()
		if err == nil || status.Code(err) == codes.NotFound {
			break
		}
		if n.cfg.Log.Warn("a Pod was not deleted and is tried again", "pod", p.ID(), "error", err); !n.wait(ctx, sourcesPeriod) {
			return
		}
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.cfg.StopTimeout)
	defer cancel()
	for _, group := range p.StopOrder() {
		n.stopProcesses(stop, group)
	}
	n.mu.Lock()
	delete(n.pods, p.ID())
	n.mu.Unlock()
	n.statuses.Notify()
	n.cfg.Console.Line(fmt.Sprintf("Pod %s has ended: its Deployment is scaled down", p.ID()))
}
