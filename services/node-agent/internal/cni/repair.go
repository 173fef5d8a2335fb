package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fairshare"
	"fairlead.dev/services/node-agent/internal/cni/kube"
	"fairlead.dev/services/node-agent/internal/cni/plugin"
	"fairlead.dev/services/node-agent/internal/redirect"
)

// Repair is what happens to a Pod that started before the plugin was there.
type Repair string

// The ways of Repair, of Istio's names labelPods, deletePods and repairPods.
const (
	RepairOff    Repair = "off"
	RepairLabel  Repair = "label"
	RepairDelete Repair = "delete"
	RepairPod    Repair = "repair"
)

// Limits.
const (
	// maxBackoff is the longest pause before the Pods are followed again.
	maxBackoff = 30 * time.Second
	// repairTimeout is when a repair that has not ended is told of; it takes milliseconds.
	repairTimeout = 20 * time.Second
	// maxRepairs bounds how many Pods are repaired at once, and maxNamespaceRepairs those of one namespace.
	maxRepairs          = 64
	maxNamespaceRepairs = 4
)

// podClient changes Pods; *kube.Client implements it.
type podClient interface {
	FollowPods(ctx context.Context, node string, ready func(), f func(*kube.Pod)) error
	DeletePod(ctx context.Context, p *kube.Pod) error
	LabelPod(ctx context.Context, p *kube.Pod, key, value string) error
	Report(ctx context.Context, p *kube.Pod, kind, reason, message, host string) error
}

// repairer finds Pods whose validation has failed, and repairs them.
type repairer struct {
	mode                 Repair
	pods                 podClient
	node                 string
	container            string
	labelKey, labelValue string
	proc                 string
	write                func(ctx context.Context, namespace string, o *redirect.Options) error
	clock                clock.Clock
	metrics              *metrics
	log                  *slog.Logger
	following            atomic.Bool

	// turns are of repairs, by namespace.
	turns *fairshare.Pool

	mu sync.Mutex
	// done are the uids of Pods that need nothing more, and begun those of Pods that are being repaired or wait for it.
	done, begun map[string]bool
}

// repairTurns are the turns of a repairer.
func repairTurns() *fairshare.Pool {
	return fairshare.New(fairshare.Config{Places: maxRepairs, PerOwner: maxNamespaceRepairs, Waiting: fairshare.Unlimited})
}

// ready returns an error until the Pods have been seen once.
func (r *repairer) ready() error {
	if !r.following.Load() {
		return errors.New("the node's Pods are not known yet")
	}
	return nil
}

// run follows the Pods of the node until ctx ends.
func (r *repairer) run(ctx context.Context) error {
	pause := time.Second
	for ctx.Err() == nil {
		began := r.clock.Now()
		r.mu.Lock()
		r.done = map[string]bool{} // a Pod that is still broken is seen again
		r.mu.Unlock()
		err := r.pods.FollowPods(ctx, r.node, func() { r.following.Store(true) }, func(p *kube.Pod) { r.look(ctx, p) })
		if err != nil && ctx.Err() == nil {
			r.log.Warn("the node's Pods cannot be followed", "error", err)
		}
		if r.clock.Now().Sub(began) > maxBackoff {
			pause = time.Second
		}
		clock.Sleep(ctx, r.clock, pause)
		pause = min(2*pause, maxBackoff)
	}
	return nil
}

// broken reports whether a Pod's validation has said that it has no rules.
func (r *repairer) broken(p *kube.Pod) bool {
	if _, injected := p.Metadata.Annotations[statusAnnotation]; !injected || p.Metadata.DeletionTimestamp != "" {
		return false
	}
	for _, c := range p.Status.InitContainerStatuses {
		ended := c.State.Terminated
		if c.State.Waiting != nil {
			ended = c.LastState.Terminated
		}
		if c.Name == r.container && ended != nil && ended.ExitCode == redirect.ExitUnverified {
			return true
		}
	}
	return false
}

// look has a Pod repaired that is broken, once, and at once: its init container has tried the rules for --probe-timeout
// (package config) before. It does not wait for the repair: what a Pod has under its control may take any time,
// and then takes it from the Pods of its namespace alone.
func (r *repairer) look(ctx context.Context, p *kube.Pod) {
	if !r.broken(p) {
		return
	}
	r.begin(ctx, p.Metadata.UID, p)
}

// begin has a Pod repaired when it is its turn, unless that is done, or begun.
func (r *repairer) begin(ctx context.Context, uid string, p *kube.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done[uid] || r.begun[uid] {
		return
	}
	turn, err := r.turns.Take(p.Metadata.Namespace, 0, nil)
	if err != nil {
		return // never: any number may wait
	}
	r.begun[uid] = true
	go func() {
		if turn.Wait(ctx) == nil {
			r.inTurn(ctx, p)
			turn.Release()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.begun, uid)
	}()
}

// inTurn repairs a Pod whose turn it is. Who hangs is told of in time, and keeps its turn until it ends.
func (r *repairer) inTurn(ctx context.Context, p *kube.Pod) {
	told := time.AfterFunc(repairTimeout, func() {
		r.metrics.repairs.WithLabelValues(string(r.mode), "hangs").Inc()
		r.log.Error("a Pod without rules is not repaired: what its processes have open or mounted does not answer; delete it",
			"namespace", p.Metadata.Namespace, "pod", p.Metadata.Name, "after", repairTimeout)
	})
	defer told.Stop()
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	r.repair(ctx, p)
}

// repair repairs a Pod, and tells how it went.
func (r *repairer) repair(ctx context.Context, p *kube.Pod) {
	log := r.log.With("namespace", p.Metadata.Namespace, "pod", p.Metadata.Name, "way", r.mode)
	reason, message, err := "Redirected", "", error(nil)
	switch r.mode {
	case RepairLabel:
		reason, message = "Unredirected", "The Pod started before the CNI plugin; delete it"
		if p.Metadata.Labels[r.labelKey] != r.labelValue {
			err = r.pods.LabelPod(ctx, p, r.labelKey, r.labelValue)
		}
	case RepairDelete:
		reason, message = "Unredirected", "The Pod started before the CNI plugin, and is deleted"
		err = r.pods.DeletePod(ctx, p)
	default:
		message = "The Pod started before the CNI plugin; its traffic is redirected now"
		err = r.inPlace(ctx, p)
	}
	kind, result := "Normal", "repaired"
	if err != nil {
		kind, reason, message, result = "Warning", "Unredirected", "The Pod started before the CNI plugin, and could not be repaired: "+
			err.Error(), "failed"
		log.Error("a Pod without rules could not be repaired", "error", err)
	} else {
		r.mu.Lock()
		r.done[p.Metadata.UID] = true
		r.mu.Unlock()
		log.Info("a Pod without rules was repaired")
	}
	r.metrics.repairs.WithLabelValues(string(r.mode), result).Inc()
	if err := r.pods.Report(ctx, p, kind, reason, message, r.node); err != nil {
		log.Warn("an event could not be written", "error", err)
	}
}

// inPlace writes the rules into the network namespace of a running Pod.
func (r *repairer) inPlace(ctx context.Context, p *kube.Pod) error {
	process, err := openProcess(r.proc, p.Metadata.UID)
	if err != nil {
		return err
	}
	defer process.close()
	answer, why, err := decide(p, plugin.Nameservers(serversOf(process.root)))
	if err != nil {
		return err
	}
	if !answer.Redirect {
		return fmt.Errorf("its container %s waits for rules, but %s", r.container, why)
	}
	o, err := redirect.Parse(answer.Options)
	if err != nil {
		return err
	}
	return r.write(ctx, process.netPath(), o)
}

// writeRules is the repairer's write of production.
func writeRules(ctx context.Context, namespace string, o *redirect.Options) error {
	return redirect.In(namespace, func() error {
		_, err := redirect.Apply(ctx, o, redirect.Exec)
		return err
	})
}
